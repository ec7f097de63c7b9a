"""The private mount namespace: a /run and a temporary file system of its own, the simulated node, the stand-ins."""
import os
import shutil
import socket
import subprocess
from pathlib import Path

from . import HOME, REPOSITORY, kernel
from .options import plugin_file

STAND_INS = {"libsim_cuda.so": "libcuda.so.1", "libsim_nvml.so": "libnvidia-ml.so.1"}

SUITES_OWN = {"/", "/usr", "/usr/bin", "/usr/lib", "/usr/sbin", "/bin", "/lib", "/sbin", "/etc", "/var", "/var/lib"}


def build(node, tree, root):
    """Give this process a mount namespace and fill it; `root` is the chroot of another suite, or None."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.make_private()
    kernel.mount("proc", "/proc")
    _private_run()
    tree.enter()
    node.install()
    _name_this_host()
    if root:
        _enter_root(root)
    if not node.real:
        _install_stand_ins()


def _private_run():
    """A /run for this cluster alone (munge's socket and gpu-align's record lie there), with links to the machine's."""
    machine = os.open("/run", os.O_PATH)
    kernel.mount("tmpfs", "/run", "mode=755")
    for name in ("machine", "munge", "etc", "state", "pid", "log"):
        (HOME / name).mkdir(parents=True)
    (HOME.parent / "munge").mkdir()
    kernel.bind(f"/proc/self/fd/{machine}", HOME / "machine")
    os.close(machine)
    for name in os.listdir(HOME / "machine"):
        if name not in ("munge", "gpu-align") and not (HOME.parent / name).exists():
            os.symlink(HOME / "machine" / name, HOME.parent / name)


def _name_this_host():
    """Slurm looks this host's name up again and again: answer from /etc/hosts, whatever the machine's resolver does."""
    machine, private = Path("/etc/hosts"), HOME / "etc/hosts"
    if machine.exists():
        private.write_text(f"127.0.0.1 {socket.gethostname()}\n{machine.read_text()}")
        kernel.bind(private, machine)


def _enter_root(suite):
    """Change to a throw-away copy of the suite, with the machine's own folders at their own paths."""
    here, root = os.getcwd(), HOME / "root"
    for name in ("upper", "work", "root"):
        (HOME / name).mkdir()
    kernel.mount("overlay", root, f"lowerdir={suite},upperdir={HOME}/upper,workdir={HOME}/work")
    kernel.make_unbindable(root)
    for path in ("/dev", "/proc", "/sys", "/run", "/tmp", "/etc/passwd", "/etc/group", "/etc/hosts"):
        _show(path, root)
    for path in {here, str(REPOSITORY), str(plugin_file().parent)} - SUITES_OWN:
        if os.path.isdir(path) and not _same(path, f"{root}{path}"):
            _show(path, root)
    os.chroot(root)
    os.chdir(here)


def _same(path, other):
    return os.path.exists(other) and os.path.samefile(path, other)


def _show(path, root):
    """Bind the machine's file or folder at its own path below `root`."""
    target = Path(f"{root}{path}")
    if os.path.isdir(path):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    kernel.bind(path, target)


def _install_stand_ins():
    """Have dlopen find the built CUDA and NVML stand-ins under their real names, by a private ld.so.cache."""
    folder = HOME / "lib"
    folder.mkdir()
    for built, name in STAND_INS.items():
        if (REPOSITORY / "target/release" / built).is_file():
            shutil.copy(REPOSITORY / "target/release" / built, folder / name)
    cache, conf = HOME / "etc/ld.so.cache", HOME / "etc/ld.so.conf"
    conf.write_text(f"{folder}\ninclude /etc/ld.so.conf\n")
    subprocess.run(["/sbin/ldconfig", "-X", "-C", cache, "-f", conf], check=True, stderr=subprocess.DEVNULL)
    kernel.bind(cache, "/etc/ld.so.cache")
