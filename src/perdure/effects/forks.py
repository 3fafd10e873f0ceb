"""Forks of a process that uses a ledger, as data loaders make them. Called by `beats`, `sqlite` and `postgres`.

A forked child has only the thread that forked: a lock that another thread held at that moment, in Python, SQLite or libpq, is
held for ever in it. So a fork waits until no other thread is in a transaction, and afterwards the child's copies let go of
their parent's connections and threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Protocol

_LONGEST_WAIT_S = 10.0  # twice what a transaction waits for a lock: a fork is never held up for good


class Forkable(Protocol):
    """Something that a forked child must not go on with."""

    def after_fork(self) -> None:
        """Let go, in the child, of what is its parent's. No other thread runs."""
        ...


class _Gate:
    """Transactions pass one beside the other; a fork waits for those of other threads and keeps new ones out."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside: dict[int, int] = {}

    def others(self) -> bool:
        return any(thread != threading.get_ident() for thread in self.inside)


_gate = _Gate()
_known: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register(thing: Forkable) -> None:
    """Have `thing.after_fork` called in forked children, as long as it lives."""
    _known.add(thing)


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """Hold off forks by other threads while the block runs."""
    gate, me = _gate, threading.get_ident()
    with gate.changed:
        gate.inside[me] = gate.inside.get(me, 0) + 1
    try:
        yield
    finally:
        with gate.changed:
            gate.inside[me] -= 1
            if not gate.inside[me]:
                del gate.inside[me]
            gate.changed.notify_all()


def _before() -> None:
    _gate.changed.acquire()  # given back after the fork
    end_s = time.monotonic() + _LONGEST_WAIT_S
    while _gate.others() and (left_s := end_s - time.monotonic()) > 0:
        _gate.changed.wait(left_s)


def _after_in_parent() -> None:
    _gate.changed.release()


def _after_in_child() -> None:
    global _gate  # noqa: PLW0603  # the parent's threads are not here to leave it
    _gate = _Gate()
    for thing in list(_known):
        thing.after_fork()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
