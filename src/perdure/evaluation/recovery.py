"""Recovery time: from a fault to the workload doing useful work again, and its parts. Called by `measures`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.evaluation.course import Course, Interruption
from perdure.model.evaluation import Event, Point, Unmeasured

UNIT = "s"
INCLUDES = (
    "from the fault to the first progress of the workload after it: detection (fault to whoever restarts it knowing), scheduling (to the "
    "command that led to useful work, failed tries included), restart (to restored, or ready), warm-up (to that progress). "
    "Work that is computed again is not in it: that is work lost"
)
PARTS = ("detection", "scheduling", "restart", "warm_up")


def points(course: Course) -> Iterator[Point | Unmeasured]:
    """Yield the recovery time in seconds of each interruption of a run, or the reason why there is none."""
    run = course.run
    if not course.interruptions:
        yield Unmeasured(run.id, run.arm, run.pair, "no-fault", "no fault was injected")
    for each in course.interruptions:
        lack = unrecovered(each) or incomparable(each)
        if lack is not None:
            yield Unmeasured(run.id, run.arm, run.pair, *lack, each.kind)
        elif each.useful is not None:
            yield Point(run.id, run.arm, run.pair, each.useful.at_s - each.fault.at_s, parts(each), fault=each.kind, index=each.index)


def unrecovered(each: Interruption) -> tuple[str, str] | None:
    """Return code and reason when there was no recovery to be measured, else None."""
    if not each.interrupted:
        return "not-interrupted", f"the fault at {each.fault.at_s:.1f} s did not interrupt the workload"
    if each.useful is None:
        return "never-recovered", f"the workload did not come back after the fault at {each.fault.at_s:.1f} s"
    return None


def incomparable(each: Interruption) -> tuple[str, str] | None:
    """Return code and reason when the fault was another one on the other side, so that what came of it enters no comparison, else None."""
    if each.fault.data.get("comparable") is not False:
        return None
    return "not-comparable", f"the fault at {each.fault.at_s:.1f} s was done to something else in the other arm: the two do not compare"


def parts(each: Interruption) -> dict[str, float]:
    """Return the parts of a recovery in seconds; they add up to it.

    A milestone that nobody recorded leaves the two parts beside it together, under both names: ``detection+scheduling``.
    """
    found: dict[str, float] = {}
    began_s, names = each.fault.at_s, []
    milestones: tuple[Event | None, ...] = (each.detected, each.restarted, each.up, each.useful)
    for name, milestone in zip(PARTS, milestones, strict=True):
        names.append(name)
        if milestone is not None and milestone.at_s >= began_s:
            found["+".join(names)] = milestone.at_s - began_s
            began_s, names = milestone.at_s, []
    return found
