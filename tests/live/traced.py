"""A program that runs from system call to system call, so that it can be killed at any moment of its work, however
fast the disk and however loaded the machine.

Only its first thread is traced: what that one does is what the moments are counted in.
"""
import ctypes
import os
import signal

TRACEME, CONT, SETOPTIONS, SYSCALL = 0, 7, 0x4200, 24
EXIT_KILL, MARK_SYSCALLS = 1 << 20, 1

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4


def _ptrace(request, pid, data=0):
    if libc.ptrace(request, pid, 0, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace request {request:#x}")


class Traced:
    """A started program, stopped before its first instruction."""

    def __init__(self, command, env):
        self.status = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in range(3):
                    os.dup2(null, descriptor)
                _ptrace(TRACEME, 0)
                os.execvpe(command[0], command, env)
            finally:
                os._exit(127)
        self._wait()
        _ptrace(SETOPTIONS, self.pid, EXIT_KILL | MARK_SYSCALLS)
        self._pending = 0

    def step(self):
        """Runs to where the next system call begins or ends; False at the program's end."""
        while True:
            _ptrace(SYSCALL, self.pid, self._pending)
            self._pending = 0
            if self._wait() is None:
                return False
            if self._stop == signal.SIGTRAP | 0x80:
                return True
            # A signal of its own, like that of a child's end.
            self._pending = self._stop if self._stop != signal.SIGTRAP else 0

    def run_on(self):
        """Lets it run, without a stop."""
        _ptrace(CONT, self.pid, self._pending)

    def kill(self):
        """kill -9, wherever it is."""
        os.kill(self.pid, signal.SIGKILL)
        while self._wait() is not None:
            pass

    def _wait(self):
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSTOPPED(status):
            self._stop = os.WSTOPSIG(status)
            return self._stop
        self.status = status
        return None
