"""Act on the file system as an ordinary user, in one thread of a root process. Called by whoever touches a path that a user chose.

The kernel judges every path by the calling thread's file system ids. With another user's, a thread has that user's rights and none of
root's over files, while the rest of what root may do stays. The C library would change all threads at once where it can; these are the
kernel's own calls, which change one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import sys
import threading
from collections.abc import Iterator
from typing import Protocol

from perdure import errors

_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81, "riscv64": 159, "s390x": 206}
_KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "riscv64": 219, "s390x": 280}
_JOIN_SESSION_KEYRING = 1
_ASKED = ctypes.c_uint32(-1)
"""An id that no process can have: setting it changes nothing and tells what is set."""

_libc = ctypes.CDLL(None, use_errno=True)


class User(Protocol):
    """Whom to act as: `model.checkpoint.Owner` is one."""

    @property
    def uid(self) -> int:
        """User id."""
        ...

    @property
    def gid(self) -> int:
        """Group id."""
        ...

    @property
    def groups(self) -> tuple[int, ...]:
        """Supplementary groups."""
        ...


class _Ids:
    """What the kernel judges a thread's accesses to files by."""

    def __init__(self, uid: int, gid: int, groups: tuple[int, ...]) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups


class _Before(threading.local):
    """What this thread was, outermost first, before it acted for somebody."""

    def __init__(self) -> None:
        self.ids: list[_Ids] = []


_before = _Before()


@contextlib.contextmanager
def as_owner(owner: User | None) -> Iterator[None]:
    """Let this thread's accesses to files be those of `owner` while the block runs; None: nothing changes.

    What was opened before stays usable. May be nested: the inner one holds. A process that cannot come back to its own ids ends at once,
    since it would go on as somebody else. No program may be started inside: it would keep the groups.

    Raises `errors.EnvironmentUnfit` where this process may not act for others, or on a machine whose calls are not known.
    """
    if owner is None:
        yield
        return
    with _as(_Ids(owner.uid, owner.gid, tuple(owner.groups))):
        yield


@contextlib.contextmanager
def as_self() -> Iterator[None]:
    """Give this thread its own rights over files back while the block runs, inside `as_owner`; elsewhere nothing changes."""
    if not _before.ids:
        yield
        return
    with _as(_before.ids[0]):
        yield


def uid() -> int:
    """Return the id of the user that this thread's accesses to files are those of: what it makes is that user's."""
    return _ask(_libc.setfsuid)


def reopen(way: str, owner: User | None) -> int:
    """Open for reading the very file that `way`, a link below /proc, leads to, as `owner` may (None: as this process); its descriptor.

    The link itself is root's to follow: that shows nothing. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    if owner is None:
        return os.open(way, flags)
    held = os.open(way, os.O_PATH | os.O_CLOEXEC)
    try:
        with as_owner(owner):
            return os.open(f"/proc/self/fd/{held}", flags)
    finally:
        os.close(held)


def leave_keyring() -> None:
    """Give this process, and all it starts from now on, an empty session keyring: a keyring's keys can be read by whoever runs in it.

    A kernel without keyrings, or that does not let us, has none to give away.
    """
    number = _KEYCTL.get(platform.machine())
    if number is not None:
        _libc.syscall(number, _JOIN_SESSION_KEYRING, None)


@contextlib.contextmanager
def _as(wanted: _Ids) -> Iterator[None]:
    before = _Ids(_ask(_libc.setfsuid), _ask(_libc.setfsgid), tuple(os.getgroups()))
    _before.ids.append(before)
    try:
        _become(wanted)
        yield
    finally:
        _before.ids.pop()
        try:
            _become(before)
        except errors.EnvironmentUnfit as error:
            sys.stderr.write(f"perdure: cannot come back from another user's rights: {error}\n")
            os.abort()


def _become(wanted: _Ids) -> None:
    _set_groups(wanted.groups)
    for change, number in ((_libc.setfsgid, wanted.gid), (_libc.setfsuid, wanted.uid)):
        change(ctypes.c_uint32(number))
        if _ask(change) != number:
            raise errors.EnvironmentUnfit(f"may not act as user {wanted.uid} with group {wanted.gid}", hint="run this as root")


def _ask(change: ctypes._NamedFuncPointer) -> int:
    return int(change(_ASKED)) & 0xFFFFFFFF


def _set_groups(groups: tuple[int, ...]) -> None:
    if groups == tuple(os.getgroups()):
        return
    number = _SETGROUPS.get(platform.machine())
    if number is None:
        raise errors.EnvironmentUnfit(f"how to act for another user is not known on {platform.machine()}")
    wanted = (ctypes.c_uint32 * max(len(groups), 1))(*groups)
    if _libc.syscall(number, ctypes.c_size_t(len(groups)), wanted) != 0:
        reason = os.strerror(ctypes.get_errno() or errno.EPERM)
        raise errors.EnvironmentUnfit(f"may not take on the groups of another user: {reason}", hint="run this as root")
