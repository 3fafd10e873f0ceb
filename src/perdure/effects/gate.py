"""The gate between the steps of a process and its being frozen. Called by `steps`, `beats` and `sqlite`.

A process that is brought back in the middle of a step would act again although it acted after it was saved; one brought back in the middle
of a transaction on a file would go on with pages of then. Where `perdure run` keeps the workload, two files lie beside the epoch file. Who
is in a step or a transaction holds the gate shared. Who is about to freeze the workload takes the turnstile before it, so that nobody new
comes in, and waits at the gate for those within; not for long, since a step may take hours. Without the files nobody freezes anybody, and
nothing is asked.

A process holds the gate once, for as long as anything in it is within: what begins meanwhile does not queue at the turnstile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Hashable, Iterator

from perdure.effects.epoch import EPOCH_FILE

GATE, TURNSTILE = ".gate", ".turnstile"
"""Behind the epoch file's name; the same words stand in `perdure.supervisor`."""


class _Within:
    """What of this process is within, and the descriptor that holds the gate for all of it."""

    def __init__(self) -> None:
        self.changed = threading.Lock()
        self.names: set[Hashable] = set()
        self.descriptor: int | None = None


_within = _Within()


def enter(name: Hashable) -> None:
    """Go in under `name`, once; wait while this process is about to be frozen."""
    within = _within
    with within.changed:
        if not within.names:
            within.descriptor = _pass(os.environ.get(EPOCH_FILE))
        within.names.add(name)


def leave(name: Hashable) -> None:
    """Come out again; nothing happens to one that is not within."""
    within = _within
    with within.changed:
        within.names.discard(name)
        if not within.names and within.descriptor is not None:
            os.close(within.descriptor)
            within.descriptor = None


@contextlib.contextmanager
def passed() -> Iterator[None]:
    """Be within while the block runs."""
    name = object()
    enter(name)
    try:
        yield
    finally:
        leave(name)


def _pass(epoch_file: str | None) -> int | None:
    """Go through the turnstile and return a descriptor that holds the gate; None: there is none."""
    turnstile = _open(epoch_file + TURNSTILE) if epoch_file else None
    if turnstile is None or epoch_file is None:
        return None
    try:
        fcntl.flock(turnstile, fcntl.LOCK_SH)
        gate = _open(epoch_file + GATE)
        if gate is not None:
            fcntl.flock(gate, fcntl.LOCK_SH)
        return gate
    finally:
        os.close(turnstile)


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None


def _begin_anew() -> None:
    """A forked child is in none of its parent's steps, and must not hold the gate for them."""
    global _within  # noqa: PLW0603 - the child's only chance: its parent's other threads may hold the lock for ever
    if _within.descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(_within.descriptor)
    _within = _Within()


os.register_at_fork(after_in_child=_begin_anew)
