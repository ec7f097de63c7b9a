"""Other Slurm releases: chroots of other Debian suites, made once by debootstrap and kept in a cache folder."""
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from . import Problem

SUITES = {"24.11": "trixie", "26.05": "forky"}
PACKAGES = "slurmctld,slurmd,slurm-client,munge,python3"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SCRIPTS = Path("/usr/share/debootstrap/scripts")


def prepare(release, cache):
    """The folder of a release's chroot, made if it is not there yet; None for the machine's own Slurm."""
    if release == "system":
        return None
    name = SUITES.get(release, release)
    if not name.isalpha():
        raise Problem(f"--slurm {release} is unknown: give system, {', '.join(SUITES)} or the name of a Debian suite.")
    folder = cache / name
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _make(name, folder)
    if release in SUITES:
        _check_release(release, name, folder)
    return folder.resolve()


def _check_release(release, name, folder):
    """A suite that is not stable yet moves on: its Slurm is then another than the table says."""
    said = _answers("unshare", "--root", folder, "/usr/sbin/slurmctld", "-V").strip()
    if not re.search(rf"\b{re.escape(release)}\.", said):
        raise Problem(f"--slurm {release} is Debian {name}, and {folder} holds {said or 'no slurmctld'}: "
                      f"correct SUITES in contrib/simulator/suite.py, or remove {folder} if it is an older copy.")


def _make(name, folder):
    for needed, package in ((shutil.which("debootstrap"), "debootstrap"), (KEYRING.exists(), "debian-archive-keyring")):
        if not needed:
            raise Problem(f"Debian {name} cannot be fetched without {package}: run `apt-get install {package}`.")
    print(f"cluster: preparing Slurm of Debian {name} in {folder}, once, about a minute", file=sys.stderr)
    partial, log = folder.with_suffix(".partial"), folder.with_suffix(".log")
    shutil.rmtree(partial, ignore_errors=True)
    with open(log, "w") as output:
        done = subprocess.run(_command(name, partial), env=_environment(), stdout=output, stderr=output,
                              stdin=subprocess.DEVNULL)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        raise Problem(f"debootstrap could not make Debian {name} in {folder}; its last words in {log} were:\n"
                      + "\n".join(f"    {line}" for line in log.read_text().splitlines()[-5:]))
    shutil.rmtree(partial / "var/cache/apt", ignore_errors=True)
    partial.rename(folder)
    log.unlink()


def _command(name, folder):
    """Inside namespaces of its own, so that an interrupted debootstrap leaves no process and no mount."""
    script = SCRIPTS / name
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child",
            "debootstrap", "--variant=minbase", f"--keyring={KEYRING}", f"--include={PACKAGES}",
            name, folder, _mirror(), script if script.exists() else SCRIPTS / "sid"]


def _mirror():
    """Where this machine's apt fetches Debian from, so that a local mirror is used; else Debian's own."""
    targets = _answers("apt-get", "indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages")
    mirrors = [line.split()[-1] for line in targets.splitlines() if line.startswith("Debian Debian ")]
    # debootstrap does not know apt's other methods, as cloud images' mirror+file.
    mirrors = [mirror for mirror in mirrors if mirror.startswith(("http://", "https://", "file:"))]
    return mirrors[0] if mirrors else "http://deb.debian.org/debian/"


def _environment():
    """debootstrap follows http_proxy, not apt's configuration: tell it what apt uses."""
    proxy = _answers("apt-config", "--format", "%v", "dump", "Acquire::http::Proxy").strip()
    return {**os.environ, **({"http_proxy": proxy} if proxy else {})}


def _answers(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout
