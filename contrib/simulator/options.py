"""What the user asked for, checked before anything starts."""
import argparse
import os
import pwd
from pathlib import Path

from . import REPOSITORY, Problem

USAGE = """contrib/cluster [OPTION…] -- COMMAND [ARG…]"""

EXAMPLES = """
COMMAND runs with SLURM_CONF set, in the current folder, and its exit status is the result (128+N when signal N
ended it; 125 when the cluster itself failed). The cluster's files lie in /run/gpu-align-cluster, which only COMMAND
and its jobs see: etc/slurm.conf, log/slurmctld.log, log/slurmd.n1.log. Everything is gone when COMMAND ends.

examples:
  contrib/cluster -- srun -n3 --gres=gpu:3 --gpu-align true
  contrib/cluster --node tests/nodes/tidy4.json --constrain no -- bash
  contrib/cluster --no-plugin --nodes 2 -- srun -N2 hostname
  contrib/cluster --plugstack 'default=single' --user nobody -- srun --gres=gpu:1 env
  contrib/cluster --slurm 26.05 -- srun --version
  contrib/cluster --real -- srun --gres=gpu:1 --gpu-align nvidia-smi -L
  contrib/cluster --conf 'Prolog=/path/to/prolog' --gres my-gres.conf -- ./my-test

node file:
  {"driver": "580.159.04", "sockets": 2, "cores_per_socket": 8,
   "cards": [{"pci": "0000:01:00.0", "minor": 4, "uuid": "GPU-…", "model": "NVIDIA A100-SXM4-80GB", "numa": 0}, …]}
  A card may also have "excluded": true, "uninitialised": true (its UUID is unknown to the driver) and
  "slices": [{"uuid": "MIG-…", "gi": 1, "ci": 0, "cap_minors": [21, 22]}, …]; the node may have
  "links": {"/dev/gpuA0": "nvidia3"}. Other keys are kept for the CUDA and NVML stand-ins.
"""


def parse(arguments):
    """The options as a namespace, or a Problem in one sentence."""
    options = _parser().parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        raise Problem("no command was given: write it after `--`, as in `contrib/cluster -- srun hostname`.")
    if options.nodes < 1:
        raise Problem(f"--nodes {options.nodes} makes no cluster: give 1 or more.")
    for path in (options.node, options.gres):
        if path and not path.is_file():
            raise Problem(f"{path} is no file: give --node and --gres the path of one.")
    options.account = _account(options.user)
    options.plugstack_conf = "" if options.no_plugin else _plugin_line(options.plugstack)
    return options


def _parser():
    parser = argparse.ArgumentParser(
        "cluster", usage=USAGE, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs COMMAND in a private, real Slurm cluster over a simulated GPU node. Needs root.")
    add = parser.add_argument
    add("--slurm", default="system", metavar="RELEASE",
        help="system (default), 24.11, 26.05, or a Debian suite by name, from a chroot made at first use")
    add("--cache", type=Path, default=Path("/var/cache/gpu-align"), metavar="DIR",
        help="where the chroots are kept (default: %(default)s)")
    add("--nodes", type=int, default=1, metavar="N", help="that many nodes, n1 to nN (default: 1)")
    cards = parser.add_mutually_exclusive_group()
    cards.add_argument("--node", type=Path, default=REPOSITORY / "tests/nodes/inv8p.json", metavar="FILE",
                       help="the simulated node (default: tests/nodes/inv8p.json)")
    cards.add_argument("--real", action="store_true", help="no simulation: this machine's own NVIDIA cards")
    add("--gres", type=Path, metavar="FILE", help="a gres.conf to use instead of the generated one")
    add("--constrain", choices=("yes", "no"), default="yes", help="ConstrainDevices in cgroup.conf (default: yes)")
    add("--conf", action="append", default=[], metavar="LINE", help="one more line for slurm.conf; repeatable")
    plugin = parser.add_mutually_exclusive_group()
    plugin.add_argument("--plugstack", default="", metavar="ARGS", help="the plugin's arguments in plugstack.conf")
    plugin.add_argument("--no-plugin", action="store_true", help="a Slurm without gpu-align")
    add("--user", metavar="NAME", help="run COMMAND as this user (default: root)")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def _account(name):
    if name is None:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise Problem(f"user {name} does not exist on this machine: create it, or name another with --user.") from None


def plugin_file():
    """The plugin to load: the built one, or the one that GPU_ALIGN_PLUGIN names."""
    return Path(os.environ.get("GPU_ALIGN_PLUGIN", REPOSITORY / "target/release/libgpu_align.so")).absolute()


def _plugin_line(arguments):
    plugin = plugin_file()
    if not plugin.is_file():
        raise Problem(f"the plugin {plugin} is not built: run `make`, or ask for a cluster without it by --no-plugin.")
    return f"required {plugin} {arguments}".strip() + "\n"
