"""INET sockets of a tree, for the manifest: a restore names what it closes, and needs the ports that listen. Quick: for the freeze."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from perdure import errors
from perdure.base.proc import network, reading
from perdure.checkpoint.preflight.sockets import address
from perdure.model.checkpoint import Connection

_SOCKET = re.compile(r"socket:\[(\d+)\]")


def record(pids: Iterable[int]) -> tuple[Connection, ...]:
    """Return the INET sockets that processes `pids` have open, by protocol and local address. They share a network namespace.

    Raises `errors.InputDenied`.
    """
    found: set[int] = set()
    tables: tuple[network.Inet, ...] = ()
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            found |= _inodes(pid)
            tables = tables or network.inet(pid)
    ours = [socket for socket in tables if socket.inode in found]
    ends = {(socket.protocol[:3], socket.local, socket.remote) for socket in ours if socket.state != "listen"}
    return tuple(
        Connection(
            protocol=socket.protocol,
            state=socket.state,
            local=address(socket.local),
            remote=address(socket.remote),
            inode=socket.inode,
            inside=(socket.protocol[:3], socket.remote, socket.local) in ends,
        )
        for socket in sorted(ours, key=lambda one: (one.protocol, one.local, one.remote))
    )


def _inodes(pid: int) -> set[int]:
    found = set()
    with reading.of_process(pid):
        names = os.listdir(f"/proc/{pid}/fd")
    for name in names:
        with contextlib.suppress(OSError):
            shown = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
            if shown:
                found.add(int(shown[1]))
    return found
