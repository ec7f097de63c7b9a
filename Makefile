# make            the plugin and the program: target/release/libgpu_align.so, gpu-align
# make install    into $(DESTDIR)$(PREFIX), the plugin into $(DESTDIR)$(PLUGINDIR)
# make demo       what it does, shown on a private Slurm cluster
# make check      formatting, lints, unit tests, cluster tests, a sample of the truth matrix
# make truth      the whole truth matrix
# make bench      what the plugin adds to a launch
# make deny       licences and advisories of the dependencies (needs cargo-deny)
# make clean
#
# demo, check, truth and bench install what they need, as root on Debian and Ubuntu.

PREFIX ?= /usr/local
PLUGINDIR ?= $(PREFIX)/lib/slurm
CARGO ?= cargo
INSTALL ?= install

# The cluster and the tests look for the built files there.
export CARGO_TARGET_DIR := $(CURDIR)/target

share := $(DESTDIR)$(PREFIX)/share/gpu-align
program := target/release/gpu-align

.PHONY: all install demo check truth bench deny clean
.NOTPARALLEL:

all:
	$(CARGO) build --release --locked

# What an admin copies names the plugin and the program by their full paths, wherever they are.
install:
	@test -f target/release/libgpu_align.so || { echo "gpu-align is not built: run \`make\` first." >&2; exit 1; }
	$(INSTALL) -D -m 755 target/release/libgpu_align.so "$(DESTDIR)$(PLUGINDIR)/spank_gpu_align.so"
	if [ -f $(program) ]; then $(INSTALL) -D -m 755 $(program) "$(DESTDIR)$(PREFIX)/bin/gpu-align" && \
		$(program) generate "$(DESTDIR)$(PREFIX)/share"; fi
	cd slurm && find . -type f -exec $(INSTALL) -D -m 644 '{}' "$(share)/{}" \;
	chmod 755 "$(share)/prolog.d/50-gpu-align" "$(share)/epilog.d/50-gpu-align" "$(share)/taskprolog.gpu-align"
	sed -i 's|^optional spank_gpu_align.so|optional $(PLUGINDIR)/spank_gpu_align.so helper=$(PREFIX)/bin/gpu-align|' \
		"$(share)/plugstack.conf.d/gpu-align.conf"
	cd "$(share)" && sed -i 's|/usr/bin/gpu-align|$(PREFIX)/bin/gpu-align|g' \
		prolog.d/50-gpu-align epilog.d/50-gpu-align taskprolog.gpu-align gpu-align.service

demo:
	@contrib/setup demo
	@$(CARGO) build --quiet --release --locked --package gpu-align --package sim-cuda
	@contrib/demo

check:
	@contrib/setup check
	@contrib/check

truth:
	@contrib/setup check
	@$(CARGO) build --quiet --release --locked --workspace
	@tests/truth/run

bench:
	@contrib/setup bench
	@$(CARGO) build --quiet --release --locked
	@benches/launch

deny:
	@command -v cargo-deny >/dev/null || \
		{ echo "cargo-deny is missing: run \`cargo install --locked cargo-deny\`." >&2; exit 1; }
	$(CARGO) deny --workspace check

clean:
	$(CARGO) clean
