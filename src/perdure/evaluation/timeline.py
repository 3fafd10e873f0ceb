"""What happened after each fault, on both sides: fault, detection, restart, restore, useful work, and what was computed again.

Called by `report`. Pure: runs in, one `Timeline` a fault out, read by the same `course` as the measures. All times are seconds from the
fault.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.evaluation import course
from perdure.evaluation.course import Course, Interruption
from perdure.model.evaluation import Arm, Event, EventKind, Run

_SIGNALS = (EventKind.PROGRESS, EventKind.USEFUL)


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One fault and what followed. None: it did not happen, or nobody saw it."""

    run: str
    arm: Arm
    pair: int
    number: int
    """Which fault of its run, from 1: the same in both arms of a pair."""
    fault: str
    at_s: float
    """When it was injected, in the run's own clock."""
    counter: float | None
    """The workload's counter when it went down."""
    recoverable: float
    """The counter that survived."""
    source: str
    """What kept that point: ``own``, ``perdure`` or ``start``."""
    detected_s: float | None
    restarted_s: float | None
    how: str
    """``start``, ``restore``, or empty when nothing was started again."""
    restored_s: float | None
    """When the engine said that it runs; of a restore."""
    useful_s: float | None
    """End of the recovery time."""
    caught_up_s: float | None
    """When the counter stood where the fault had found it: until then work is computed again."""
    observed_s: float
    """How long it was watched: to the end of its run."""
    interrupted: bool
    """The workload went down by it; some faults do not touch it."""

    @property
    def recomputed_s(self) -> float | None:
        """Seconds of work that was done a second time; None when it did not catch up."""
        return None if self.caught_up_s is None or self.useful_s is None else max(0.0, self.caught_up_s - self.useful_s)


def of_runs(runs: Iterable[Run]) -> tuple[Timeline, ...]:
    """Return the timelines of all faults in the two arms, by pair, fault and side, unmanaged first. Other runs have none."""
    found = [each for run in runs if run.purpose == "arms" for each in of_run(run)]
    return tuple(sorted(found, key=lambda one: (one.pair, one.number, one.arm is Arm.MANAGED, one.run)))


def of_run(run: Run) -> tuple[Timeline, ...]:
    """Return a timeline for each fault that was injected in `run`, in order."""
    read = course.read(run)
    return tuple(_timeline(read, each) for each in read.interruptions)


def _timeline(read: Course, one: Interruption) -> Timeline:
    counter = read.counter_at(one.gone_s)
    recoverable, source = read.recoverable_at(one.gone_s)
    restored = one.up if one.up is not None and one.up.kind is EventKind.RESTORED else None
    how = "" if one.restarted is None else str(one.restarted.data.get("how", "start"))
    return Timeline(
        run=read.run.id,
        arm=read.run.arm,
        pair=read.run.pair,
        number=one.index + 1,
        fault=one.kind.value if one.kind is not None else str(one.fault.data.get("kind", "not said")),
        at_s=one.fault.at_s,
        counter=counter,
        recoverable=recoverable,
        source=source,
        detected_s=_since(one.fault, one.detected),
        restarted_s=_since(one.fault, one.restarted),
        how=how,
        restored_s=_since(one.fault, restored),
        useful_s=_since(one.fault, one.useful),
        caught_up_s=_caught_up(read, one, counter),
        observed_s=max(0.0, read.events[-1].at_s - one.fault.at_s),
        interrupted=one.interrupted,
    )


def _caught_up(read: Course, one: Interruption, counter: float | None) -> float | None:
    """When the counter reached again what it had been, counted from the first useful sign; a workload that ended well did so by its end."""
    if one.useful is None or counter is None:
        return None
    for event in read.events:
        if event.at_s < one.useful.at_s:
            continue
        reached = event.kind in _SIGNALS and event.value is not None and event.value >= counter
        if reached or (event.kind is EventKind.ENDED and read.completed):
            return event.at_s - one.fault.at_s
    return None


def _since(fault: Event, event: Event | None) -> float | None:
    return None if event is None else event.at_s - fault.at_s
