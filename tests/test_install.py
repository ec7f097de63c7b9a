"""`make install` as a package or an admin runs it: what lies where, and that each copied file finds the program.

Needs a build (`make`); run with python3 tests/test_install.py.
"""
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["prolog.d/50-gpu-align", "epilog.d/50-gpu-align", "taskprolog.gpu-align"]
COMMANDS = ["show", "verify", "doctor", "pick", "exec", "inventory", "prolog", "epilog", "check", "task-prolog"]


def install(folder, **variables):
    """The installed files below DESTDIR, as paths that start at the root."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    subprocess.run(["make", "-s", "install", f"DESTDIR={folder}", *settings], cwd=ROOT, check=True)
    return {"/" + str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


class Install(unittest.TestCase):
    def test_everything_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            files = install(folder, PREFIX="/usr", PLUGINDIR="/usr/lib64/slurm")
            shipped = {str(p.relative_to(ROOT / "slurm")) for p in (ROOT / "slurm").rglob("*") if p.is_file()}
            self.assertEqual(files, {
                "/usr/lib64/slurm/spank_gpu_align.so",
                "/usr/bin/gpu-align",
                "/usr/share/bash-completion/completions/gpu-align",
                "/usr/share/zsh/site-functions/_gpu-align",
                "/usr/share/fish/vendor_completions.d/gpu-align.fish",
                "/usr/share/man/man1/gpu-align.1",
                *(f"/usr/share/man/man1/gpu-align-{command}.1" for command in COMMANDS),
                *(f"/usr/share/gpu-align/{file}" for file in shipped),
            })
            for file in ["bin/gpu-align", *(f"share/gpu-align/{script}" for script in SCRIPTS)]:
                self.assertTrue(os.access(f"{folder}/usr/{file}", os.X_OK), file)

    def test_what_an_admin_copies_names_the_installed_files_wherever_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            files = install(folder, PREFIX="/opt/gpu-align")
            share = Path(folder, "opt/gpu-align/share/gpu-align")
            for name in [*SCRIPTS, "gpu-align.service"]:
                named = re.findall(r"(/\S*/bin/gpu-align)\b", (share / name).read_text())
                self.assertEqual(set(named), {"/opt/gpu-align/bin/gpu-align"}, name)
            conf = (share / "plugstack.conf.d/gpu-align.conf").read_text()
            [line] = [line for line in conf.splitlines() if line and not line.startswith("#")]
            self.assertEqual(line, "optional /opt/gpu-align/lib/slurm/spank_gpu_align.so helper=/opt/gpu-align/bin/gpu-align")
            self.assertLessEqual({"/opt/gpu-align/lib/slurm/spank_gpu_align.so", "/opt/gpu-align/bin/gpu-align"}, files)


if __name__ == "__main__":
    unittest.main()
