"""Who is at the other end of a connection, by what the kernel says. Called by the agent's server and its workers.

User, group and groups are those that the other process had when it connected. The process itself is held by a pidfd: a PID alone may
belong to another process by the time it is looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.model.checkpoint import Owner

_SO_PEERGROUPS = 59
_SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("iII")
_MOST_GROUPS = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The process that connected."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """Its supplementary groups, ascending."""
    pid: int
    """By our PID namespace; 0: it is in none that we see."""
    pidfd: int | None
    """None: it is gone, or not to be seen from here. To be closed by whoever has it."""

    @property
    def owner(self) -> Owner:
        """As what its workloads run."""
        return Owner(uid=self.uid, gid=self.gid, groups=self.groups)


def identify(connection: socket.socket) -> Caller:
    """Return who is at the other end of `connection`, just accepted. Raises OSError when nobody is any more."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Caller(uid=uid, gid=gid, groups=_groups(connection), pid=pid, pidfd=_hold(connection, pid, uid) if pid > 0 else None)


def is_alive(pidfd: int) -> bool:
    """Tell whether the process of `pidfd` has not ended: then its PID is still its own."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the peer's supplementary groups: up to 65,536, for which Python's getsockopt has no room."""
    found = (ctypes.c_uint32 * _MOST_GROUPS)()
    size = ctypes.c_uint32(ctypes.sizeof(found))
    if _libc.getsockopt(connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, found, ctypes.byref(size)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return tuple(sorted(set(found[: size.value // ctypes.sizeof(ctypes.c_uint32)])))


def _hold(connection: socket.socket, pid: int, uid: int) -> int | None:
    with contextlib.suppress(OSError):
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    # Before Linux 6.5: the PID may be another process's by now. One of the same user, with the connection still open, is as good.
    with contextlib.suppress(OSError, errors.ProcessGone, errors.InputDenied):
        descriptor = os.pidfd_open(pid)
        if set(process.status(pid).uids) == {uid} and is_alive(descriptor):
            return descriptor
        os.close(descriptor)
    return None
