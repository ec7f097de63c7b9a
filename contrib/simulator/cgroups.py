"""The cluster's own part of the cgroup tree: two clusters with equal node names and job ids must not share one.

For each cgroup v1 hierarchy a folder is made below the machine's root group and bound over the mount point, so that
Slurm takes it for the root.
"""
import errno
import os
import time
from pathlib import Path

from . import Problem, kernel


class Cgroups:
    """Made by the launcher, before the namespace: `remove` needs the machine's own view of the tree."""

    def __init__(self, name):
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        points = [Path(point) for _, point, kind, flags, *_ in mounts if kind == "cgroup" and "name=" not in flags]
        if not any("devices" in point.name.split(",") for point in points):
            raise Problem("this machine has no cgroup v1 hierarchy for devices under /sys/fs/cgroup: mount one.")
        self.folders = {point: point / name for point in points}

    conf = "CgroupPlugin=cgroup/v1\n"

    def create(self):
        for folder in self.folders.values():
            folder.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cpuset, which then takes no task
                if (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())

    def enter(self):
        """Bind the folders over the mount points of this mount namespace."""
        for point, folder in self.folders.items():
            kernel.bind(folder, point)

    def remove(self):
        """Remove the folders; the last process may take a moment to leave them."""
        for folder in self.folders.values():
            for path, _, _ in os.walk(folder, topdown=False):
                _remove_when_empty(path)


def _remove_when_empty(path, patience=5.0):
    deadline = time.monotonic() + patience
    while True:
        try:
            return os.rmdir(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
