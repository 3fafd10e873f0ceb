"""What the events of one run say: its signals of progress, the stretches of useful work, its checkpoints and its interruptions.

Called by the measures and by the check for mistakes. Both arms are read by this code alone, so that no definition can differ between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from perdure.evaluation import stretches
from perdure.evaluation.stretches import AT_ONCE, NEW_LIFE, SIGNALS, Checkpoint, Stretch, kind_of
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

_DOWN = frozenset({EventKind.DETECTED, EventKind.RESTARTED, EventKind.RESTORED})


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

    @property
    def reached(self) -> float:
        """Highest counter that was signalled, 0 without any."""
        return max((event.value for event in self.events if event.kind is EventKind.PROGRESS and event.value is not None), default=0.0)

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
            if event.at_s > at_s or (event.at_s == at_s and event.kind in NEW_LIFE):
                break
            if event.kind in NEW_LIFE:
                counter = None
            elif event.kind in SIGNALS and event.value is not None:
                counter = event.value
        return counter

    def recoverable_at(self, at_s: float) -> tuple[float, str]:
        """Return the counter that would survive a fault at `at_s`, and where it lies: ``perdure``, ``own`` or ``start``.

        Unmanaged: the application's own last checkpoint, else the start of the job. Managed: the last checkpoint that Perdure had
        committed, else as unmanaged.
        """
        proven = self._proven_by_restore(at_s)
        if proven is not None:
            return proven, "perdure"
        sources = ("perdure", "own") if self.run.arm is Arm.MANAGED else ("own",)
        for source in sources:
            counter = self._last_recoverable(source, at_s)
            if counter is not None:
                return counter, source
        return self.start_counter, "start"

    def _proven_by_restore(self, at_s: float) -> float | None:
        """Return what the next life after `at_s` went on from, where that was told of after `at_s`; None where it started anew.

        A checkpoint may have been taken just before a fault and be durable, or told of, only after it. One of a workload that stands still
        comes back standing still: what a life went on from was taken before.
        """
        told: dict[object, float] = {}
        for event in self.events:
            if event.at_s <= at_s:
                continue
            if event.kind is EventKind.RECOVERABLE and event.data.get("source") == "perdure" and event.value is not None:
                told[event.data.get("id")] = event.value
            elif event.kind is EventKind.RESTORED:
                return told.get(str(event.data.get("from", "")).rpartition("@")[2])
            elif event.kind is EventKind.RESTARTED and event.data.get("how") == "start":
                return None
        return None

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
    checkpoints = tuple(stretches.find_checkpoints(events, end_s))
    return Course(
        run=run,
        events=events,
        stretches=tuple(stretches.find(events, checkpoints)),
        checkpoints=checkpoints,
        interruptions=tuple(_interruptions(events)),
        launched=next((event for event in events if event.kind is EventKind.LAUNCHED), None),
        ended=next((event for event in reversed(events) if event.kind is EventKind.ENDED), None),
    )


def counts(run: Run) -> bool:
    """Tell whether a run of an arm counts: finished and not excluded."""
    return run.purpose == "arms" and run.finished and run.excluded is None


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
            interrupted=not _was_done(later) and (down is not None or kind in AT_ONCE or not (went_on or useful is not None)),
        )


def _was_done(later: tuple[Event, ...]) -> bool:
    """Tell whether the life that a fault struck did all its work: the fault came when it was done already, or did it no harm."""
    end = next((event for event in later if event.kind in NEW_LIFE or event.kind is EventKind.ENDED), None)
    return end is not None and end.data.get("completed") is True


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
