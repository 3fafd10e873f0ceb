"""The kernel calls around namespaces that Python 3.11 does not offer. Called by `launch` and `adopt`."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000

_PR_SET_CHILD_SUBREAPER = 36
_ABOVE = 10

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def fresh_pid_namespace() -> Iterator[None]:
    """Let the processes that this thread starts inside the block live in one new PID namespace, the first of them as its PID 1.

    Afterwards this thread starts processes in its own namespace again. Raises `OSError`: EPERM without CAP_SYS_ADMIN.
    """
    with _own_again():
        _unshare(CLONE_NEWPID)
        yield


@contextlib.contextmanager
def children_inside(pid: int) -> Iterator[None]:
    """Let the processes that this thread starts inside the block live in the PID namespace of process `pid`.

    They are our children all the same. Raises `OSError`: EPERM without CAP_SYS_ADMIN, ENOENT when the process is gone.
    """
    theirs = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _own_again():
            _check(_libc.setns(theirs, CLONE_NEWPID))
            yield
    finally:
        os.close(theirs)


@contextlib.contextmanager
def _own_again() -> Iterator[None]:
    own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            yield
        finally:
            _check(_libc.setns(own, CLONE_NEWPID))
    finally:
        os.close(own)


def spawn_first(program: Path, descriptors: tuple[int, ...]) -> int:
    """Start the Python program `program` as PID 1 of a new PID namespace, with `descriptors` as 0, 1, 2…; returns its PID here.

    It is a fresh interpreter without site packages and environment, and the child of this very thread. Raises `OSError`.
    """
    # Above the numbers that they are put on, so that none is overwritten before it is moved.
    sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for descriptor in descriptors]
    actions = [(os.POSIX_SPAWN_DUP2, source, number) for number, source in enumerate(sources)]
    try:
        with fresh_pid_namespace():
            return os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", str(program)], {}, file_actions=actions, setsigmask=[])
    finally:
        for source in sources:
            os.close(source)


def become_subreaper() -> None:
    """Make this process the parent of orphans below it: a restored tree whose CRIU has ended becomes its child. Raises `OSError`."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def _unshare(kinds: int) -> None:
    _check(_libc.unshare(kinds))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
