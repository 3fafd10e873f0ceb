"""One run as it is written down while it goes on: a journal that survives a kill of the harness, and at the end a `Run`.

Called by `conduct`, `recover` and `harness`. The journal lies in the run's own folder: the run's head, without events, on its first line,
then an event a line. It is written before anything is started, and each event when it happens, so that whoever finds a journal without a
line in `runs.jsonl` knows all that the broken run went through.

A counter may signal thousands of times a second. All signals decide, but between two other events they are written at no more than ten
instants a second, the first and the last of each, and always the first and the last of all.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import linkless
from perdure.evaluation import lines
from perdure.model.evaluation import Event, EventKind, Run

JOURNAL = "journal.jsonl"
_APART_S = 0.1
_FEW = 16
"""Events are written nearly in order: the newest is among the last few."""
_REMEMBERED = 100_000
"""Signals of progress that are kept to tell which counter a checkpoint holds: it is told of its end, seconds or minutes after."""


class Glimpse(msgspec.Struct, frozen=True):
    """How far a run is."""

    run_id: str
    counter: float | None
    faults: int


class Recorder:
    """Writes the journal of one run. `head` is the run without events; times are seconds of the evaluation's clock."""

    def __init__(self, place: Path, head: Run) -> None:
        self._head = head
        self._events: list[Event] = []
        self._signals: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._faults = 0
        self._pending: Event | None = None
        self._written_s = -float("inf")
        self._guard = threading.Lock()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._journal = os.open(place / JOURNAL, flags, 0o600)
        except OSError as error:
            raise errors.OutputError(f"cannot write {place / JOURNAL}: {error.strerror}") from error
        self._write(msgspec.json.encode(head))
        os.fsync(self._journal)

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._head.id

    @property
    def last_s(self) -> float:
        """Time of the newest event or signal."""
        with self._guard:
            newest = [
                *(event.at_s for event in self._events[-_FEW:]),
                *(at_s for at_s, _ in ([self._signals[-1]] if self._signals else [])),
            ]
            return max(newest, default=-float("inf"))

    def glimpse(self) -> Glimpse:
        """Return how far the run is."""
        with self._guard:
            return Glimpse(self._head.id, self._signals[-1][1] if self._signals else None, self._faults)

    def signal(self, at_s: float, counter: float) -> None:
        """The workload's counter was seen at `counter`."""
        with self._guard:
            self._signals.append((at_s, counter))
            event = Event(at_s, EventKind.PROGRESS, counter)
            if self._pending is not None and self._pending.at_s == self._written_s < at_s:
                self._flush()  # of what was read at once, the last says how far the work was
            if at_s - self._written_s < _APART_S:
                self._pending = event
            else:
                self._keep(event)

    def event(self, event: Event) -> None:
        """Something else happened."""
        with self._guard:
            self._flush()
            self._keep(event)
            self._written_s = -float("inf")

    def signals(self, begin_s: float, end_s: float) -> tuple[tuple[float, float], ...]:
        """Return times and counters of the signals between two times, and of the one before them."""
        with self._guard:
            found: deque[tuple[float, float]] = deque()
            for signal in reversed(self._signals):
                if signal[0] <= end_s:
                    found.appendleft(signal)
                if signal[0] <= begin_s:
                    break
            return tuple(found)

    def close(self, *, finished: bool) -> Run:
        """Return the run with its events by time; those of one instant as they were written."""
        with self._guard:
            self._flush()
            os.close(self._journal)
            return msgspec.structs.replace(self._head, events=_ordered(self._events), finished=finished)

    def _flush(self) -> None:
        if self._pending is not None:
            self._keep(self._pending)

    def _keep(self, event: Event) -> None:
        self._pending = None
        if event.kind is EventKind.PROGRESS:
            self._written_s = event.at_s
        self._faults += event.kind is EventKind.FAULT_INJECTED
        self._events.append(event)
        self._write(msgspec.json.encode(event))

    def _write(self, line: bytes) -> None:
        left = memoryview(line + b"\n")
        try:
            while left:
                left = left[os.write(self._journal, left) :]
        except OSError as error:
            raise errors.OutputError(
                f"cannot write the journal of {self._head.id}: {error.strerror}", hint="free some space; what was measured is kept"
            ) from error


def read(place: Path) -> Run | None:
    """Return the run that the journal in folder `place` tells of, as one that was broken off; None when nothing had begun.

    A last line that is torn is left out. Raises `errors.InputFormat` for a journal that is none, and what reading raises.
    """
    with lines.entered(place) as folder:
        try:
            descriptor = linkless.open_regular(folder, JOURNAL)
        except errors.InputMissing:
            return None
        with open(descriptor, "rb") as handle:
            content = handle.read()
    whole = content[: content.rfind(b"\n") + 1].splitlines()
    if not whole:
        return None
    try:
        head = msgspec.json.decode(whole[0], type=Run)
        events = [msgspec.json.decode(line, type=Event) for line in whole[1:]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.InputFormat(f"{place / JOURNAL} is no journal of a run: {error}", hint="put a copy of it back") from error
    return msgspec.structs.replace(head, events=_ordered(events), finished=False)


def _ordered(events: list[Event]) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda event: event.at_s))
