"""Hold off the steps and transactions of a workload's ledgers while it is frozen. Called by `engine`.

The other side is `perdure.effects.gate`. A workload whose step goes on for longer is frozen all the same; then the look at the freeze
(`outputs.ledgers`) decides whether it may be saved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from perdure.base import files

GATE, TURNSTILE = ".gate", ".turnstile"
_LONGEST_S = 2.0
"""A transaction takes milliseconds and a request about a second. A step that takes longer goes on in what is brought back."""
_GLANCE_S = 0.001


def make(epoch_file: Path) -> None:
    """Lay gate and turnstile beside `epoch_file`, once: processes of the workload may have them open. Raises `errors.OutputError`."""
    for suffix in (GATE, TURNSTILE):
        path = beside(epoch_file, suffix)
        if not path.exists():
            files.write_bytes(path, b"", mode=0o644)


def beside(epoch_file: Path, suffix: str) -> Path:
    """Return the path of the gate or turnstile."""
    return epoch_file.with_name(epoch_file.name + suffix)


@contextlib.contextmanager
def shut(epoch_file: Path) -> Iterator[bool]:
    """Keep new steps and transactions out while the block runs, and wait for those within. Yields whether none is within."""
    with contextlib.ExitStack() as stack:
        end = time.monotonic() + _LONGEST_S
        # In this order: whoever holds the turnstile, or waits there, is not within yet.
        yield all(_take(stack, beside(epoch_file, suffix), end) for suffix in (TURNSTILE, GATE))


def _take(stack: contextlib.ExitStack, path: Path, end: float) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    stack.callback(os.close, descriptor)
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(_GLANCE_S)
        else:
            return True
