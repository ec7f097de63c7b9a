"""munged, slurmctld and the slurmds: started one after the other, each awaited by what it offers."""
import os
import subprocess
import time

from . import HOME, Problem, config

LOG = HOME / "log"
PATIENCE = 30.0


class Services:
    """The daemons that run in this namespace: pid → name."""

    def __init__(self, nodes):
        self.running = {}
        self.nodes = nodes

    def start(self):
        self._start("munged", "/usr/sbin/munged", *_munge_arguments())
        self._await("munged", lambda: os.path.exists("/run/munge/munge.socket.2"))
        self._start("slurmctld", "/usr/sbin/slurmctld", "-D", "-i")
        self._await("slurmctld", lambda: _answers("scontrol", "ping").count("UP"))
        for name in config.node_names(self.nodes):
            self._start(f"slurmd.{name}", "/usr/sbin/slurmd", "-D", "-N", name)
        self._await("slurmd.n1", lambda: _answers("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * self.nodes)

    def check(self, pid, status):
        """A Problem if the process that ended with this wait status was one of the daemons."""
        name = self.running.pop(pid, None)
        if name:
            code = os.waitstatus_to_exitcode(status)
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            raise Problem(f"{name} {how}; its last words were:\n{_tail(name)}")

    def _start(self, name, program, *arguments):
        if not os.path.exists(program):
            raise Problem(f"{program} is missing: install slurmctld, slurmd, slurm-client and munge.")
        output = os.open(LOG / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(config.SLURM_CONF)}
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        pid = os.posix_spawn(program, [program, *arguments], environment, file_actions=actions, setpgroup=0)
        os.close(output)
        os.close(null)
        self.running[pid] = name

    def _await(self, name, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            for pid in list(self.running):
                self.check(*os.waitpid(pid, os.WNOHANG))
            if time.monotonic() > deadline:
                raise Problem(f"{name} was not ready within {PATIENCE:.0f} s; its last words were:\n{_tail(name)}")
            time.sleep(0.02)


def _munge_arguments():
    folder = HOME / "munge"
    with open(folder / "key", "wb", opener=lambda path, flags: os.open(path, flags, 0o400)) as key:
        key.write(os.urandom(1024))
    return ("--foreground", f"--key-file={folder}/key", f"--pid-file={folder}/pid", f"--seed-file={folder}/seed",
            f"--log-file={folder}/log")


def _answers(*command):
    """What a Slurm command prints, "" while it fails."""
    environment = {**os.environ, "SLURM_CONF": str(config.SLURM_CONF)}
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def _tail(name, lines=8):
    """The end of what a daemon wrote, indented."""
    words = (LOG / f"{name}.out").read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in words[-lines:])
