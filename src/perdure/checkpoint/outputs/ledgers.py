"""Ledgers of effects among a workload's files: the one kind of file that must never go back. Called by the
supervisor at the freeze, and by `trees`.

A ledger (`perdure.effects`, an SQLite file) says what was done outside. Brought back to a checkpoint it would forget what was done after
it, and the resumed workload would do it again. Between transactions a workload has no ledger open; a checkpoint in the middle of one
would bring back a process that writes pages of then into a file of now. So a ledger is left out of what is included, and a checkpoint
waits until the transaction, of some milliseconds, is over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from perdure import errors
from perdure.base import linkless, text
from perdure.base.proc import descriptors

_ID = b"perf"
"""SQLite's application id of a ledger, as `perdure.effects.sqlite` writes it; held together by a test."""
_ID_OFFSET = 68  # https://www.sqlite.org/fileformat2.html, 1.3: four bytes, big-endian
_MAGIC = b"SQLite format 3\0"

JOURNAL = "-journal"


def is_ledger(descriptor: int) -> bool:
    """Tell whether the readable file `descriptor` is a ledger."""
    head = os.pread(descriptor, _ID_OFFSET + len(_ID), 0)
    return head.startswith(_MAGIC) and head[_ID_OFFSET:] == _ID


def is_journal(folder: int, name: str) -> bool:
    """Tell whether `name` in the folder of that descriptor is the journal of a ledger beside it."""
    if not name.endswith(JOURNAL):
        return False
    try:
        descriptor = linkless.open_regular(folder, name.removesuffix(JOURNAL))
    except errors.InputError:
        return False
    try:
        return is_ledger(descriptor)
    finally:
        os.close(descriptor)


def in_use(pids: Iterable[int]) -> str | None:
    """Return the path of a ledger that one of the processes `pids` has open: it is in a transaction. None: there is none."""
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            for each in descriptors.of(pid):
                if each.is_regular and each.is_writable and each.is_path and _leads_to_ledger(pid, each.number):
                    return each.target
    return None


def refuse(pids: Iterable[int]) -> None:
    """Raise `errors.CheckpointLater` when one of the processes `pids`, which stand still, is in a transaction of a ledger."""
    path = in_use(pids)
    if path is not None:
        raise errors.CheckpointLater(
            f"the workload is in a transaction of its ledger {text.printable(path)}",
            hint="try again: a transaction takes some milliseconds",
        )


def _leads_to_ledger(pid: int, number: int) -> bool:
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return is_ledger(descriptor)
    finally:
        os.close(descriptor)
