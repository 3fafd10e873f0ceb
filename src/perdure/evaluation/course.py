"""What the events of one run say: its signals of progress, the stretches of useful work, its checkpoints and its interruptions.

Called by the measures and by the check for mistakes. Both arms are read by this code alone, so that no definition can differ between them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

AT_ONCE = frozenset({FaultKind.KILL, FaultKind.KILL_TREE, FaultKind.NODE_LOST, FaultKind.HANG})
"""Faults that end all work in the instant they strike. After the others the workload may work on, and be saved, until it is found gone:
a checkpoint that is committed within the grace of a preemption counts."""
_NEW_LIFE = frozenset({EventKind.LAUNCHED, EventKind.RESTARTED, EventKind.RESTORED})
_SIGNALS = frozenset({EventKind.PROGRESS, EventKind.USEFUL})
_DOWN = frozenset({EventKind.DETECTED, EventKind.RESTARTED, EventKind.RESTORED})


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


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and what came of it."""

    index: int
    """Of the fault in its run, from 0: the same in both arms of a pair."""
    fault: Event
    kind: FaultKind | None
    detected: Event | None
    restarted: Event | None
    """The command that led to useful work; earlier ones failed."""
    up: Event | None
    """Restored, or ready: whichever came first after the restart."""
    useful: Event | None
    gone_s: float
    """From here on no work of the struck life counts: the fault itself, or the moment when the workload was found to be gone."""
    interrupted: bool
    """The workload went down; some faults do not touch it."""


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """A run, read."""

    run: Run
    events: tuple[Event, ...]
    """By time; those of one instant as they were written."""
    stretches: tuple[Stretch, ...]
    checkpoints: tuple[Checkpoint, ...]
    interruptions: tuple[Interruption, ...]
    launched: Event | None
    ended: Event | None

    @property
    def completed(self) -> bool:
        """The workload finished its work."""
        return self.ended is not None and self.ended.data.get("completed") is True

    @property
    def size(self) -> int:
        """GPUs where it uses any, else nodes: what hours are counted of."""
        return self.run.gpus or self.run.nodes

    @property
    def unit(self) -> Literal["GPU-hours", "node-hours"]:
        """What `size` times hours is called."""
        return "GPU-hours" if self.run.gpus else "node-hours"

    @property
    def steady_from_s(self) -> float | None:
        """End of the warm-up that the plan leaves out."""
        return None if self.launched is None else self.launched.at_s + self.run.warm_up_s

    @property
    def start_counter(self) -> float:
        """Counter of a workload that starts anew."""
        return 0.0 if self.launched is None or self.launched.value is None else self.launched.value

    def pace_s(self) -> float | None:
        """Return the seconds of work for one unit of the counter, over the whole run; None where no life signalled twice."""
        timed = [each for each in self.stretches if each.known]
        far, working_s = sum(each.end - each.start for each in timed), sum(each.working_s for each in timed)
        return working_s / far if far > 0 and working_s > 0 else None

    def counter_at(self, at_s: float) -> float | None:
        """Return the last counter that the life of that time had signalled by then, None when it had signalled nothing.

        A life that begins in that very instant is the next one.
        """
        counter = None
        for event in self.events:
            if event.at_s > at_s or (event.at_s == at_s and event.kind in _NEW_LIFE):
                break
            if event.kind in _NEW_LIFE:
                counter = None
            elif event.kind in _SIGNALS and event.value is not None:
                counter = event.value
        return counter

    def recoverable_at(self, at_s: float) -> tuple[float, str]:
        """Return the counter that would survive a fault at `at_s`, and where it lies: ``perdure``, ``own`` or ``start``.

        Unmanaged: the application's own last checkpoint, else the start of the job. Managed: the last checkpoint that Perdure had
        committed, else as unmanaged.
        """
        sources = ("perdure", "own") if self.run.arm is Arm.MANAGED else ("own",)
        for source in sources:
            counter = self._last_recoverable(source, at_s)
            if counter is not None:
                return counter, source
        return self.start_counter, "start"

    def _last_recoverable(self, source: str, at_s: float) -> float | None:
        found = None
        for event in self.events:
            if event.at_s > at_s:
                break
            if event.kind is EventKind.RECOVERABLE and event.data.get("source") == source and event.value is not None:
                found = event.value
        return found


