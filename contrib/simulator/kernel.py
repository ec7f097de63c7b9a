"""The few system calls that Python's library lacks, through ctypes."""
import ctypes
import os

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWCGROUP = 0x00020000, 0x20000000, 0x02000000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_UNBINDABLE = 0x1000, 0x4000, 0x40000, 0x20000
_MNT_DETACH, _PR_SET_PDEATHSIG = 2, 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result, what):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def _mount(source, target, kind=None, flags=0, data=None):
    arguments = (None if text is None else os.fsencode(text) for text in (source, target, kind))
    options = None if data is None else data.encode()
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), options), f"mount {target}")


def unshare(flags):
    """Leave the namespaces in `flags`; a new PID namespace begins with the next fork."""
    _check(_libc.unshare(flags), "unshare")


def mount(kind, target, data=None):
    """A fresh file system of this kind."""
    _mount(kind, target, kind, 0, data)


def unmount(target):
    """Take a mount out of this namespace, though somebody may still use it."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount {target}")


def bind(source, target):
    """Show `source`, and what is mounted below it, at `target` too."""
    _mount(source, target, None, _MS_BIND | _MS_REC)


def make_private(target="/"):
    """From here on no mount below `target` travels to another namespace, or from one."""
    _mount(None, target, None, _MS_REC | _MS_PRIVATE)


def make_unbindable(target):
    """Keep this mount out of recursive binds of the folders above it."""
    _mount(None, target, None, _MS_UNBINDABLE)


def signal_on_parent_death(number):
    """Have the kernel send this process a signal when its parent ends, however it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")
