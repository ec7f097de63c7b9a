"""Two processes: the launcher, which the user started and signals, and the keeper, the first process of the namespace.

The keeper starts the daemons and COMMAND and collects every process of the namespace. Whatever ends it, the kernel
then ends all of them; whatever ends the launcher, the keeper gets SIGTERM. A third process waits for the end of both to
remove the cgroups. So no order of deaths leaves anything behind.
"""
import os
import signal
import socket
import subprocess
import sys
import time

from . import Problem, cgroups, config, kernel, options, space, suite
from .node import Machine, Node
from .services import Services

FAILED = 125
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
GRACE = 3.0  # seconds that COMMAND has to end after a signal


def main(arguments):
    """The exit status of `contrib/cluster`."""
    try:
        if os.geteuid() != 0:
            raise Problem("namespaces, device nodes and Slurm's daemons need root: run it as root or under sudo.")
        chosen = options.parse(arguments)
        node = Machine() if chosen.real else Node(chosen.node)
        return _launch(chosen, node, suite.prepare(chosen.slurm, chosen.cache))
    except Problem as problem:
        return _say(problem)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _launch(chosen, node, root):
    """Run the keeper in its namespaces, hand it our signals, and see that nothing of it is left."""
    tree = cgroups.of_this_machine(f"gpu-align-cluster-{os.getpid()}")
    ports = _reserve_ports(1 + chosen.nodes)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    sweeper, held = tree.remove_behind()
    try:
        tree.create()
        kernel.unshare(kernel.CLONE_NEWPID)
        keeper = os.fork()
        if keeper == 0:
            os._exit(_keep(chosen, node, root, tree, list(ports)))
        return _watch(keeper)
    except OSError as error:
        raise Problem(f"this machine's cgroups and namespaces cannot be used: {error}: run in no container, "
                      "or in a privileged one.") from None
    finally:
        os.close(held)
        os.waitpid(sweeper, 0)


def _watch(keeper):
    """The keeper's exit status, or the number of the signal that made us end it."""
    received = []

    def hand_on(number, _frame):
        received.append(number)
        os.kill(keeper, signal.SIGTERM)

    _on_ending(hand_on)
    status = _status(os.waitpid(keeper, 0)[1])
    _on_ending(signal.SIG_IGN)
    return 128 + received[0] if received else status


def _reserve_ports(count):
    """Free ports below the range that the kernel hands out, each held by an abstract socket among clusters."""
    ports = {}
    for port in range(20000, 32000):
        lock, probe = socket.socket(socket.AF_UNIX), socket.socket()
        try:
            lock.bind(f"\0gpu-align-cluster-port-{port}")
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            ports[port] = lock
        except OSError:
            lock.close()
        probe.close()
        if len(ports) == count:
            return ports
    raise Problem(f"{count} free TCP ports between 20000 and 32000 were not found: stop what holds them.")


class _Ended(BaseException):
    """The launcher, or the terminal, wants the cluster to end."""


def _keep(chosen, node, root, tree, ports):
    """The life of the keeper: the cluster, COMMAND, and the end of every process. Returns the exit status."""
    try:
        kernel.signal_on_parent_death(signal.SIGTERM)
        _on_ending(_raise_ended)
        space.build(node, tree, root)
        config.write(chosen, node, ports, tree.conf)
        services = Services(chosen.nodes)
        services.start()
        return _run(chosen, services)
    except Problem as problem:
        return _say(problem)
    except OSError as error:
        return _say(f"the cluster's namespace could not be filled: {error}: run on a machine that allows mounts and "
                    "device nodes.")
    except _Ended:
        return 128 + signal.SIGTERM
    finally:
        _end_all()


def _raise_ended(_number, _frame):
    _on_ending(signal.SIG_IGN)
    raise _Ended


def _run(chosen, services):
    """COMMAND's exit status; a daemon that ends before COMMAND is a Problem."""
    command = _start_command(chosen)  # keep it: Python collects the process of a Popen that nobody holds
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == command.pid:
                return _status(status)
            services.check(pid, status)
    except (_Ended, Problem):
        os.kill(command.pid, signal.SIGTERM)
        _await_end(command.pid)
        raise


def _start_command(chosen):
    environment = {**os.environ, "SLURM_CONF": str(config.SLURM_CONF)}
    identity = {}
    account = chosen.account
    if account:
        identity = {"user": account.pw_uid, "group": account.pw_gid,
                    "extra_groups": os.getgrouplist(account.pw_name, account.pw_gid)}
        environment.update(HOME=account.pw_dir, USER=account.pw_name, LOGNAME=account.pw_name, SHELL=account.pw_shell)
    try:
        return subprocess.Popen(chosen.command, env=environment, **identity)
    except OSError as error:
        raise Problem(f"{error.filename} did not start ({error.strerror}): give COMMAND as a program that exists "
                      f"in this Slurm's file system.") from None


def _await_end(pid):
    """Give COMMAND some time to clean up after itself."""
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG)[0] == 0:
        time.sleep(0.01)


def _end_all():
    """Kill and collect every other process of the namespace: for its first process, -1 means just these."""
    try:
        os.kill(-1, signal.SIGKILL)
        while True:
            os.waitpid(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def _on_ending(reaction):
    for number in ENDING:
        signal.signal(number, reaction)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _status(status):
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _say(problem):
    print(f"cluster: {problem}", file=sys.stderr)
    return FAILED
