"""What holds connections still during a dump: tables of nftables that CRIU makes and, when it is killed, leaves behind.

A table that stays drops the workload's packets for ever and makes each later dump slower. Called by `run` after CRIU was killed, and
by whoever gives a workload up after a dump that kept its connections (`release` with the dump's run id). Only tables of the network
namespace of the caller are seen; those of a namespace of the workload go away with it.
"""

from __future__ import annotations

import contextlib
import socket
import struct

NAME = "CRIU-"
"""What the names of CRIU's tables begin with; the beginning of the dump's run id follows."""

_NETLINK_NETFILTER = 12
_NFTABLES = 10
_NEW_TABLE, _GET_TABLE, _DELETE_TABLE = (_NFTABLES << 8 | number for number in range(3))
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_ERROR, _DONE = 2, 3
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_INET = 1
_TABLE_NAME = 1
_MAX_ANSWER = 1 << 16


def tables() -> tuple[str, ...]:
    """Return the names of CRIU's tables in this network namespace; empty where the kernel has no nftables or does not let us look."""
    found: list[str] = []
    with contextlib.suppress(OSError), _connect() as link:
        link.send(_message(_GET_TABLE, _REQUEST | _DUMP, _INET))
        while True:
            for kind, body in _messages(link.recv(_MAX_ANSWER)):
                if kind in (_ERROR, _DONE):
                    return tuple(found)
                if kind == _NEW_TABLE:
                    found += [name for name in [_name(body)] if name.startswith(NAME)]
    return tuple(found)


def release(run_id: str) -> tuple[str, ...]:
    """Remove the tables of the dump with this run id (`run.Result.run_id`) and return their names. Without effect when there are none.

    Packets that were dropped until now are sent again by TCP itself.
    """
    if len(run_id) < 8:
        return ()  # too short to name one dump
    # CRIU cuts the name off.
    mine = tuple(name for name in tables() if (NAME + run_id).startswith(name) and len(name) > len(NAME) + 8)
    with contextlib.suppress(OSError), _connect() as link:
        for name in mine:
            text = name.encode() + b"\0"
            attribute = struct.pack("=HH", 4 + len(text), _TABLE_NAME) + text + bytes(-len(text) % 4)
            link.send(
                _message(_BATCH_BEGIN, _REQUEST, 0, resource=_NFTABLES)
                + _message(_DELETE_TABLE, _REQUEST | _ACK, _INET, attribute)
                + _message(_BATCH_END, _REQUEST, 0, resource=_NFTABLES)
            )
            link.recv(_MAX_ANSWER)
    return mine


def _connect() -> socket.socket:
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    link.settimeout(2.0)
    link.bind((0, 0))
    return link


def _message(kind: int, flags: int, family: int, attributes: bytes = b"", *, resource: int = 0) -> bytes:
    body = struct.pack("=BB", family, 0) + struct.pack(">H", resource) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body


def _messages(answer: bytes) -> list[tuple[int, bytes]]:
    found = []
    at = 0
    while at + 16 <= len(answer):
        length, kind = struct.unpack_from("=IH", answer, at)
        if length < 16:
            break
        found.append((kind, answer[at + 16 : at + length]))
        at += length + 3 & ~3
    return found


def _name(body: bytes) -> str:
    at = 4
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            break
        if kind == _TABLE_NAME:
            return body[at + 4 : at + length].rstrip(b"\0").decode("ascii", "replace")
        at += length + 3 & ~3
    return ""