def read(run: Run) -> Course:
    """Read a run. Events need not be in order of time."""
    events = tuple(sorted(run.events, key=lambda event: event.at_s))
    end_s = events[-1].at_s if events else 0.0
    checkpoints = tuple(_checkpoints(events, end_s))
    return Course(
        run=run,
        events=events,
        stretches=tuple(_stretches(events, checkpoints)),
        checkpoints=checkpoints,
        interruptions=tuple(_interruptions(events)),
        launched=next((event for event in events if event.kind is EventKind.LAUNCHED), None),
        ended=next((event for event in reversed(events) if event.kind is EventKind.ENDED), None),
    )


def counts(run: Run) -> bool:
    """Tell whether a run of an arm counts: finished and not excluded."""
    return run.purpose == "arms" and run.finished and run.excluded is None


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


def _stretches(events: tuple[Event, ...], checkpoints: tuple[Checkpoint, ...]) -> Iterator[Stretch]:
    life, last, past = 0, None, 0
    for event in events:
        if event.kind in _NEW_LIFE or event.kind is EventKind.FAULT_INJECTED:
            life, last = life + 1, None
        elif event.kind in _SIGNALS and event.value is not None:
            if last is not None and last.value is not None and event.value > last.value and event.at_s > last.at_s:
                while past < len(checkpoints) and checkpoints[past].end_s < last.at_s:
                    past += 1
                near = itertools.takewhile(functools.partial(_has_begun, event.at_s), itertools.islice(checkpoints, past, None))
                yield _stretch(life, last, event, near)
            last = event


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


def _checkpoints(events: tuple[Event, ...], end_s: float) -> Iterator[Checkpoint]:
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


def _interruptions(events: tuple[Event, ...]) -> Iterator[Interruption]:
    places = [place for place, event in enumerate(events) if event.kind is EventKind.FAULT_INJECTED]
    for index, place in enumerate(places):
        fault, later = events[place], events[place + 1 :]
        next_fault_s = events[places[index + 1]].at_s if index + 1 < len(places) else float("inf")
        useful = _useful(later)
        # What is recorded of the same instant belongs to the recovery, in whatever order it was written.
        within = tuple(event for event in later if event is not useful and (useful is None or event.at_s <= useful.at_s))
        down = next((event for event in within if event.kind in _DOWN and event.at_s <= next_fault_s), None)
        kind = kind_of(fault)
        went_on = index + 1 < len(places) or any(event.data.get("completed") is True for event in later)
        restarted = _last(within, EventKind.RESTARTED)
        yield Interruption(
            index=index,
            fault=fault,
            kind=kind,
            detected=_first(within, EventKind.DETECTED),
            restarted=restarted,
            up=_up(within, restarted),
            useful=useful,
            gone_s=fault.at_s if kind in AT_ONCE or down is None else down.at_s,
            interrupted=down is not None or kind in AT_ONCE or not (went_on or useful is not None),
        )


def _useful(later: tuple[Event, ...]) -> Event | None:
    """Return the end of a recovery: what is recorded as such, else the first signal of a life that began after the fault."""
    recorded = _first(later, EventKind.USEFUL)
    if recorded is not None:
        return recorded
    begun = False
    for event in later:
        begun = begun or event.kind in (EventKind.RESTARTED, EventKind.RESTORED)
        if begun and event.kind is EventKind.PROGRESS:
            return event
    return None


def _up(within: tuple[Event, ...], restarted: Event | None) -> Event | None:
    since = within if restarted is None else within[within.index(restarted) :]
    return next((event for event in since if event.kind in (EventKind.RESTORED, EventKind.READY)), None)


def _first(events: tuple[Event, ...], kind: EventKind) -> Event | None:
    return next((event for event in events if event.kind is kind), None)


def _last(events: tuple[Event, ...], kind: EventKind) -> Event | None:
    return _first(events[::-1], kind)
