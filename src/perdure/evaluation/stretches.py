"""Stretches of useful work, and the checkpoints that disturb them, found among the events of a run. Called by `course`. Pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator

import msgspec

from perdure.model.evaluation import Event, EventKind, FaultKind

AT_ONCE = frozenset({FaultKind.KILL, FaultKind.KILL_TREE, FaultKind.NODE_LOST, FaultKind.HANG})
"""Faults that end all work in the instant they strike. After the others the workload may work on, and be saved, until it is found gone:
a checkpoint that is committed within the grace of a preemption counts."""
NEW_LIFE = frozenset({EventKind.LAUNCHED, EventKind.RESTARTED, EventKind.RESTORED})
"""Events that begin a life."""
SIGNALS = frozenset({EventKind.PROGRESS, EventKind.USEFUL})
"""Events that say how far the workload is, where they have a value."""


class Stretch(msgspec.Struct, frozen=True):
    """Useful work between two signals of progress of one life, no fault between them."""

    life: int
    start_s: float
    end_s: float
    start: float
    """Counter at `start_s`."""
    end: float
    stopped_s: float = 0.0
    """Time in it during which the workload stood still for a checkpoint."""
    disturbed: bool = False
    """A checkpoint was in progress during part of it."""
    known: bool = True
    """How long it stood still is measured; else all of a checkpoint that failed or does not say counts as standing still."""

    @property
    def working_s(self) -> float:
        """Time in it during which the workload could work."""
        return max(0.0, self.end_s - self.start_s - self.stopped_s)

    def between(self, low: float, high: float) -> Stretch | None:
        """Return the part of it in which the counter went from `low` to `high`, evenly, or None."""
        first, last = max(self.start, low), min(self.end, high)
        return self._part((first - self.start) / (self.end - self.start), (last - self.start) / (self.end - self.start))

    def after(self, at_s: float) -> Stretch | None:
        """Return the part of it after `at_s`, or None."""
        return self._part(max(0.0, (at_s - self.start_s) / (self.end_s - self.start_s)), 1.0)

    def _part(self, first: float, last: float) -> Stretch | None:
        if first >= last:
            return None
        long, far = self.end_s - self.start_s, self.end - self.start
        return msgspec.structs.replace(
            self,
            start_s=self.start_s + first * long,
            end_s=self.start_s + last * long,
            start=self.start + first * far,
            end=self.start + last * far,
            stopped_s=self.stopped_s * (last - first),
        )


class Checkpoint(msgspec.Struct, frozen=True):
    """One checkpoint of Perdure's, from its begin to its end; without an end it failed or was broken off."""

    begun_s: float
    done: Event | None
    end_s: float
    """When it was over, done or not."""

    @property
    def stopped_s(self) -> float | None:
        """How long the workload stood still for it, None when it was not recorded."""
        return number(self.done, "stopped_s")


def find(events: tuple[Event, ...], checkpoints: tuple[Checkpoint, ...]) -> Iterator[Stretch]:
    """Yield the stretches of useful work; `events` and `checkpoints` are by time.

    Signals that were read at once were said before: the last of them tells how far the work was when they were read.
    """
    past = 0
    for life, signals in enumerate(_lives(events)):
        for first, second in itertools.pairwise(signals):
            if second.value is None or first.value is None or second.value <= first.value:
                continue
            while past < len(checkpoints) and checkpoints[past].end_s < first.at_s:
                past += 1
            near = itertools.takewhile(functools.partial(_has_begun, second.at_s), itertools.islice(checkpoints, past, None))
            yield _stretch(life, first, second, near)


def _lives(events: tuple[Event, ...]) -> Iterator[list[Event]]:
    """Yield the signals of each life, and of what is left of it after a fault: of each instant the last."""
    signals: list[Event] = []
    for event in events:
        if event.kind in NEW_LIFE or event.kind is EventKind.FAULT_INJECTED:
            yield signals
            signals = []
        elif event.kind in SIGNALS and event.value is not None:
            if signals and signals[-1].at_s == event.at_s:
                signals.pop()
            signals.append(event)
    yield signals


def _has_begun(at_s: float, checkpoint: Checkpoint) -> bool:
    return checkpoint.begun_s <= at_s


def _stretch(life: int, first: Event, second: Event, near: Iterable[Checkpoint]) -> Stretch:
    stopped_s, disturbed, known = 0.0, False, True
    for each in near:
        overlap_s = min(each.end_s, second.at_s) - max(each.begun_s, first.at_s)
        if overlap_s < 0 or (overlap_s == 0 and each.end_s > each.begun_s):
            continue
        disturbed, known = True, known and each.stopped_s is not None
        long_s = each.end_s - each.begun_s
        stood_s = long_s if each.stopped_s is None else each.stopped_s
        stopped_s += min(stood_s, long_s) * (overlap_s / long_s if long_s > 0 else 0.0)
    return Stretch(life, first.at_s, second.at_s, first.value or 0.0, second.value or 0.0, stopped_s, disturbed, known)


def find_checkpoints(events: tuple[Event, ...], end_s: float) -> Iterator[Checkpoint]:
    """Yield the checkpoints of a run that ended at `end_s`; `events` are by time."""
    begun: Event | None = None
    for event in events:
        if event.kind is EventKind.CHECKPOINT_BEGUN:
            if begun is not None:
                yield Checkpoint(begun.at_s, None, event.at_s)
            begun = event
        elif event.kind is EventKind.CHECKPOINT_DONE and (begun is not None or "failed" not in event.data):
            # A log that tells only of the end still tells how long the workload stood still before it.
            begun_s = begun.at_s if begun is not None else event.at_s - (number(event, "stopped_s") or 0.0)
            yield Checkpoint(begun_s, None if "failed" in event.data else event, event.at_s)
            begun = None
        elif event.kind is EventKind.FAULT_INJECTED and begun is not None and kind_of(event) in AT_ONCE:
            yield Checkpoint(begun.at_s, None, event.at_s)
            begun = None
    if begun is not None:
        yield Checkpoint(begun.at_s, None, end_s)


def number(event: Event | None, key: str) -> float | None:
    """Return a number that an event carries, None when it carries none of that name."""
    value = None if event is None else event.data.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def kind_of(fault: Event) -> FaultKind | None:
    """Return which fault an event is about, None when it does not say so in words of ours."""
    try:
        return FaultKind(fault.data.get("kind", ""))
    except ValueError:
        return None
