"""Steady-state overhead of being managed, and beside it what checkpoints cost. Called by `measures`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.evaluation.course import Course
from perdure.evaluation.stretches import Stretch
from perdure.model.evaluation import Arm, Point, Unmeasured

UNIT = "ratio"
INCLUDES = (
    "managed over unmanaged time for the same work, less one: the counters that both runs of a pair passed, each counted when it was first "
    "passed, without the warm-up, without recoveries, and without every stretch in which a checkpoint was in progress"
)
COST_UNIT = "s"
COST_INCLUDES = "the time for which the workload stood still for one checkpoint, as the engine measured it; not part of the overhead"
_NOT_TOLD = "Perdure on that node did not tell when checkpoints were in progress: it is older than the harness; see the utilisation"


class Steady(msgspec.Struct, frozen=True):
    """The undisturbed work of a run within a range of its counter."""

    pace_s: float
    """Seconds for one unit of the counter."""
    counted: float
    """Units of the counter that were timed."""


def points(unmanaged: Course, managed: Course) -> Iterator[Point | Unmeasured]:
    """Yield the overhead of one pair (0.02 is 2 %), or the reason why it cannot be said.

    Parts: ``unmanaged_s`` and ``managed_s`` for the same ``work`` (units of the counter), and the units of it that were timed on each
    side, ``unmanaged_timed`` and ``managed_timed``.
    """
    run = managed.run
    if not are_checkpoints_told(managed):
        yield Unmeasured(run.id, run.arm, run.pair, "not-told", _NOT_TOLD)
        return
    low, high = common_range(unmanaged, managed)
    before, beside = steady(unmanaged, low, high), steady(managed, low, high)
    if before is None or beside is None:
        side = Arm.UNMANAGED if before is None else Arm.MANAGED
        reason = f"the {side.value} run has no two signals of progress without a checkpoint, a fault or the warm-up between them"
        yield Unmeasured(run.id, run.arm, run.pair, "no-pace", reason)
        return
    work = high - low
    yield Point(
        run.id,
        Arm.MANAGED,
        run.pair,
        beside.pace_s / before.pace_s - 1,
        {
            "unmanaged_s": before.pace_s * work,
            "managed_s": beside.pace_s * work,
            "work": work,
            "unmanaged_timed": before.counted,
            "managed_timed": beside.counted,
        },
    )


def costs(course: Course) -> Iterator[Point | Unmeasured]:
    """Yield the seconds that each checkpoint of a run stopped the workload, with ``elapsed_s`` and the bytes that the engine told of."""
    run = course.run
    if not are_checkpoints_told(course):
        yield Unmeasured(run.id, run.arm, run.pair, "not-told", _NOT_TOLD)
    for index, each in enumerate(course.checkpoints):
        if each.done is None:
            reason = f"the checkpoint begun at {each.begun_s:.1f} s was never done"
            yield Unmeasured(run.id, run.arm, run.pair, "not-done", reason)
        elif each.stopped_s is None:
            yield Unmeasured(
                run.id, run.arm, run.pair, "no-stop", f"the checkpoint done at {each.end_s:.1f} s does not say how long it stopped"
            )
        else:
            sizes = {name: float(size) for name, size in each.done.data.items() if name.endswith("_bytes") and isinstance(size, int)}
            yield Point(run.id, run.arm, run.pair, each.stopped_s, {"elapsed_s": each.end_s - each.begun_s} | sizes, index=index)


def are_checkpoints_told(course: Course) -> bool:
    """Tell whether a run's events hold its checkpoints; those of a job whose node has an older Perdure do not."""
    return course.ended is None or course.ended.data.get("checkpoints_told") is not False


def common_range(first: Course, second: Course) -> tuple[float, float]:
    """Return the lowest and highest counter that both runs passed while warm; empty (low ≥ high) when there are none."""
    ranges = [[bound for each in _warm(course) for bound in (each.start, each.end)] for course in (first, second)]
    if not all(ranges):
        return 0.0, 0.0
    return max(min(bounds) for bounds in ranges), min(max(bounds) for bounds in ranges)


def steady(course: Course, low: float, high: float) -> Steady | None:
    """Return the pace of a run between two counters, or None where it has no undisturbed stretch there."""
    mark, working_s, counted = low, 0.0, 0.0
    for stretch in _warm(course):
        first_pass = stretch.between(mark, high)
        mark = max(mark, stretch.end)
        if first_pass is not None and not stretch.disturbed:
            working_s += first_pass.end_s - first_pass.start_s
            counted += first_pass.end - first_pass.start
    return Steady(working_s / counted, counted) if counted > 0 and working_s > 0 else None


def _warm(course: Course) -> Iterator[Stretch]:
    for stretch in course.stretches:
        part = None if course.steady_from_s is None else stretch.after(course.steady_from_s)
        if part is not None:
            yield part
