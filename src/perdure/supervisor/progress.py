"""How far something is: events for programs, and for a person at a terminal one line with phase, bytes, rate and the time left.

Called by whatever takes long and says so: a restore here, a checkpoint that somebody asked for on the command line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from perdure.base import text, units
from perdure.supervisor.messages import Event

RESTORE = ("fetch", "restore", "gpu-restore", "verify")
"""Phases of a restore: read from the store, verified and unpacked; given to CRIU, memory with it or not; seen to live."""
EVERY_S = 0.2
"""Amounts are told this often at most."""


class Readout:
    """Puts what events say into one line. A rate is the mean of its phase: it counts from the first event of that."""

    def __init__(self) -> None:
        self._phase = ""
        self._began_s = 0.0

    def of(self, event: Event, now_s: float) -> str:
        """Return the line for `event`, which was heard at `now_s` by any clock that does not jump."""
        if event.phase != self._phase:
            self._phase, self._began_s = event.phase, now_s
        return text.printable(event.phase) + self._amount(event, now_s - self._began_s)

    def _amount(self, event: Event, passed_s: float) -> str:
        if not event.total_bytes or event.done_bytes is None:
            return ""
        done = f": {units.format_size(event.done_bytes)} of {units.format_size(event.total_bytes)}"
        rate = event.done_bytes / passed_s if passed_s > 0 else 0.0
        if not rate:
            return done
        left_s = max(event.total_bytes - event.done_bytes, 0) / rate
        return f"{done}, {units.format_size(rate)}/s, {units.format_duration(left_s)} left"


class Progress:
    """Tells `tell` of one phase of `workload` after another. Amounts may come from any thread; `clock` counts seconds."""

    def __init__(self, workload: str, tell: Callable[[Event], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tell_of = tell
        self._workload = workload
        self._lock = threading.Lock()
        self._phase = ""
        self._total_bytes: int | None = None
        self._done_bytes = 0
        self._told_s = 0.0

    def enter(self, phase: str, *, total_bytes: int | None = None) -> None:
        """A phase begins, in which `total_bytes` are to be done; None: nobody knows, or there is nothing to count."""
        with self._lock:
            self._phase, self._total_bytes, self._done_bytes = phase, total_bytes, 0
            self._tell()

    def reach(self, done_bytes: int) -> None:
        """So much of the phase is done, in all."""
        with self._lock:
            self._advance(done_bytes)

    def add(self, more_bytes: int) -> None:
        """So much more of the phase is done."""
        with self._lock:
            self._advance(self._done_bytes + more_bytes)

    def counted(self, parts: Iterable[Sequence[memoryview]]) -> Iterator[Sequence[memoryview]]:
        """Yield `parts`, counting each that is taken."""
        for part in parts:
            yield part
            self.add(sum(len(view) for view in part))

    def _advance(self, done_bytes: int) -> None:
        self._done_bytes = done_bytes
        if self._clock() - self._told_s >= EVERY_S:
            self._tell()

    def _tell(self) -> None:
        self._told_s = self._clock()
        amount = None if self._total_bytes is None else self._done_bytes
        event = Event(self._phase, self._workload, time.time_ns(), done_bytes=amount, total_bytes=self._total_bytes)
        self._tell_of(event)
