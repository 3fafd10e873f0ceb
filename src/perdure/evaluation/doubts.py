"""What makes the numbers of an evaluation doubtful, beyond the six mistakes. Called by `mistakes`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perdure.evaluation import course as courses
from perdure.evaluation import placeholders, realised
from perdure.evaluation.case import Case, changes_treatment, count, is_within, verdict
from perdure.evaluation.course import Course
from perdure.evaluation.paper import Change
from perdure.evaluation.plan import Site
from perdure.evaluation.stretches import kind_of
from perdure.model.evaluation import Arm, Environment, Event, EventKind, FaultKind, Mistake, Outcome

_LENGTH = 0.05
"""Runs of one pair may differ in length by this share."""
_FIXED = ("site.level", "site.repetitions", "site.window")
"""What decides, beside the success numbers, when something is said to be shown."""
_SHIFT = 0.05
"""A fault may strike this share of the run's counter, or two signals, away from where it was planned."""


def check(case: Case) -> tuple[Mistake, ...]:
    """Return every doubt, clear or flagged."""
    return (
        numbers_changed(case),
        unequal_lengths(case),
        different_machines(case),
        too_few_runs(case),
        one_workload(case),
        excluded_runs(case),
        other_faults(case),
        survivors_only(case),
    )


def numbers_changed(case: Case) -> Mistake:
    """The success numbers, the level, how many pairs and how long, and what is done to them were fixed before there were data."""
    standing, problems = case.standing, []
    begun = min((run.begun_unix_s for run in case.recorded), default=None)
    if begun is not None and standing.lock is None:
        problems.append("there are data and no lock")
    if begun is not None and standing.lock is not None and begun < standing.lock.signed.at_unix_s:
        problems.append("a run of an arm began before the lock")
    for each in standing.amendments:
        keys = [change.key for change in each.changes if _is_fixed(change)]
        if keys and each.data_existed:
            problems.append(
                f"amendment {each.number} changed {', '.join(keys)} with {count(each.managed_runs, 'run')} in sight: {each.reason}"
            )
    problems += [f"{change.key} was changed without an amendment" for change in standing.unamended if _is_fixed(change)]
    clear = f"fixed by the lock; {count(len(standing.amendments), 'amendment')}, none of them of a number or of the treatment after data"
    return verdict("numbers-changed", "numbers or treatment changed after data", problems, clear)


def unequal_lengths(case: Case) -> Mistake:
    """Both runs of a pair did the same work, or ran for the same time."""
    problems = []
    for pair in case.pairs():
        work, time_s = [course.reached for course in pair], [_lasted_s(course) for course in pair]
        if not (_alike(*work) or (_alike(*time_s) and not any(course.completed for course in pair))):
            one, other = (f"to {far:g} in {long_s:.0f} s" for far, long_s in zip(work, time_s, strict=True))
            problems.append(f"pair {pair[0].run.pair} counted {one} unmanaged and {other} managed")
    clear = f"{count(len(case.pairs()), 'pair')} of equal work or time, within {_LENGTH:.0%}"
    return verdict("unequal-lengths", "unequal run lengths", problems, clear)


def different_machines(case: Case) -> Mistake:
    """Both runs of a pair took place on the same nodes, and all runs with the same versions."""
    problems = [
        f"pair {one.run.pair} ran on {one.run.node} unmanaged and on {other.run.node} managed"
        for one, other in case.pairs()
        if one.run.node != other.run.node or one.run.environment.host != other.run.environment.host
    ]
    seen: dict[str, dict[str, str]] = {}
    for course in case.courses:
        for name, version in _versions(course.run.environment):
            seen.setdefault(name, {}).setdefault(version, course.run.id)
    for name, found in sorted(seen.items()):
        if len(found) > 1:
            problems.append(f"{name}: " + ", ".join(f"{version} first in {run}" for version, run in found.items()))
    nodes = sorted({course.run.node for course in case.courses})
    return verdict(
        "different-machines", "different nodes or versions", problems, f"on {', '.join(nodes)}, {len(seen)} versions the same in all runs"
    )


