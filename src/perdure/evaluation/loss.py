"""Work lost to an interruption: compute between the last recoverable point and the fault. Called by `measures`. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from perdure.evaluation import recovery
from perdure.evaluation.course import Course, Interruption
from perdure.model.evaluation import EventKind, Point, Unmeasured

INCLUDES = (
    "the counter at the fault less the recoverable counter, times the seconds that this run needed for one unit, times nodes or GPUs. "
    "Recoverable is, unmanaged, the job's start or the application's own last checkpoint; managed, the last Perdure checkpoint that was "
    "committed before. Exact to one signal of progress"
)


def points(course: Course) -> Iterator[Point | Unmeasured]:
    """Yield the hours of GPUs (or nodes, see `Course.unit`) that each interruption of a run destroyed, or the reason why it cannot be said.

    Parts: counters ``at_fault`` and ``recoverable`` (and ``claimed``, where the workload came back further behind than a checkpoint had
    promised), ``pace_s`` per unit, ``lost_s``, ``node_hours``, ``gpu_hours``, ``after`` 1 for Perdure's checkpoint, 0 else.
    """
    run = course.run
    if not course.interruptions:
        yield Unmeasured(run.id, run.arm, run.pair, "no-fault", "no fault was injected")
    pace_s = course.pace_s()
    for each in course.interruptions:
        at_fault = course.counter_at(each.gone_s)
        lack = recovery.unrecovered(each) or recovery.incomparable(each) or _lack(each, at_fault, pace_s)
        if lack is not None:
            yield Unmeasured(run.id, run.arm, run.pair, *lack, each.kind)
        elif at_fault is not None and pace_s is not None:
            yield _point(course, each, at_fault, pace_s)


def _lack(each: Interruption, at_fault: float | None, pace_s: float | None) -> tuple[str, str] | None:
    if at_fault is None:
        return "no-progress", f"the fault at {each.fault.at_s:.1f} s met a workload that had signalled no progress since its start"
    if pace_s is None:
        return "no-pace", "no life of this run signalled progress twice but beside checkpoints never done: its pace cannot be told"
    return None


def _point(course: Course, each: Interruption, at_fault: float, pace_s: float) -> Point:
    run = course.run
    claimed, _ = course.recoverable_at(each.gone_s)
    recoverable, source = came_back_to(course, each)
    lost_s = max(0.0, at_fault - recoverable) * pace_s
    parts = {
        "at_fault": at_fault,
        "recoverable": recoverable,
        "pace_s": pace_s,
        "lost_s": lost_s,
        "node_hours": lost_s * run.nodes / 3600,
        "gpu_hours": lost_s * run.gpus / 3600,
        "after": float(source == "perdure"),
    }
    if recoverable != claimed:
        parts["claimed"] = claimed
    return Point(run.id, run.arm, run.pair, lost_s * course.size / 3600, parts, fault=each.kind, index=each.index)


def came_back_to(course: Course, each: Interruption) -> tuple[float, str]:
    """Return the counter from which the workload went on, and whence it was: ``perdure``, ``own``, ``start``, or ``earlier``.

    It is the recoverable point, unless the first signals of the new life show that it went further back: a point that was said to be
    recoverable and from which nothing was recovered was none.
    """
    claimed, source = course.recoverable_at(each.gone_s)
    first = each.useful.value if each.useful is not None else None
    if first is None:
        first = _next_signal(course, each)
    if first is None or first >= claimed:
        return claimed, source
    start = course.start_counter if first >= course.start_counter else 0.0
    counter = max(start, first - _resolution(course))
    return counter, "start" if counter == start else "earlier"


def _next_signal(course: Course, each: Interruption) -> float | None:
    since_s = each.gone_s if each.useful is None else each.useful.at_s
    return next(
        (event.value for event in course.events if event.kind is EventKind.PROGRESS and event.at_s >= since_s and event.value is not None),
        None,
    )


def _resolution(course: Course) -> float:
    """Return how far the counter goes from one signal to the next, in the middle of all."""
    return statistics.median([each.end - each.start for each in course.stretches]) if course.stretches else 0.0
