"""contrib/cluster: a private, real Slurm over a simulated GPU node.

    options    what the user asked for
    node       the node file, and the /dev, /proc/driver and /sys that it describes
    gres       how many devices of each kind a gres.conf gives a node
    config     slurm.conf and its companions
    suite      other Slurm releases: chroots of other Debian suites, made once and kept
    space      the private mount namespace that all of it lives in
    cgroups    the cluster's own part of the cgroup tree
    services   munged, slurmctld and the slurmds: started, awaited
    launcher   two processes: the one that the user started, and the first one of the namespace
    kernel     the system calls that Python's library lacks

All that a cluster writes lies in HOME, on a tmpfs that only its own namespace sees: when the last
process of the namespace is gone, so are its files, mounts and device nodes. HOME is the same path in every cluster.
"""
from pathlib import Path

HOME = Path("/run/gpu-align-cluster")
REPOSITORY = Path(__file__).resolve().parents[2]


class Problem(Exception):
    """One sentence for the user: what happened, where, and what to do."""
