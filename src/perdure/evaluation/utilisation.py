"""Utilisation at the level of the job: the share of allocated hours that ended in delivered work. Called by `measures`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.evaluation.course import Course
from perdure.evaluation.stretches import Stretch, number
from perdure.model.evaluation import EventKind, Point, Unmeasured

UNIT = "share"
INCLUDES = (
    "hours of useful work that were delivered, of all hours from the launch (after the warm-up that the plan leaves out) to the end of the "
    "run, waits in a queue between allocations left out. Delivered is what the finished work stands on, or, where the workload did not "
    "finish, what its last checkpoint keeps; what was computed again counts as lost although the device was busy"
)


class Hours(msgspec.Struct, frozen=True, kw_only=True):
    """Where the seconds of an allocation went. All but `allocated_s` add up to it."""

    allocated_s: float
    delivered_s: float
    recomputed_s: float
    """Useful in its time, and then destroyed."""
    checkpoints_s: float
    """The workload stood still for a checkpoint."""
    down_s: float
    """From a fault to useful work."""
    other_s: float
    """Start, shutdown, and waits of the workload's own."""


def points(course: Course) -> Iterator[Point | Unmeasured]:
    """Yield the utilisation of a run, 0 to 1, or the reason why it cannot be said.

    Parts are hours of GPUs (or nodes): ``allocated`` and its shares ``delivered recomputed checkpoints down other``; and
    ``device``, 0 to 1, how busy the device was, where the run's end tells.
    """
    run = course.run
    spent = split(course)
    if isinstance(spent, str):
        code = "no-end" if course.ended is None or course.launched is None else "no-progress"
        yield Unmeasured(run.id, run.arm, run.pair, code, spent)
        return
    parts = {name.removesuffix("_s"): value * course.size / 3600 for name, value in msgspec.structs.asdict(spent).items()}
    device = number(course.ended, "device_utilisation")
    if device is not None:
        parts["device"] = device
    yield Point(run.id, run.arm, run.pair, spent.delivered_s / spent.allocated_s, parts)


def split(course: Course) -> Hours | str:
    """Return where the time of a run went, or the reason why that cannot be said."""
    if course.launched is None or course.ended is None or course.steady_from_s is None:
        return "its launch or its end was not recorded"
    from_s, to_s = course.steady_from_s, course.ended.at_s
    allocated_s = to_s - from_s - _queued_s(course, from_s)
    if allocated_s <= 0:
        return f"it ended within its warm-up of {course.run.warm_up_s:g} s"
    if not course.stretches:
        return "no life of it signalled progress twice"
    delivered_s, worked_s, stopped_s = 0.0, 0.0, 0.0
    for stretch, limit in zip(course.stretches, _limits(course), strict=True):
        part = stretch.after(from_s)
        if part is None:
            continue
        worked_s += part.working_s
        stopped_s += part.stopped_s
        kept = part.between(part.start, limit)
        delivered_s += 0.0 if kept is None else kept.working_s
    down_s = _down_s(course, from_s, to_s)
    return Hours(
        allocated_s=allocated_s,
        delivered_s=delivered_s,
        recomputed_s=worked_s - delivered_s,
        checkpoints_s=stopped_s,
        down_s=down_s,
        other_s=allocated_s - worked_s - stopped_s - down_s,
    )


def _limits(course: Course) -> list[float]:
    """Return, for each stretch, the counter up to which its work still stands at the end of the run.

    A life that begins again at a lower counter undoes what earlier lives computed above it.
    """
    limits: list[float] = []
    limit = _delivered(course)
    following: Stretch | None = None
    for stretch in reversed(course.stretches):
        if following is not None and following.life != stretch.life:
            limit = min(limit, following.start)
        limits.append(limit)
        following = stretch
    return limits[::-1]


def _delivered(course: Course) -> float:
    """Return the counter up to which the work is delivered: all of it when finished, else what the last checkpoint keeps."""
    if course.completed:
        return float("inf")
    end_s = course.events[-1].at_s
    return course.recoverable_at(end_s)[0]


def _queued_s(course: Course, from_s: float) -> float:
    return sum(number(event, "queued_s") or 0.0 for event in course.events if event.kind is EventKind.RESTARTED and event.at_s >= from_s)


def _down_s(course: Course, from_s: float, to_s: float) -> float:
    """Return the seconds that were spent in interruptions; two that overlap count once."""
    total_s, until_s = 0.0, from_s
    for each in course.interruptions:
        if not each.interrupted:
            continue
        end_s = min(to_s, to_s if each.useful is None else each.useful.at_s)
        total_s += max(0.0, end_s - max(each.gone_s, until_s))
        until_s = max(until_s, end_s)
    return max(0.0, total_s - _queued_s(course, from_s))
