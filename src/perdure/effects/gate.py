"""The gate between a ledger's transactions and a checkpoint of their process. Called by `sqlite`.

A process that is brought back in the middle of a transaction on a file would go on with pages of then. Where `perdure run` keeps the
workload, a file lies beside the epoch file: who is in a transaction holds it shared, who is about to freeze the workload holds it alone for
that moment. Without the file, nobody freezes anybody, and nothing is asked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from perdure.effects.epoch import EPOCH_FILE

SUFFIX = ".gate"
"""Behind the epoch file's name; the same word stands in `perdure.supervisor`."""


@contextlib.contextmanager
def passed() -> Iterator[None]:
    """Wait while this process is about to be frozen, and keep it from being frozen while the block runs."""
    epoch_file = os.environ.get(EPOCH_FILE)
    descriptor = _open(epoch_file + SUFFIX) if epoch_file else None
    if descriptor is None:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
