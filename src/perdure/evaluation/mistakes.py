"""The mistakes that an evaluation may make, each looked for in its own data; here the six that make a comparison worthless.

Called by reports. Pure. Each check is clear or flagged, and says what it saw. `doubts` has those that make the numbers doubtful.
"""

from __future__ import annotations

import itertools
import os.path
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from perdure.evaluation import case as cases
from perdure.evaluation import doubts, evidence, paper
from perdure.evaluation.case import Case, count, verdict
from perdure.evaluation.course import Course, Interruption
from perdure.evaluation.standing import Standing
from perdure.model.evaluation import Arm, EventKind, MeasureResult, Mistake

_STEADY_CLOCKS = frozenset({"CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME"})
"""Clocks that nobody sets."""
_LATE_S = 1.0
"""A recovery that ends this much after the first signal of the new life ends on something else."""


def check(standing: Standing, measures: Sequence[MeasureResult]) -> tuple[Mistake, ...]:
    """Return every mistake that is looked for, the six first, clear or flagged. `measures` are those of the same runs."""
    case = cases.gather(standing, measures)
    return (
        no_baseline(case),
        different_clocks(case),
        nobody_runs_it(case),
        no_interruption(case),
        run_once(case),
        two_changes(case),
        *doubts.check(case),
    )


def no_baseline(case: Case) -> Mistake:
    """The workload was measured unmanaged, before the lock on the nodes of the arms, and beside the managed runs."""
    lock = case.standing.lock
    measured = lock.baseline.runs if lock is not None else evidence.collect(case.plan, case.standing.log)
    beside = case.side(Arm.UNMANAGED)
    problems = []
    if len(measured) < 2:
        problems.append(f"{count(len(measured), 'run')} of the workload as it is today: two show a spread")
    if not beside:
        problems.append("no unmanaged run beside the managed ones")
    elsewhere = _nodes(course.run.node for course in case.courses) - _nodes(run.node for run in measured)
    if measured and elsewhere:
        problems.append(f"no baseline on {_listed(elsewhere)}")
    clear = f"{count(len(measured), 'unmanaged run')} measured before, {len(beside)} beside the managed ones, on the same nodes"
    return verdict("no-baseline", "no baseline", problems, clear)


def different_clocks(case: Case) -> Mistake:
    """Both sides are timed by a clock that nobody sets, on one host or with a measured offset, and stop on the same signal."""
    clocks = {course.run.environment.clock for course in case.courses}
    problems = [f"{clock} can be set while it is read" for clock in sorted(clocks - _STEADY_CLOCKS)]
    if len(clocks) > 1:
        problems.append(f"the sides were timed by {_listed(clocks)}")
    for pair in case.pairs():
        hosts = {course.run.environment.host for course in pair}
        if len(hosts) > 1 and not any(course.run.environment.clock_offset_s for course in pair):
            problems.append(f"pair {pair[0].run.pair} was timed on {_listed(hosts)} and nobody measured the offset")
    problems += [late for course in case.courses for each in course.interruptions for late in _stops_late(course, each)]
    clear = f"all runs timed by {_listed(clocks)}, recoveries by the first signal of progress" if clocks else "no run was timed"
    return verdict("different-clocks", "different clocks on the two sides", problems, clear)


def nobody_runs_it(case: Case) -> Mistake:
    """The workload is one that somebody else than the evaluator runs in earnest, and it is what was run."""
    work, standing = case.plan.workload, case.standing
    problems = []
    if work.made_for_evaluation is None:
        problems.append("the plan does not say whether anybody ran it before")
    elif work.made_for_evaluation:
        problems.append("the plan declares that it was made for this evaluation")
    signers = {} if standing.lock is None else {standing.lock.signed.user: "locked the plan"}
    signers |= {each.signed.user: "amended the plan" for each in standing.amendments if each.signed.user not in signers}
    for user, deed in signers.items():
        if work.owner is not None and re.search(rf"(?<!\w){re.escape(user)}(?!\w)", work.owner, re.IGNORECASE):
            problems.append(f"its owner {work.owner!r} is {user}, who {deed}")
    others = {course.run.id for course in case.courses if cases.around(course.run.command, work.command) is None}
    if others:
        problems.append(f"{count(len(others), 'run')} ran another command than the plan names, first {min(others)}")
    return verdict(
        "nobody-runs-it", "a workload nobody runs", problems, f"{work.owner} runs it; {count(len(case.courses), 'run')} of that command"
    )


