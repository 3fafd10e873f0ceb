"""What a dumped tree has open, from ``files.img``. Called by preflight before a restore and by whoever describes a checkpoint.

Source of the format: images/fdinfo.proto of CRIU 4 and the messages that it includes. A kind that is not known here is `Other`: nothing
is left out.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.images import container, wire

_KINDS = {
    1: "regular",
    2: "pipe",
    3: "fifo",
    4: "inet",
    5: "unix",
    6: "eventfd",
    7: "epoll",
    8: "inotify",
    9: "signalfd",
    10: "packet",
    11: "tty",
    12: "fanotify",
    13: "netlink",
    14: "namespace",
    15: "tun",
    16: "external",
    17: "timerfd",
    18: "memfd",
    19: "bpfmap",
    20: "pidfd",
}
_REGULAR, _INET, _TIMERFD, _PIPE, _TTY = 3, 4, 12, 18, 19
_TCP_STATES = {1: "established", 7: "closed", 8: "close-wait", 10: "listen"}
_LONGEST_NAME = 1 << 16


class RegularFile(msgspec.Struct, frozen=True, tag=True):
    """A regular file, directory or device opened by name."""

    id: int
    name: str
    """Absolute; CRIU leaves out the first slash in the image."""
    flags: int
    position: int
    size_bytes: int | None
    """What CRIU insists on at the restore; None where it does not look (a file opened for append, a directory)."""
    mode: int | None


class Pipe(msgspec.Struct, frozen=True, tag=True):
    """One end of a pipe; both ends have the same `pipe_id`."""

    id: int
    pipe_id: int
    flags: int


class Terminal(msgspec.Struct, frozen=True, tag=True):
    """A descriptor of a terminal; `terminal_id` is the terminal's."""

    id: int
    terminal_id: int
    flags: int


class Timer(msgspec.Struct, frozen=True, tag=True):
    """A timerfd."""

    id: int
    clock: int
    ticks: int
    """Expiries that were not read."""
    set_flags: int
    value_ns: int
    interval_ns: int


class Inet(msgspec.Struct, frozen=True, tag=True):
    """A socket of IPv4 or IPv6."""

    id: int
    inode: int
    family: int
    kind: int
    """SOCK_STREAM, SOCK_DGRAM…"""
    protocol: int
    state: str
    local: tuple[str, int]
    remote: tuple[str, int]


class Other(msgspec.Struct, frozen=True, tag=True):
    """Anything else, by CRIU's word for its kind, or its number where that is new."""

    id: int
    kind: str


OpenFile = RegularFile | Pipe | Terminal | Timer | Inet | Other


def parse(text: bytes) -> tuple[OpenFile, ...]:
    """Return what the text of a ``files.img`` lists, in its order. Raises `errors.InputFormat`."""
    return tuple(_one(wire.parse(entry)) for entry in container.parse(text, container.FILES).entries)


def of(images: Path) -> tuple[OpenFile, ...]:
    """Return what the tree in the folder `images` has open. Raises `errors.InputMissing` and `errors.InputFormat`."""
    return parse(container.content(images / "files.img"))


def is_written(file: RegularFile) -> bool:
    """Tell whether `file` was opened for writing."""
    return file.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR) and not file.flags & os.O_PATH


def _one(entry: tuple[wire.Field, ...]) -> OpenFile:
    number, file_id = wire.number(entry, 1), wire.number(entry, 2)
    kind = _KINDS.get(number, str(number))
    makers = {
        "regular": (_REGULAR, _regular),
        "inet": (_INET, _inet),
        "timerfd": (_TIMERFD, _timer),
        "pipe": (_PIPE, _pipe),
        "tty": (_TTY, _tty),
    }
    if kind in makers:
        field, make = makers[kind]
        inner = wire.content(entry, field)
        if inner is not None:
            return make(file_id, wire.parse(inner))
    return Other(file_id, kind)


def _regular(file_id: int, inner: tuple[wire.Field, ...]) -> OpenFile:
    name = wire.content(inner, 6) or b""
    if len(name) > _LONGEST_NAME:
        raise errors.InputFormat("a file name in files.img is longer than any can be")
    present = {field.number for field in inner}
    return RegularFile(
        id=file_id,
        name="/" + os.fsdecode(name).lstrip("/"),
        flags=wire.number(inner, 2),
        position=wire.number(inner, 3),
        size_bytes=wire.number(inner, 8) if 8 in present else None,
        mode=wire.number(inner, 10) if 10 in present else None,
    )


def _pipe(file_id: int, inner: tuple[wire.Field, ...]) -> OpenFile:
    return Pipe(id=file_id, pipe_id=wire.number(inner, 2), flags=wire.number(inner, 3))


def _tty(file_id: int, inner: tuple[wire.Field, ...]) -> OpenFile:
    return Terminal(id=file_id, terminal_id=wire.number(inner, 2), flags=wire.number(inner, 3))


def _timer(file_id: int, inner: tuple[wire.Field, ...]) -> OpenFile:
    return Timer(
        id=file_id,
        clock=wire.number(inner, 4),
        ticks=wire.number(inner, 5),
        set_flags=wire.number(inner, 6),
        value_ns=wire.number(inner, 7) * 1_000_000_000 + wire.number(inner, 8),
        interval_ns=wire.number(inner, 9) * 1_000_000_000 + wire.number(inner, 10),
    )


def _inet(file_id: int, inner: tuple[wire.Field, ...]) -> OpenFile:
    family = wire.number(inner, 3)
    state = wire.number(inner, 6)
    return Inet(
        id=file_id,
        inode=wire.number(inner, 2),
        family=family,
        kind=wire.number(inner, 4),
        protocol=wire.number(inner, 5),
        state=_TCP_STATES.get(state, str(state)),
        local=(_address(family, wire.numbers(inner, 11)), wire.number(inner, 7)),
        remote=(_address(family, wire.numbers(inner, 12)), wire.number(inner, 8)),
    )


def _address(family: int, words: tuple[int, ...]) -> str:
    count = 4 if family == socket.AF_INET6 else 1
    if len(words) != count or any(word >> 32 for word in words):
        return ""
    return socket.inet_ntop(socket.AF_INET6 if count == 4 else socket.AF_INET, struct.pack(f"={count}I", *words))
