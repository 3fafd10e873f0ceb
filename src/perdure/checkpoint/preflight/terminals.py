"""Pseudo terminals that a tree has both sides of: each has to get its number again. Called at the freeze, and by `restore`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from perdure import errors
from perdure.base.proc import descriptors
from perdure.checkpoint.preflight import about, devices


def record(pids: Iterable[int]) -> tuple[int, ...]:
    """Return the numbers of the pseudo terminals whose master processes `pids` hold, ascending. Raises `errors.InputDenied`."""
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            for number in descriptors.numbers(pid):
                with contextlib.suppress(OSError):
                    if os.stat(f"/proc/{pid}/fd/{number}").st_rdev != devices.PTMX:
                        continue
                opened = descriptors.one(pid, number)
                index = about.line(opened, "tty-index") if opened is not None else None
                if index is not None:
                    found.add(int(index))
    return tuple(sorted(found))


def taken(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return those of `numbers` that somebody has here."""
    return tuple(number for number in numbers if os.path.exists(f"/dev/pts/{number}"))