def too_few_runs(case: Case) -> Mistake:
    """Every measure that has a number to reach is decided, or had as many pairs as it takes; and as many as planned were run."""
    problems, said = [], []
    for each in case.measures:
        if each.threshold is None:
            continue
        needed = "nobody can say how many" if each.runs_needed is None else f"about {each.runs_needed}"
        if each.outcome is Outcome.UNDECIDED and (each.runs_needed is None or each.runs_needed > each.pairs):
            problems.append(f"{each.kind.value} is not settled by {count(each.pairs, 'pair')}: it takes {needed}")
        said.append(f"{each.kind.value} by {each.pairs} (of {needed})")
    made, planned = len(case.pairs()), _pairs_planned(case)
    if made < planned:
        problems.append(f"{made} of {planned} planned pairs were run")
    return verdict(
        "too-few-runs", "too few runs for the claimed difference", problems, "decided: " + ", ".join(said) if said else "nothing is claimed"
    )


def one_workload(case: Case) -> Mistake:
    """Other workloads than this one were put through too: what one that behaves well shows, holds for it alone."""
    own = case.plan.workload.command
    others = {run.command for run in case.standing.log.runs if run.purpose == "matrix" and run.command != own}
    managed = [each for course in case.side(Arm.MANAGED) for each in course.interruptions if each.interrupted]
    back = sum(each.useful is not None for each in managed)
    behaved = f"{back} of {count(len(managed), 'interruption')} of it ended well"
    problems = [] if others else [f"one workload, and {behaved}; perdure eval matrix shows what others do"]
    return verdict(
        "one-workload",
        "an evaluation around one well-behaved workload",
        problems,
        f"{count(len(others), 'other workload')} put through; {behaved}",
    )


def excluded_runs(case: Case) -> Mistake:
    """Whoever leaves a run out says why, and neither leaves out nor breaks off one side alone."""
    excluded = [run for run in case.recorded if run.excluded is not None]
    problems = [
        f"{run.id} was excluded for {run.excluded!r}"
        for run in excluded
        if run.excluded is not None and (placeholders.is_short(run.excluded) or placeholders.in_prose(run.excluded))
    ]
    cut = case.cut
    for runs, named in ((excluded, "excluded runs"), (cut, "runs that were broken off")):
        sides = {run.arm for run in runs}
        if len(runs) > 1 and len(sides) == 1:
            problems.append(f"all {len(runs)} {named} are {min(sides).value} ones")
    clear = f"{len(excluded)} of {count(len(case.recorded), 'run')} excluded, each with its reason; {len(cut)} cut short with the harness"
    return verdict("excluded-runs", "runs excluded without reason", problems, clear)


def other_faults(case: Case) -> Mistake:
    """What was broken is what was planned, where it was planned, and the same in both arms."""
    problems = [found for course in case.courses for found in _off_plan(course, case)]
    for pair in case.pairs():
        one, other = ([each.kind for each in course.interruptions] for course in pair)
        if one != other:
            problems.append(f"pair {pair[0].run.pair} met {_kinds(one)} unmanaged and {_kinds(other)} managed")
            continue
        for first, second in zip(*(course.interruptions for course in pair), strict=True):
            here, there = _struck_at(pair[0], first.fault), _struck_at(pair[1], second.fault)
            if first.kind is not FaultKind.TIME_LIMIT and _apart(pair[0], here, there):
                problems.append(
                    f"pair {pair[0].run.pair} met {_fault(first.fault, here)} unmanaged, and {_fault(second.fault, there)} managed"
                )
    schedule = realised.read(case.courses)
    if schedule.probability is not None and schedule.probability < realised.DOUBTFUL:
        problems.append(schedule.describe())
    injected = sum(len(course.interruptions) for course in case.courses)
    even = "" if schedule.probability is None else f"; their places are even chances, p = {schedule.probability:.3f}"
    clear = f"{count(injected, 'fault')} as planned, the same in both arms{even}"
    return verdict("other-faults", "faults unlike the schedule", problems, clear)


