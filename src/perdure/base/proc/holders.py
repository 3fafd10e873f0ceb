"""Which process has a file open. Called before a file is changed or replaced that somebody may be using."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator

import msgspec

from perdure import errors
from perdure.base.proc import descriptors, mappings, process, reading

_SHARED_WRITABLE = re.compile(rb"^\S+ .w.s \S+ \S+ (\d+)", re.MULTILINE)
"""The inode number in a line of maps whose pages go to the file when they are written."""

File = tuple[int, int]
"""Device and inode, as stat(2) tells them."""


class Writer(msgspec.Struct, frozen=True):
    """A process that may write to a file."""

    pid: int
    command: str
    is_append: bool
    """All that it writes goes to the end."""


def writers(wanted: Collection[File], *, besides: Collection[int]) -> dict[File, tuple[Writer, ...]]:
    """Return the living processes, but those of `besides`, that have any file of `wanted` open for writing, or mapped so, by file.

    A process that we may not look into is passed over: without root there are such.
    """
    found: dict[File, tuple[Writer, ...]] = {}
    for pid in process.pids() if wanted else ():
        if pid not in besides:
            with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
                appends: dict[File, bool] = {}
                for file, is_append in _written(pid, wanted):
                    appends[file] = appends.get(file, True) and is_append
                command = process.stat(pid).command if appends else ""
                for file, is_append in appends.items():
                    found[file] = (*found.get(file, ()), Writer(pid, command, is_append))
    return found


def _written(pid: int, wanted: Collection[File]) -> Iterator[tuple[File, bool]]:
    """Yield which files of `wanted` the process can write to, and whether to their end alone."""
    for number in descriptors.numbers(pid):
        with contextlib.suppress(OSError):
            there = os.stat(f"/proc/{pid}/fd/{number}")
            if (there.st_dev, there.st_ino) not in wanted:
                continue
            opened = descriptors.one(pid, number)
            if opened is not None and opened.is_writable:
                yield (opened.device, opened.inode), opened.is_append
    inodes = {inode for _, inode in wanted}
    if inodes.isdisjoint(map(int, _SHARED_WRITABLE.findall(reading.content(pid, "maps")))):
        return
    for mapping in mappings.of(pid):
        mapped = mappings.file_of(pid, mapping) if mapping.is_shared_writable and mapping.is_file else None
        if mapped is not None and (mapped.st_dev, mapped.st_ino) in wanted:
            yield (mapped.st_dev, mapped.st_ino), False


def of(there: os.stat_result) -> int | None:
    """Return the PID of a living process that has the file of `there` open or mapped; None if there is none.

    A process that we may not look into is passed over: without root there are such.
    """
    for pid in process.pids():
        with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
            if _has(pid, there):
                return pid
    return None


def _has(pid: int, there: os.stat_result) -> bool:
    wanted = (there.st_dev, there.st_ino)
    for number in descriptors.numbers(pid):
        # Most descriptors of a machine lead elsewhere: nothing more is read of them than this.
        with contextlib.suppress(OSError):
            found = os.stat(f"/proc/{pid}/fd/{number}")
            if (found.st_dev, found.st_ino) == wanted:
                return True
    if b" %d " % there.st_ino not in reading.content(pid, "maps"):
        return False
    for mapping in mappings.of(pid):
        mapped = mappings.file_of(pid, mapping) if mapping.inode == there.st_ino and mapping.is_file else None
        if mapped is not None and (mapped.st_dev, mapped.st_ino) == wanted:
            return True
    return False
