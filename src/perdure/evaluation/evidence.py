"""The measured baseline: which of the recorded runs it stands on, and what they lack. Called by lock, amend and status.

A run counts for the baseline when it is unmanaged, was not cut short or excluded, made progress, was a run of this very workload, and took
place on the nodes that the plan names.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterator

from perdure import errors
from perdure.evaluation import canonical
from perdure.evaluation import course as courses
from perdure.evaluation.completeness import Lack
from perdure.evaluation.folder import Folder, RunLog
from perdure.evaluation.paper import Baseline, BaselineRun
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Arm, EventKind, Run

_TOLERANCE = 0.01
"""`baseline.measured` may be rounded; more than this share away from the runs' own median, it is another figure."""


def collect(plan: Plan, log: RunLog) -> tuple[BaselineRun, ...]:
    """Return the runs that the baseline stands on, in the order of the log."""
    fingerprint = canonical.workload_hash(plan)
    return tuple(
        BaselineRun(
            id=run.id,
            node=run.node,
            sha256=hashlib.sha256(line).hexdigest(),
            # A run that faults were injected into says nothing of how long the workload takes.
            duration_s=None if _is_disturbed(run) else _between(run, EventKind.LAUNCHED, EventKind.ENDED),
            ready_s=_between(run, EventKind.LAUNCHED, EventKind.READY),
        )
        for run, line in zip(log.runs, log.raw_lines, strict=True)
        if run.purpose == "baseline" and _refusal(run, plan, fingerprint) is None
    )


def lacks(plan: Plan, log: RunLog) -> Iterator[Lack]:
    """Yield what the baseline lacks: measured, and not merely promised."""
    fingerprint = canonical.workload_hash(plan)
    counted = collect(plan, log)
    wanted = plan.baseline.repetitions
    if wanted < 2:
        yield Lack("baseline", "baseline.repetitions", "one run shows no spread", "write 2 or more")
    if len(counted) < wanted:
        refusals = Counter(refusal for run in log.runs if run.purpose == "baseline" and (refusal := _refusal(run, plan, fingerprint)))
        others = "".join(f"; {count} more do not count: {why}" for why, count in refusals.items())
        yield Lack("baseline", "baseline", f"{len(counted)} of {wanted} runs were measured{others}", "perdure eval baseline measures them")
    yield from _stated(plan, counted)
    yield from _too_late(plan, log, {run.id for run in counted})


def summarise(folder: Folder, plan: Plan, log: RunLog) -> Baseline:
    """Return the baseline as a lock records it. Raises `errors.InputMissing` for a history that cannot be read."""
    counted = collect(plan, log)
    history = plan.baseline.history
    return Baseline(
        runs=counted,
        duration_s=_median(run.duration_s for run in counted),
        ready_s=_median(run.ready_s for run in counted),
        history_sha256=None if history is None else hash_file(folder, history),
    )


def changed(baseline: Baseline, log: RunLog) -> Iterator[str]:
    """Yield one line for each run of a locked baseline that is not in the log any more as it was."""
    present = {run.id: hashlib.sha256(line).hexdigest() for run, line in zip(log.runs, log.raw_lines, strict=True)}
    for run in baseline.runs:
        if run.id not in present:
            yield f"run {run.id} of the baseline is gone from runs.jsonl"
        elif present[run.id] != run.sha256:
            yield f"run {run.id} of the baseline was changed in runs.jsonl"


def _refusal(run: Run, plan: Plan, fingerprint: str) -> str | None:
    """Say why a run of the baseline does not count, None when it does."""
    if run.arm is not Arm.UNMANAGED:
        return "not unmanaged"
    if run.excluded is not None or not run.finished:
        return "excluded or cut short"
    if run.plan_hash != fingerprint:
        return "of another workload, [workload] was changed since"
    if not set(run.node.replace(" ", "").split(",")) <= set(plan.site.nodes):
        return "on a node that site.nodes does not name"
    if not any(event.kind in (EventKind.PROGRESS, EventKind.READY) for event in run.events):
        return "no progress was seen"
    return None


def _stated(plan: Plan, counted: tuple[BaselineRun, ...]) -> Iterator[Lack]:
    stated = plan.baseline.measured
    if stated is None:
        return
    unknown = sorted(set(stated.runs) - {run.id for run in counted})
    if unknown:
        yield Lack("baseline", "baseline.measured.runs", f"{unknown[0]} is no run of this baseline", "let perdure eval baseline write them")
        return
    chosen = [run for run in counted if run.id in stated.runs]
    for key, figure, median in (
        ("duration_s", stated.duration_s, _median(run.duration_s for run in chosen)),
        ("ready_s", stated.ready_s, _median(run.ready_s for run in chosen)),
    ):
        if figure is not None and (median is None or abs(figure - median) > _TOLERANCE * max(median, 1.0)):
            seen = "no value" if median is None else f"{median:.1f}"
            yield Lack(
                "baseline", f"baseline.measured.{key}", f"{figure:g} is not what the runs say: {seen}", "let perdure eval baseline write it"
            )


def _too_late(plan: Plan, log: RunLog, counted: set[str]) -> Iterator[Lack]:
    """Yield the faults that would strike a workload that has no more to do; a run that did not do all its work says nothing of its end."""
    whole = [course for run in log.runs if run.id in counted and (course := courses.read(run)).completed]
    end = min((course.reached for course in whole if course.reached), default=math.inf)
    for counter in plan.faults.at_progress:
        if counter >= end:
            what = f"the fault at {counter:g} would come when the work is done: a run of the baseline ended at {end:g}"
            yield Lack("schedule", "faults.at_progress", what, "inject it earlier")


def _is_disturbed(run: Run) -> bool:
    return any(event.kind is EventKind.FAULT_INJECTED for event in run.events)


def _between(run: Run, first: EventKind, last: EventKind) -> float | None:
    begun = next((event.at_s for event in run.events if event.kind is first), None)
    ended = next((event.at_s for event in (run.events if last is EventKind.READY else reversed(run.events)) if event.kind is last), None)
    return None if begun is None or ended is None else ended - begun


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def hash_file(folder: Folder, name: str) -> str:
    """Return the SHA-256 of the plan's history, `name` in the folder. Raises `errors.InputMissing` when it cannot be read."""
    path = folder.path / name
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise errors.InputMissing(
            f"baseline.history: cannot read {path}: {error.strerror}", hint="perdure history import writes it; or leave the key out"
        ) from error
