"""The cluster's own part of the cgroup tree: two clusters with equal node names and job ids must not share one.

Below the machine's root group a folder is made, and inside the namespace Slurm sees that folder as the root.
"""
import errno
import os
import signal
import time
from pathlib import Path

from . import Problem, kernel

ROOT = Path("/sys/fs/cgroup")


def of_this_machine(name):
    """The tree in the version that holds this machine's device rules."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    version1 = [Path(point) for _, point, kind, flags, *_ in mounts if kind == "cgroup" and "name=" not in flags]
    if any("devices" in point.name.split(",") for point in version1):
        return Version1(name, version1)
    if any(point == str(ROOT) and kind == "cgroup2" for _, point, kind, *_ in mounts):
        return Version2(name, [ROOT])
    raise Problem(f"this machine has no cgroups under {ROOT}: mount cgroup2 there.")


class _Tree:
    """`points`: the mount points that each get a folder called `name`."""

    def __init__(self, name, points):
        self.name = name
        self.points = points

    def remove(self):
        """Remove the folders and Slurm's below them; the last process may take a moment to leave."""
        for point in self.points:
            for folder, _, _ in os.walk(point / self.name, topdown=False):
                _remove_when_empty(folder)

    def remove_behind(self):
        """Fork a process that removes the folders once nobody holds the returned file open any more.

        Whoever dies in whatever way: files are closed. Returns (its pid, the file).
        """
        last, held = os.pipe()
        sweeper = os.fork()
        if sweeper:
            os.close(last)
            return sweeper, held
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.close(held)
        os.read(last, 1)
        self.remove()
        os._exit(0)


class Version1(_Tree):
    """A folder in each hierarchy, bound over its mount point."""

    conf = "CgroupPlugin=cgroup/v1\n"

    def create(self):
        for point in self.points:
            (point / self.name).mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cpuset, which then takes no task
                if (point / file).exists():
                    (point / self.name / file).write_text((point / file).read_text())

    def enter(self):
        for point in self.points:
            kernel.bind(point / self.name, point)


class Version2(_Tree):
    """A folder that is the root of a cgroup namespace. Slurm wants a system.slice there, and no process at the top."""

    conf = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"

    def create(self):
        try:
            _hand_down_controllers(ROOT)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            _leave_root()
            _hand_down_controllers(ROOT)
        (ROOT / self.name).mkdir()

    def enter(self):
        (ROOT / self.name / "cgroup.procs").write_text("0")
        kernel.unshare(kernel.CLONE_NEWCGROUP)
        kernel.unmount(ROOT)  # Slurm takes the first cgroup2 in /proc/1/mountinfo: the machine's must not be there
        kernel.mount("cgroup2", ROOT)
        for name in ("keeper", "system.slice"):
            (ROOT / name).mkdir()
        (ROOT / "keeper/cgroup.procs").write_text("0")
        _hand_down_controllers(ROOT)
        _hand_down_controllers(ROOT / "system.slice")


def _hand_down_controllers(folder):
    """Let the groups below have the controllers that Slurm asks for; this stays so, and harms nobody."""
    available = (folder / "cgroup.controllers").read_text().split()
    wanted = [f"+{name}" for name in ("cpuset", "cpu", "memory", "pids") if name in available]
    (folder / "cgroup.subtree_control").write_text(" ".join(wanted))


def _leave_root():
    """In a container the top group is no true root: move its processes to a group below, as Docker's dind does."""
    (ROOT / "init").mkdir(exist_ok=True)
    for pid in (ROOT / "cgroup.procs").read_text().split():
        try:
            (ROOT / "init/cgroup.procs").write_text(pid)
        except ProcessLookupError:  # it ended meanwhile
            continue


def _remove_when_empty(folder, patience=5.0):
    deadline = time.monotonic() + patience
    while True:
        try:
            return os.rmdir(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
