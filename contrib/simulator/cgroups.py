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
    """The folders, by open files of their parents: these lead out of the namespace, so both processes can `remove`."""

    conf = "CgroupPlugin=cgroup/v1\n"

    def __init__(self, name):
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        points = [Path(point) for _, point, kind, flags, *_ in mounts if kind == "cgroup" and "name=" not in flags]
        if not any("devices" in point.name.split(",") for point in points):
            raise Problem("this machine has no cgroup v1 hierarchy for devices under /sys/fs/cgroup: mount one.")
        self.name = name
        self.parents = {point: os.open(point, os.O_RDONLY | os.O_DIRECTORY) for point in points}

    def create(self):
        for point in self.parents:
            (point / self.name).mkdir()
            for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cpuset, which then takes no task
                if (point / file).exists():
                    (point / self.name / file).write_text((point / file).read_text())

    def enter(self):
        """Bind the folders over the mount points of this mount namespace."""
        for point in self.parents:
            kernel.bind(point / self.name, point)

    def remove(self):
        """Remove the folders and Slurm's below them; the last process may take a moment to leave."""
        for parent in self.parents.values():
            if self.name not in os.listdir(parent):
                continue
            for _, folders, _, here in os.fwalk(self.name, topdown=False, dir_fd=parent):
                for folder in folders:
                    _remove_when_empty(folder, here)
            _remove_when_empty(self.name, parent)


def _remove_when_empty(name, parent, patience=5.0):
    deadline = time.monotonic() + patience
    while True:
        try:
            return os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
