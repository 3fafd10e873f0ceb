"""Hold off the transactions of a workload's ledgers while it is frozen. Called by `engine`.

The other side is `perdure.effects.gate`: each transaction holds the file shared. A workload whose processes never give it up is frozen all
the same; then the look at the freeze (`outputs.ledgers`) decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.base import files

SUFFIX = ".gate"
_LONGEST_S = 5.0
"""A transaction takes milliseconds, and five seconds at most when another process holds the ledger."""
_GLANCE_S = 0.001


def make(epoch_file: Path) -> None:
    """Lay the gate beside `epoch_file`, once: processes of the workload may have it open. Raises `errors.OutputError`."""
    path = path_beside(epoch_file)
    if not path.exists():
        files.write_bytes(path, b"", mode=0o644)


def path_beside(epoch_file: Path) -> Path:
    """Return the gate's path."""
    return epoch_file.with_name(epoch_file.name + SUFFIX)


@contextlib.contextmanager
def shut(epoch_file: Path) -> Iterator[bool]:
    """Keep new transactions out while the block runs, and wait for those within. Yields whether that worked."""
    try:
        descriptor = os.open(path_beside(epoch_file), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        yield _take(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    end = time.monotonic() + _LONGEST_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_GLANCE_S)
        else:
            return True
