"""The kernel calls around namespaces that Python 3.11 does not offer. Called by `launch`, `restore` and `adopt`."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000

_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def fresh_pid_namespace() -> Iterator[None]:
    """Let the processes that this thread starts inside the block live in one new PID namespace, the first of them as its PID 1.

    Afterwards this thread starts processes in its own namespace again. Raises `OSError`: EPERM without CAP_SYS_ADMIN.
    """
    own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _unshare(CLONE_NEWPID)
        try:
            yield
        finally:
            _check(_libc.setns(own, CLONE_NEWPID))
    finally:
        os.close(own)


def become_subreaper() -> None:
    """Make this process the parent of orphans below it: a restored tree whose CRIU has ended becomes its child. Raises `OSError`."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def _unshare(kinds: int) -> None:
    _check(_libc.unshare(kinds))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
