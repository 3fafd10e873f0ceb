"""The four measures, and the cost of checkpoints, of all runs of an evaluation. Called by reports and by the check for mistakes. Pure.

Every value comes from the events of one run alone; a run to which a definition cannot be applied gives a reason in place of a number, and
one that is excluded or was cut short gives its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from perdure.evaluation import course as courses
from perdure.evaluation import loss, overhead, paired, recovery, utilisation
from perdure.evaluation.course import Course
from perdure.evaluation.paired import Definition, Values
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Arm, MeasureKind, MeasureResult, Point, Run, Unmeasured

Found = Point | Unmeasured

_RECOVERY = Definition(kind=MeasureKind.RECOVERY_TIME, unit=recovery.UNIT, includes=recovery.INCLUDES)
_UTILISATION = Definition(kind=MeasureKind.UTILISATION, unit=utilisation.UNIT, includes=utilisation.INCLUDES)
_OVERHEAD = Definition(kind=MeasureKind.OVERHEAD, unit=overhead.UNIT, includes=overhead.INCLUDES)
_COST = Definition(kind=MeasureKind.CHECKPOINT_COST, unit=overhead.COST_UNIT, includes=overhead.COST_INCLUDES)


def compute(runs: Iterable[Run], plan: Plan) -> tuple[MeasureResult, ...]:
    """Return recovery time, work lost, utilisation, overhead and checkpoint cost, in this order, at the plan's level and thresholds.

    Only runs with the purpose ``arms`` are read. The same runs and plan always give the same results.
    """
    arms = [run for run in runs if run.purpose == "arms"]
    left_out = tuple(_left_out(run) for run in arms if not courses.counts(run))
    read = [courses.read(run) for run in arms if courses.counts(run)]
    counted = "GPU-hours" if plan.workload.gpus else "node-hours"
    alike = [course for course in read if course.unit == counted]
    others = tuple(_other_unit(course, counted) for course in read if course.unit != counted)
    managed = [course for course in read if course.run.arm is Arm.MANAGED]
    return (
        paired.compare(_RECOVERY, _sort(_each(recovery.points, read), left_out), plan),
        paired.compare(_loss(counted), _sort(_each(loss.points, alike), left_out + others), plan),
        paired.compare(_UTILISATION, _sort(_each(utilisation.points, read), left_out), plan),
        paired.against_itself(_OVERHEAD, _sort(_overheads(read), left_out), plan),
        paired.against_itself(_COST, _sort(_each(overhead.costs, managed), left_out), plan),
    )


def _loss(counted: str) -> Definition:
    return Definition(kind=MeasureKind.WORK_LOST, unit=counted, includes=loss.INCLUDES)


def _sort(found: Iterable[Found], left_out: tuple[Unmeasured, ...]) -> Values:
    """Part values from reasons."""
    each = tuple(found)
    return Values(
        points=tuple(one for one in each if isinstance(one, Point)),
        unmeasured=(*left_out, *(one for one in each if isinstance(one, Unmeasured))),
    )


def _each(points: Callable[[Course], Iterator[Found]], read: Iterable[Course]) -> list[Found]:
    return [found for course in read for found in points(course)]


def _overheads(read: Sequence[Course]) -> Iterator[Found]:
    for number in sorted({course.run.pair for course in read}):
        unmanaged, managed = (_side(read, number, arm) for arm in (Arm.UNMANAGED, Arm.MANAGED))
        for before, beside in zip(unmanaged, managed, strict=False):
            yield from overhead.points(before, beside)
        for alone in (*unmanaged[len(managed) :], *managed[len(unmanaged) :]):
            run = alone.run
            yield Unmeasured(run.id, run.arm, run.pair, "no-other-side", "its pair has no counted run of the other arm")


def _side(read: Sequence[Course], number: int, arm: Arm) -> list[Course]:
    found = [course for course in read if course.run.pair == number and course.run.arm is arm]
    return sorted(found, key=lambda course: (course.run.repetition, course.run.begun_unix_s))


def _left_out(run: Run) -> Unmeasured:
    if run.excluded is not None:
        return Unmeasured(run.id, run.arm, run.pair, "excluded", f"excluded: {run.excluded or 'no reason given'}")
    return Unmeasured(run.id, run.arm, run.pair, "unfinished", "the harness was interrupted in it")


def _other_unit(course: Course, counted: str) -> Unmeasured:
    run = course.run
    return Unmeasured(run.id, run.arm, run.pair, "other-unit", f"the plan counts {counted}, this run {course.unit}")
