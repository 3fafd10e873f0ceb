"""Ports that a workload listens on and somebody else, or nobody any more, holds. Called by `restore` and by supervisors."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable, Iterator

import msgspec

from perdure.base.proc import network
from perdure.checkpoint.preflight import links
from perdure.model.checkpoint import Connection

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to


class Taken(msgspec.Struct, frozen=True):
    """A port that is needed and taken. `pid` is its holder where one is seen."""

    wanted: Connection
    by: network.Inet
    pid: int | None


def taken(connections: Iterable[Connection]) -> tuple[Taken, ...]:
    """Return which of the ports that `connections` listen on, or receive datagrams on, are taken in this network namespace."""
    clashes = list(clashing(connections, network.inet(os.getpid())))
    holders = links.holders_outside(frozenset(), frozenset(f"socket:[{by.inode}]" for _, by in clashes))
    return tuple(
        Taken(wanted, by, holders[f"socket:[{by.inode}]"][0].pid if f"socket:[{by.inode}]" in holders else None) for wanted, by in clashes
    )


def clashing(connections: Iterable[Connection], here: tuple[network.Inet, ...]) -> Iterator[tuple[Connection, network.Inet]]:
    """Yield each of `connections` whose port a socket of `here` holds, with that socket. Pure."""
    for wanted in connections:
        if not _binds(wanted.protocol, wanted.state):
            continue
        for by in here:
            if _binds(by.protocol, by.state) and _has_same_port(wanted, by):
                yield wanted, by
                break


def kept(connections: Iterable[Connection]) -> tuple[Connection, ...]:
    """Return which of the TCP ports that `connections` listen on nobody holds, and yet cannot be listened on in this network namespace.

    Whoever closes a connection first keeps its port for a minute, after its end too, unless it had said that the port may be used again.
    """
    wanted = [one for one in connections if one.protocol.startswith("tcp") and one.state == "listen"]
    here = network.inet(os.getpid()) if wanted else ()
    return tuple(one for one in wanted if _is_left(one, here) and not _can_be_bound(one))


def _is_left(wanted: Connection, here: tuple[network.Inet, ...]) -> bool:
    """Tell whether there are connections at that port, and all have lost their processes. Pure."""
    found = [by.inode for by in here if _has_same_port(wanted, by)]
    return bool(found) and not any(found)


def _can_be_bound(wanted: Connection) -> bool:
    """Try it as CRIU does. It is free, too, for who has said the same of it as those that had it before."""
    host, port = _place(wanted)
    try:
        with socket.socket(socket.AF_INET6 if wanted.protocol == "tcp6" else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind((host, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _place(wanted: Connection) -> tuple[str, int]:
    host, _, port = wanted.local.rpartition(":")
    return host.strip("[]"), int(port)


def _has_same_port(wanted: Connection, by: network.Inet) -> bool:
    host, port = _place(wanted)
    there = by.local[0].removeprefix("::ffff:")
    return by.protocol[:3] == wanted.protocol[:3] and by.local[1] == port != 0 and (host == there or host in _ANY or there in _ANY)


def _binds(protocol: str, state: str) -> bool:
    return state == "listen" if protocol.startswith("tcp") else state == "closed"
