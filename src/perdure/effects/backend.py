"""What a ledger asks of the place where its rows lie. `sqlite` and `postgres` keep this contract; one test suite runs on both.

All rules are in `machine`; a backend stores rows, one transaction at a time, durably.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from perdure.effects.epoch import Life
from perdure.effects.rows import Row, State

Answer = TypeVar("Answer")

LOCK_WAIT_S = 5.0
"""How long one transaction waits for another's: they take milliseconds, so that longer means that something is stuck."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What a transaction sees."""

    row: Row | None
    highest: int | None
    """The newest epoch that was seen of the caller's workload; None: none, or no workload."""
    now_s: float
    """Seconds since 1970 by the ledger's clock."""


Change = Callable[[Seen], tuple[Row | None, Answer]]
"""Decides inside a transaction: the row to write (None: leave it) and the answer. May raise: then nothing is written.

It may be called more than once, so it has no effects of its own.
"""


class Backend(Protocol):
    """A ledger's storage. Every method may be called from any thread, and in a forked child.

    Each raises `errors.LedgerUnavailable` when the ledger does not answer or has no room, `errors.LedgerLocked` when it is
    locked for longer than `LOCK_WAIT_S`, `errors.LedgerCorrupt`, `errors.LedgerSchema`, `errors.LedgerMissing`, or another
    `errors.LedgerError`. A method that raises may or may not have written: callers repeat it, which changes nothing where it had.
    """

    def transact(self, key: str, life: Life | None, change: Change[Answer]) -> Answer:
        """Let `change` decide on the row of `key`, alone with it, and return its answer.

        When this returns, what was written survives the end of the process and a loss of power. A `life` newer than the
        highest that was seen becomes the highest.
        """
        ...

    def read(self, key: str) -> tuple[Row | None, float]:
        """Return the row of `key`, and the ledger's clock."""
        ...

    def rows(self, *, done: bool = True) -> Iterator[Row]:
        """Yield the rows (or only those that are not done), ordered by key, without holding a lock between them."""
        ...

    def count(self) -> dict[State, int]:
        """Count the rows by recorded state."""
        ...

    def prune(self, before_s: float, *, dry_run: bool) -> int:
        """Delete done and not-done rows that last changed, and messages that were sent, before `before_s` (since 1970).

        Returns how many.
        """
        ...

    def now_s(self) -> float:
        """Return the ledger's clock, seconds since 1970."""
        ...

    def twin(self) -> Backend:
        """Return another one for the same ledger, to be used beside this one without waiting for it."""
        ...

    def close(self) -> None:
        """Let go of everything that is held; a later call opens it again."""
        ...

    def __str__(self) -> str:
        """Name the place, without a password."""
        ...
