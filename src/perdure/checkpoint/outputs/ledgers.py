"""Ledgers of effects among a workload's files: the one kind of file that must never go back. Called by `record` and `trees`.

A ledger (`perdure.effects`, an SQLite file) says what was done outside. Brought back to a checkpoint it would forget what was done after
it, and the resumed workload would do it again. Between transactions a workload has no ledger open; a checkpoint in the middle of one
would bring back a process that writes pages of then into a file of now. So a ledger is left out of what is included, and a checkpoint
waits until the transaction, of some milliseconds, is over.
"""

from __future__ import annotations

import os

_ID = b"perf"
"""SQLite's application id of a ledger, as `perdure.effects.sqlite` writes it; held together by a test."""
_ID_OFFSET = 68  # https://www.sqlite.org/fileformat2.html, 1.3: four bytes, big-endian
_MAGIC = b"SQLite format 3\0"

JOURNAL = "-journal"


def is_ledger(descriptor: int) -> bool:
    """Tell whether the readable file `descriptor` is a ledger."""
    head = os.pread(descriptor, _ID_OFFSET + len(_ID), 0)
    return head.startswith(_MAGIC) and head[_ID_OFFSET:] == _ID
