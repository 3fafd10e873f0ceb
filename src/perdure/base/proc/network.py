"""Sockets of the network namespace of a process. Called by preflight and the dump, to name connections and listening ports."""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import Literal

import msgspec

from perdure.base.proc import reading

Protocol = Literal["tcp", "tcp6", "udp", "udp6"]

_STATES = {
    1: "established",
    2: "syn-sent",
    3: "syn-received",
    4: "fin-wait-1",
    5: "fin-wait-2",
    6: "time-wait",
    7: "closed",
    8: "close-wait",
    9: "last-ack",
    10: "listen",
    11: "closing",
    12: "new-syn-received",
}
_UNIX_ROW = re.compile(rb"[0-9a-fA-F]+: ([0-9A-F]{8}) ([0-9A-F]{8}) ([0-9A-F]{8}) ([0-9A-F]{4}) ([0-9A-F]{2}) +(\d+)(?: (.*))?")
_UNIX_ACCEPTING = 0x10000  # __SO_ACCEPTCON


class Inet(msgspec.Struct, frozen=True):
    """A TCP or UDP socket. An `inode` of 0 belongs to no descriptor (a connection in time-wait)."""

    protocol: Protocol
    local: tuple[str, int]
    remote: tuple[str, int]
    state: str
    """``listen``, ``established``…; for UDP ``established`` is connected and ``closed`` is not."""
    uid: int
    inode: int


class Unix(msgspec.Struct, frozen=True):
    """A Unix socket. `path` starts with ``@`` when it is abstract; None: unbound, or two rows claim to be this inode."""

    inode: int
    kind: Literal["stream", "datagram", "seqpacket", "other"]
    listening: bool
    connected: bool
    path: str | None


def parse_address(text: str) -> tuple[str, int]:
    """Read ``0100007F:1F90``: 32-bit words in the byte order of the machine, then the port."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, packed), int(port, 16)


def parse_inet(text: bytes, protocol: Protocol) -> tuple[Inet, ...]:
    """Read the text of /proc/PID/net/tcp and its likes."""
    found: list[Inet] = []
    for line in text.decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        if len(words) >= 10:
            found.append(
                Inet(
                    protocol=protocol,
                    local=parse_address(words[1]),
                    remote=parse_address(words[2]),
                    state=_STATES.get(int(words[3], 16), "unknown"),
                    uid=int(words[7]),
                    inode=int(words[9]),
                )
            )
    return tuple(found)


def parse_unix(text: bytes) -> dict[int, Unix]:
    """Read the text of /proc/PID/net/unix, by inode.

    The kernel writes paths there as they are, so a path with a line end in it can forge rows. What is not shaped like a row is left out,
    and an inode that is claimed twice has its path withheld.
    """
    kinds: dict[int, Literal["stream", "datagram", "seqpacket", "other"]] = {1: "stream", 2: "datagram", 5: "seqpacket"}
    found: dict[int, Unix] = {}
    for line in text.split(b"\n")[1:]:
        row = _UNIX_ROW.fullmatch(line)
        if not row:
            continue
        inode = int(row[6])
        path = os.fsdecode(row[7]) if row[7] else None
        if inode in found:
            found[inode] = msgspec.structs.replace(found[inode], path=None)
            continue
        found[inode] = Unix(
            inode=inode,
            kind=kinds.get(int(row[4], 16), "other"),
            listening=bool(int(row[3], 16) & _UNIX_ACCEPTING),
            connected=int(row[5], 16) == 3,
            path=path,
        )
    return found


def inet(pid: int) -> tuple[Inet, ...]:
    """Return all TCP and UDP sockets of the network namespace of process `pid`. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    found: list[Inet] = []
    protocols: tuple[Protocol, ...] = ("tcp", "tcp6", "udp", "udp6")
    for protocol in protocols:
        # A kernel without IPv6 has no tcp6.
        if os.path.exists(f"/proc/{pid}/net/{protocol}"):
            found.extend(parse_inet(reading.content(pid, f"net/{protocol}"), protocol))
    reading.content(pid, "stat")
    return tuple(found)


def unix(pid: int) -> dict[int, Unix]:
    """Return all Unix sockets of the network namespace of process `pid`, by inode. Raises `errors.ProcessGone`."""
    return parse_unix(reading.content(pid, "net/unix"))
