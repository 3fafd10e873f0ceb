"""Who is at the other end: peers of Unix sockets, holders of pipes outside the tree, sockets with data under way. Called by `scene`."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.base.proc import process, reading

_SOCK_DIAG, _DIAG_BY_FAMILY = 4, 20
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_SHOW_PEER_AND_QUEUE = 0x4 | 0x8  # UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS
_UNIX_DIAG_PEER, _UNIX_DIAG_ICONS = 2, 3
_REPLY_BYTES = 1 << 18
_WAIT_S = 5


class Holder(msgspec.Struct, frozen=True):
    """A process outside the tree that has something open."""

    pid: int
    fd: int
    writes: bool
    reads: bool


def is_device(mode: int) -> bool:
    """Tell whether `mode` is that of a character or block device."""
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)


def holders_outside(inside: frozenset[int], targets: frozenset[str]) -> dict[str, tuple[Holder, ...]]:
    """Return who outside `inside` has one of `targets` open, by target. Processes that may not be looked into are passed over."""
    found: dict[str, list[Holder]] = {}
    if not targets:
        return {}
    for pid in process.pids():
        if pid in inside:
            continue
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target in targets:
                    mode = os.lstat(f"/proc/{pid}/fd/{name}").st_mode
                    found.setdefault(target, []).append(
                        Holder(pid, int(name), writes=bool(mode & stat.S_IWUSR), reads=bool(mode & stat.S_IRUSR))
                    )
    return {target: tuple(holders) for target, holders in found.items()}


def unix_peers() -> dict[int, int]:
    """Return the other end of each connected Unix socket of this network namespace, by inode.

    One that nobody has accepted yet has its listener for a peer. Empty where the kernel has no such diagnosis.
    """
    request = struct.pack(
        "=IHHIIBBHIIIII", 40, _DIAG_BY_FAMILY, _DUMP, 1, 0, socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER_AND_QUEUE, 0, 0
    )
    peers: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
            asked.settimeout(_WAIT_S)
            asked.send(request)
            ended = False
            while not ended:
                more, ended = parse_unix_diagnosis(asked.recv(_REPLY_BYTES))
                peers.update(more)
    except OSError:
        return peers
    return peers


def parse_unix_diagnosis(reply: bytes) -> tuple[dict[int, int], bool]:
    """Read the kernel's answers in `reply`: the peers that they tell, and whether nothing more will come."""
    peers: dict[int, int] = {}
    at = 0
    while at + 16 <= len(reply):
        length, kind = struct.unpack_from("=IH", reply, at)
        if kind in (_NLMSG_ERROR, _NLMSG_DONE) or length < 32 or at + length > len(reply):
            return peers, True
        inode = struct.unpack_from("=I", reply, at + 20)[0]
        for attribute, numbers in _attributes(reply, at + 32, at + length):
            if attribute == _UNIX_DIAG_PEER and numbers[0]:
                peers[inode] = numbers[0]
            elif attribute == _UNIX_DIAG_ICONS:
                peers.update({waiting: inode for waiting in numbers if waiting})
        at += (length + 3) & ~3
    return peers, not reply


def _attributes(reply: bytes, start: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    while start + 4 <= end:
        size, attribute = struct.unpack_from("=HH", reply, start)
        if size < 4 or start + size > end:
            return
        count = (size - 4) // 4
        if attribute in (_UNIX_DIAG_PEER, _UNIX_DIAG_ICONS) and count:
            yield attribute, struct.unpack_from(f"={count}I", reply, start + 4)
        start += (size + 3) & ~3


def pending_netlink(pid: int) -> frozenset[int]:
    """Return the inodes of netlink sockets, of the network namespace of `pid`, that hold unread messages."""
    found = set()
    for words in _rows(pid, "netlink"):
        if len(words) >= 10 and words[4].isdigit() and int(words[4]) > 0 and words[9].isdigit():
            found.add(int(words[9]))
    return frozenset(found)


def corked_datagrams(pid: int) -> frozenset[int]:
    """Return the inodes of UDP sockets, of the network namespace of `pid`, with data that is not sent yet."""
    found = set()
    for name in ("udp", "udp6"):
        for words in _rows(pid, name):
            waiting, _, _ = words[4].partition(":") if len(words) >= 10 else ("0", "", "")
            if int(waiting, 16) > 0:
                found.add(int(words[9]))
    return frozenset(found)


def _rows(pid: int, name: str) -> Iterator[list[str]]:
    try:
        text = reading.content(pid, f"net/{name}")
    except errors.ProcessGone:
        return
    for line in text.decode("ascii", "replace").splitlines()[1:]:
        yield line.split()
