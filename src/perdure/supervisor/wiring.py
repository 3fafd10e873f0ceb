"""How the workload's three streams are wired, decided from ours or from those that it was saved with. Called by `start` and `console`."""

from __future__ import annotations

import os
import stat
from typing import Literal

import msgspec

from perdure.model.checkpoint import Stream


class Plan(msgspec.Struct, frozen=True):
    """How the three streams are to be wired, decided from what ours are."""

    terminal: bool
    """Ours are a terminal: the workload gets one of its own."""
    stdin: Literal["pipe", "file", "null"]
    """``file``: ours is handed over as it is; it needs no one in between."""
    one_output: bool
    """Ours are the same file: one pipe keeps the order of what is written."""
    passed_on: bool = True
    """Our stdout and stderr want what is written; not so in the background."""


def plan(*, background: bool) -> Plan:
    """Decide from this process's descriptors 0, 1 and 2."""
    if background:
        return Plan(terminal=False, stdin="null", one_output=False, passed_on=False)
    if _is_terminal(0) and _is_terminal(1):
        return Plan(terminal=True, stdin="pipe", one_output=True)
    return Plan(terminal=False, stdin=_stdin_kind(), one_output=_are_same(1, 2))


def plan_again(saved: tuple[Stream, ...], *, background: bool) -> Plan:
    """Decide for a workload that comes back with the streams `saved`: what was a terminal stays one, and one pipe stays one pipe."""
    by_number = {stream.fd: stream for stream in saved}
    kinds = {stream.kind for stream in saved}
    first, second = by_number.get(1), by_number.get(2)
    stdin = by_number.get(0)
    return Plan(
        terminal="tty" in kinds,
        stdin="pipe" if stdin is not None and stdin.kind == "pipe" else "null",
        one_output=first is not None and second is not None and first.external is not None and first.external == second.external,
        passed_on=not background,
    )


def _stdin_kind() -> Literal["pipe", "file", "null"]:
    try:
        found = os.fstat(0)
    except OSError:
        return "null"
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3):
        return "null"
    pumped = stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or os.isatty(0)
    return "pipe" if pumped else "file"


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _are_same(first: int, second: int) -> bool:
    try:
        one, other = os.fstat(first), os.fstat(second)
    except OSError:
        return False
    return (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)


def is_open(descriptor: int) -> bool:
    """Tell whether `descriptor` leads anywhere."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
