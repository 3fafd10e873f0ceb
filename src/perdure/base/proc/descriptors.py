"""The open descriptors of a process: what they lead to, and how they are open. Called by preflight, output files and carried files."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.base.proc import reading

MAX_INFO_BYTES = 1 << 20
"""Longest fdinfo that is read: an inotify or epoll descriptor lists a line a watch."""


class Info(msgspec.Struct, frozen=True):
    """What /proc/PID/fdinfo/N says of every descriptor."""

    position: int
    flags: int
    """open(2) flags, with O_CLOEXEC where it is set."""
    mount: int
    """Id of the mount in mountinfo; 0 where the kernel shows none."""
    rest: str
    """The other lines as they are: locks, timers, watches."""


class Descriptor(msgspec.Struct, frozen=True):
    """One open descriptor."""

    number: int
    target: str
    """What it leads to: a path, ``pipe:[123]``, ``socket:[123]``, ``anon_inode:[eventpoll]``, ``/memfd:name``."""
    deleted: bool
    """The path is no name of the file any more (it is shown without the kernel's `` (deleted)``)."""
    device: int
    inode: int
    mode: int
    """Type and permissions, as in stat(2)."""
    links: int
    size_bytes: int
    info: Info

    @property
    def is_regular(self) -> bool:
        """Tell whether it is a regular file (one in memory without a name, as of memfd_create, too)."""
        return modes.S_ISREG(self.mode)

    @property
    def is_writable(self) -> bool:
        """Tell whether it was opened for writing."""
        return self.info.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR) and not self.info.flags & os.O_PATH

    @property
    def is_append(self) -> bool:
        """Tell whether every write goes to the end."""
        return bool(self.info.flags & os.O_APPEND)

    @property
    def is_path(self) -> bool:
        """Tell whether `target` is a path that can be looked up: not a pipe, a socket, an anonymous inode or a memfd."""
        return self.target.startswith("/") and not self.target.startswith("/memfd:")


def parse_info(text: bytes) -> Info:
    """Read the text of /proc/PID/fdinfo/N."""
    position = flags = mount = 0
    rest: list[str] = []
    for line in text.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"pos":
            position = int(value)
        elif name == b"flags":
            flags = int(value, 8)
        elif name == b"mnt_id":
            mount = int(value)
        elif line:
            rest.append(os.fsdecode(line))
    return Info(position, flags, mount, "\n".join(rest))


def numbers(pid: int) -> tuple[int, ...]:
    """Return the descriptor numbers of process `pid`, ascending. Raises `errors.ProcessGone` and `errors.InputDenied`."""
    with reading.of_process(pid):
        return tuple(sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd")))


def one(pid: int, number: int, root: str = "") -> Descriptor | None:
    """Return descriptor `number` of process `pid`, or None when it has been closed or the process is gone.

    `root` is what `reading.root_for` returned. Raises `errors.InputDenied`.
    """
    try:
        shown = reading.link(pid, f"fd/{number}")
        with reading.of_process(pid):
            there = os.stat(f"/proc/{pid}/fd/{number}")
        info = parse_info(reading.content(pid, f"fdinfo/{number}", limit_bytes=MAX_INFO_BYTES))
    except errors.ProcessGone:
        return None
    target, deleted = reading.told_apart(shown, root, there.st_dev, there.st_ino) if shown.startswith("/") else (shown, False)
    return Descriptor(
        number=number,
        target=target,
        deleted=deleted,
        device=there.st_dev,
        inode=there.st_ino,
        mode=there.st_mode,
        links=there.st_nlink,
        size_bytes=there.st_size,
        info=info,
    )


def of(pid: int) -> Iterator[Descriptor]:
    """Yield the open descriptors of process `pid` in the order of their numbers; those closed meanwhile are left out.

    Raises `errors.ProcessGone` and `errors.InputDenied`.
    """
    listed = numbers(pid)
    # A zombie has no descriptors and has left its mount namespace.
    root = reading.root_for(pid) if listed else ""
    for number in listed:
        found = one(pid, number, root)
        if found is not None:
            yield found
