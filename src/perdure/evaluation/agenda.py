"""What is still to be made of an evaluation, and with which faults: from its plan and the runs there are. Called by `harness`. Pure."""

from __future__ import annotations

import statistics

from perdure import errors
from perdure.evaluation import evidence, schedule
from perdure.evaluation.folder import RunLog
from perdure.evaluation.plan import Plan
from perdure.evaluation.schedule import Pace, Planned
from perdure.model.evaluation import Arm, EventKind, Run

_ARMS = (Arm.UNMANAGED, Arm.MANAGED)


def missing(plan: Plan, log: RunLog) -> tuple[tuple[int, tuple[Arm, ...]], ...]:
    """Return the pairs that are not complete, each with the arms that it lacks in the order in which they are to run.

    In alternating order the first arm changes from pair to pair, and a pair that has one arm gets the other. Side by side both arms of a
    pair run at once: a broken pair is made anew under a number of its own. Broken and excluded runs do not count.
    """
    have: dict[int, set[Arm]] = {}
    for run in log.runs:
        if run.purpose == "arms" and run.finished and run.excluded is None:
            have.setdefault(run.pair, set()).add(run.arm)
    complete = {pair for pair, found in have.items() if len(found) == len(_ARMS)}
    if plan.arms.order == "side-by-side":
        used = {run.pair for run in log.runs if run.purpose == "arms"}
        free = (number for number in range(1, plan.site.repetitions + len(used) + 1) if number not in used)
        return tuple((next(free), _ARMS) for _ in range(plan.site.repetitions - len(complete)))
    numbers = range(1, plan.site.repetitions + 1)
    return tuple(
        (pair, tuple(arm for arm in (_ARMS if pair % 2 else _ARMS[::-1]) if arm not in have.get(pair, set())))
        for pair in numbers
        if pair not in complete
    )


def pace_of(plan: Plan, log: RunLog) -> Pace | None:
    """Return how the workload counts undisturbed, by the medians of the baseline; None without such a run."""
    found = [pace for run in counted(plan, log) if not is_disturbed(run) and (pace := _pace(run)) is not None]
    if not found:
        return None
    return Pace(statistics.median(each.per_s for each in found), statistics.median(each.last for each in found))


def window_end_s(plan: Plan, log: RunLog, now_unix_s: float) -> float | None:
    """Return when the window closes, seconds since 1970: as the plan says, else its duration after the first run of an arm, or now."""
    window = plan.site.window
    if window is None:
        return None
    if window.end is not None:
        return window.end.timestamp()
    if window.duration_s is None:
        return None
    begun = [run.begun_unix_s for run in log.runs if run.purpose == "arms"]
    start_s = window.start.timestamp() if window.start is not None else min(begun, default=now_unix_s)
    return start_s + window.duration_s


def planned(plan: Plan, pair: int, pace: Pace | None) -> tuple[Planned, ...]:
    """Return the faults of the runs of a pair. Raises `errors.UsageError` when they are drawn at a rate and there is no pace."""
    if not plan.faults.kinds or plan.faults.seed is None:
        return ()
    if plan.faults.rate_per_hour is not None and pace is None:
        raise errors.UsageError("faults.rate_per_hour needs the pace of an undisturbed baseline", hint="perdure eval baseline measures it")
    return schedule.draw(plan.faults, pair=pair, pace=pace)


def counted(plan: Plan, log: RunLog) -> tuple[Run, ...]:
    """Return the runs of the baseline that it stands on and that did all their work."""
    stands = {each.id for each in evidence.collect(plan, log)}
    return tuple(run for run in log.runs if run.id in stands and is_completed(run))


def is_completed(run: Run) -> bool:
    """Tell whether the workload did all its work in a run."""
    return any(event.kind is EventKind.ENDED and event.data.get("completed") is True for event in run.events)


def is_disturbed(run: Run) -> bool:
    """Tell whether a run was planned to meet faults."""
    return any(event.kind in (EventKind.FAULT_PLANNED, EventKind.FAULT_INJECTED) for event in run.events)


def _pace(run: Run) -> Pace | None:
    signals = [event for event in run.events if event.kind is EventKind.PROGRESS and event.value is not None]
    if len(signals) < 2 or signals[-1].at_s <= signals[0].at_s:
        return None
    far = (signals[-1].value or 0.0) - (signals[0].value or 0.0)
    return Pace(far / (signals[-1].at_s - signals[0].at_s), signals[-1].value or 0.0) if far > 0 else None
