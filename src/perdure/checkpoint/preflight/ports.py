"""Ports that a workload listens on and somebody else holds. Called by `restore`."""

from __future__ import annotations

import os
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
        host, _, port = wanted.local.rpartition(":")
        host = host.strip("[]")
        for by in here:
            same = by.protocol[:3] == wanted.protocol[:3] and str(by.local[1]) == port and by.local[1] != 0
            if same and _binds(by.protocol, by.state) and (host == by.local[0] or host in _ANY or by.local[0] in _ANY):
                yield wanted, by
                break


def _binds(protocol: str, state: str) -> bool:
    return state == "listen" if protocol.startswith("tcp") else state == "closed"