def no_interruption(case: Case) -> Mistake:
    """In both arms something was broken, and the workload went down."""
    problems, said = [], []
    for arm in Arm:
        met = [each for course in case.side(arm) for each in course.interruptions]
        down = [each for each in met if each.interrupted]
        if not down:
            quiet = f": {count(len(met), 'fault')} did not interrupt it" if met else ""
            problems.append(f"nothing interrupted the {arm.value} workload{quiet}")
        kinds = Counter("unnamed" if each.kind is None else each.kind.value for each in down)
        said.append(f"{arm.value}: {', '.join(f'{number} × {kind}' for kind, number in sorted(kinds.items()))}")
    return verdict("no-interruption", "no real interruption", problems, "; ".join(said))


def run_once(case: Case) -> Mistake:
    """Each configuration was run more than once: one run has no spread."""
    numbers = {arm: len(case.side(arm)) for arm in Arm}
    problems = [f"{count(number, arm.value + ' run')}" for arm, number in numbers.items() if number < 2]
    return verdict(
        "run-once", "each configuration run once", problems, ", ".join(f"{number} {arm.value} runs" for arm, number in numbers.items())
    )


def two_changes(case: Case) -> Mistake:
    """The arms differ in being managed and in nothing else, not in command, size, hardware or when they ran; all runs are of one plan."""
    problems = [found for pair in case.pairs() for found in _differences(*pair, case.plan.workload.command)]
    problems += _plans(case)
    sides = [[course.run.begun_unix_s for course in case.side(arm)] for arm in Arm]
    if all(len(side) > 1 for side in sides) and (max(sides[0]) < min(sides[1]) or max(sides[1]) < min(sides[0])):
        problems.append("all runs of one arm came before all of the other: whatever changed meanwhile is in the difference")
    clear = f"command, size, hardware and plan are the same in {count(len(case.pairs()), 'pair')}, and the arms took turns"
    return verdict("two-changes", "two things changed at once", problems, clear)


def _stops_late(course: Course, each: Interruption) -> Iterator[str]:
    useful, begun = each.useful, each.restarted
    if useful is None or begun is None:
        return
    first_s = next(
        (
            event.at_s
            for event in course.events
            if event.kind is EventKind.PROGRESS and event.at_s >= begun.at_s and event.value is not None
        ),
        None,
    )
    if first_s is not None and useful.at_s - first_s > _LATE_S:
        yield f"a recovery of {course.run.id} ends {useful.at_s - first_s:.1f} s after the first signal of progress"


def _differences(unmanaged: Course, managed: Course, planned: tuple[str, ...]) -> Iterator[str]:
    one, other = unmanaged.run, managed.run
    slowed, managing = (cases.around(run.command, planned) or () for run in (one, other))
    if slowed:
        yield f"pair {one.pair}: the unmanaged side ran behind {' '.join(slowed)!r}"
    if managing and not _is_perdure(managing):
        yield f"pair {one.pair}: the managed side ran behind {' '.join(managing)!r}"
    here, there = one.environment, other.environment
    for name, first, second in (
        ("nodes", one.nodes, other.nodes),
        ("GPUs", one.gpus, other.gpus),
        ("warm-up", one.warm_up_s, other.warm_up_s),
        ("plan", one.plan_hash[:12], other.plan_hash[:12]),
        ("processor", here.cpu_model, there.cpu_model),
        ("cores", here.cores, there.cores),
        ("memory", here.memory_bytes, there.memory_bytes),
        ("GPU models", ", ".join(here.gpus), ", ".join(there.gpus)),
    ):
        if first != second:
            yield f"pair {one.pair} differs in {name}: {first} unmanaged, {second} managed"


def _plans(case: Case) -> Iterator[str]:
    """Yield what differs among the plans that the counted runs were made under."""
    found = [*dict.fromkeys(course.run.plan_hash for course in case.courses)]
    contents = case.standing.plan_contents()
    unknown = sum(sha256 not in contents for sha256 in found)
    if len(found) > 1 and unknown:
        yield f"the runs were made under {len(found)} plans, of which {unknown} {'is' if unknown == 1 else 'are'} not recorded"
        return
    changes = [change for two in itertools.pairwise(found) for change in paper.diff(*(contents[sha256] for sha256 in two))]
    keys = sorted({change.key for change in changes if cases.changes_treatment(change)})
    if keys:
        yield f"the runs were made under {len(found)} plans, which differ in {', '.join(keys)}"


def _is_perdure(words: tuple[str, ...]) -> bool:
    """Tell whether a command begins with Perdure's, by its own name or as a module of Python."""
    if os.path.basename(words[0]) == "perdure":
        return True
    module = words.index("-m") if "-m" in words else len(words)
    return words[module + 1 : module + 2] == ("perdure",) and all(word.startswith("-") for word in words[1:module])


def _nodes(texts: Iterable[str]) -> set[str]:
    """Return the names in lists of nodes: a job that was interrupted may have run on several."""
    return {name for text in texts for name in text.split(",")}


def _listed(names: set[str]) -> str:
    return " and ".join(sorted(names))