def survivors_only(case: Case) -> Mistake:
    """Every interruption that was met enters the numbers: none stands for those that never came back, or were not waited for."""
    problems = []
    for arm in Arm:
        met = [each for course in case.side(arm) for each in course.interruptions if each.interrupted]
        lost = sum(each.useful is None for each in met)
        if lost:
            problems.append(f"{lost} of {count(len(met), arm.value + ' interruption')} never came back: no time of recovery counts them")
    problems += [found for run in case.cut for found in _cut_while_down(courses.read(run))]
    return verdict("survivors-only", "only what came back was measured", problems, "every interruption of both arms came back")


def _cut_while_down(course: Course) -> Iterator[str]:
    down = next((each for each in course.interruptions if each.interrupted and each.useful is None), None)
    if down is not None:
        kind = "fault" if down.kind is None else down.kind.value
        yield f"{course.run.id} was broken off and had not come back from its {kind}"


def _is_fixed(change: Change) -> bool:
    """Tell whether a change touches what the result depends on."""
    is_number = change.key.startswith("success.") and not change.key.endswith(".reason")
    return is_number or is_within(change.key, _FIXED) or changes_treatment(change)


def _pairs_planned(case: Case) -> int:
    """Return the largest number of pairs that was ever planned since there are data."""
    planned = [case.plan.site.repetitions]
    for each in case.standing.amendments:
        for change in each.changes:
            if each.data_existed and change.key == "site.repetitions":
                planned += [side if isinstance(side, int) else Site().repetitions for side in (change.old, change.new)]
    return max(planned)


def _lasted_s(course: Course) -> float:
    return course.events[-1].at_s - course.events[0].at_s if course.events else 0.0


def _alike(first: float, second: float) -> bool:
    return abs(first - second) <= _LENGTH * max(first, second)


def _versions(environment: Environment) -> Iterator[tuple[str, str]]:
    named = {
        "Perdure": environment.perdure_version,
        "kernel": environment.kernel,
        "driver": environment.driver_version,
        "CUDA": environment.cuda_version,
        "CRIU": environment.criu_version,
    }
    yield from ((name, "none" if version is None else version) for name, version in named.items())
    yield from environment.versions.items()


def _off_plan(course: Course, case: Case) -> Iterator[str]:
    planned = [event for event in course.events if event.kind is EventKind.FAULT_PLANNED and "failed" not in event.data]
    injected = [each.fault for each in course.interruptions]
    if len(planned) != len(injected):
        yield f"{course.run.id}: {len(planned)} planned, {len(injected)} injected"
        return
    wanted = case.plan.faults.at_progress
    if wanted and len(injected) != len(wanted):
        yield f"{course.run.id}: the plan names {count(len(wanted), 'fault')}, {len(injected)} struck"
    for before, after in zip(planned, injected, strict=True):
        kind, struck_at = kind_of(after), _struck_at(course, after)
        # A time limit strikes by the clock, and each arm is where it is then.
        apart = kind is not FaultKind.TIME_LIMIT and _apart(course, before.value, struck_at)
        if kind_of(before) is not kind or apart:
            yield f"{course.run.id}: planned {_fault(before, before.value)}, injected {_fault(after, struck_at)}"
        elif kind not in case.plan.faults.kinds:
            yield f"{course.run.id}: the plan names no {_fault(after, struck_at)}"


def _struck_at(course: Course, fault: Event) -> float | None:
    """Return the counter that a fault met; what the event says itself may be where it was meant to strike."""
    met = course.counter_at(fault.at_s)
    return fault.value if met is None else met


def _apart(course: Course, first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    steps = sorted(each.end - each.start for each in course.stretches)
    signal = steps[len(steps) // 2] if steps else 0.0
    return abs(first - second) > max(2 * signal, _SHIFT * course.reached)


def _fault(event: Event, counter: float | None) -> str:
    kind = kind_of(event)
    return f"{'unnamed' if kind is None else kind.value}" + ("" if counter is None else f" at {counter:g}")


def _kinds(kinds: Sequence[FaultKind | None]) -> str:
    return ", ".join("unnamed" if kind is None else kind.value for kind in kinds) or "nothing"
