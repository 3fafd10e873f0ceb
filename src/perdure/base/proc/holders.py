"""Which process has a file open. Called before a file is replaced that somebody may be using."""

from __future__ import annotations

import contextlib
import os

from perdure import errors
from perdure.base.proc import descriptors, mappings, process, reading


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
