"""Steady-state overhead of being managed, and beside it what checkpoints cost. Called by `measures`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from perdure.evaluation.course import Course
from perdure.evaluation.stretches import Stretch
from perdure.model.evaluation import Arm, Point, Unmeasured

UNIT = "ratio"
INCLUDES = (
    "managed over unmanaged time for the same work, less one: the counters that were undisturbed in both runs of a pair, each counted when "
    "it was first passed, without the warm-up and without recoveries. A counter at which a checkpoint was in progress in one run is left "
    "out of both: checkpoints come by the clock, and meet slow work more often than quick work"
)
COST_UNIT = "s"
COST_INCLUDES = "the time for which the workload stood still for one checkpoint, as the engine measured it; not part of the overhead"
_NOT_TOLD = "Perdure on that node did not tell when checkpoints were in progress: it is older than the harness; see the utilisation"


class Steady(msgspec.Struct, frozen=True):
    """How long both runs of a pair took for the same undisturbed work."""

    unmanaged_s: float
    managed_s: float
    counted: float
    """Units of the counter that were timed."""


def points(unmanaged: Course, managed: Course) -> Iterator[Point | Unmeasured]:
    """Yield the overhead of one pair (0.02 is 2 %), or the reason why it cannot be said.

    Parts: ``unmanaged_s`` and ``managed_s`` for the same ``work`` (units of the counter), and the units of it that were ``timed``: those
    that were undisturbed in both.
    """
    run = managed.run
    if not are_checkpoints_told(managed):
        yield Unmeasured(run.id, run.arm, run.pair, "not-told", _NOT_TOLD)
        return
    low, high = common_range(unmanaged, managed)
    before, beside = (tuple(undisturbed(course, low, high)) for course in (unmanaged, managed))
    found = together(before, beside)
    if found is None:
        yield Unmeasured(run.id, run.arm, run.pair, "no-pace", _no_pace(before, beside))
        return
    work = high - low
    yield Point(
        run.id,
        Arm.MANAGED,
        run.pair,
        found.managed_s / found.unmanaged_s - 1,
        {
            "unmanaged_s": found.unmanaged_s / found.counted * work,
            "managed_s": found.managed_s / found.counted * work,
            "work": work,
            "timed": found.counted,
        },
    )


def _no_pace(before: Sequence[Stretch], beside: Sequence[Stretch]) -> str:
    if before and beside:
        return "no part of the work passed without a checkpoint, a fault or the warm-up in both runs"
    side = Arm.MANAGED if before else Arm.UNMANAGED
    return f"the {side.value} run has no two signals of progress without a checkpoint, a fault or the warm-up between them"


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


def undisturbed(course: Course, low: float, high: float) -> Iterator[Stretch]:
    """Yield the undisturbed work of a run between two counters, each counter when it was first passed: in their order, none twice."""
    mark = low
    for stretch in _warm(course):
        first_pass = stretch.between(mark, high)
        mark = max(mark, stretch.end)
        if first_pass is not None and not stretch.disturbed:
            yield first_pass


def together(unmanaged: Sequence[Stretch], managed: Sequence[Stretch]) -> Steady | None:
    """Time the counters that are in both of what `undisturbed` yields, on both sides; None where there are none."""
    one, other = 0, 0
    unmanaged_s, managed_s, counted = 0.0, 0.0, 0.0
    while one < len(unmanaged) and other < len(managed):
        first, second = unmanaged[one], managed[other]
        low, high = max(first.start, second.start), min(first.end, second.end)
        here, there = first.between(low, high), second.between(low, high)
        if here is not None and there is not None:
            unmanaged_s += here.end_s - here.start_s
            managed_s += there.end_s - there.start_s
            counted += high - low
        if first.end < second.end:
            one += 1
        else:
            other += 1
    return Steady(unmanaged_s, managed_s, counted) if counted > 0 and unmanaged_s > 0 else None


def _warm(course: Course) -> Iterator[Stretch]:
    for stretch in course.stretches:
        part = None if course.steady_from_s is None else stretch.after(course.steady_from_s)
        if part is not None:
            yield part
