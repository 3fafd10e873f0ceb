"""How far an evaluation is: what is done, what is next. Called by `perdure eval status`, and its text by reports."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.evaluation import completeness, evidence, standing
from perdure.evaluation.completeness import Lack
from perdure.evaluation.standing import Standing
from perdure.model.evaluation import Arm, EventKind, Run

State = Literal["done", "open", "broken"]


class Step(msgspec.Struct, frozen=True):
    """One step of the protocol."""

    name: str
    state: State
    detail: str


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The recorded runs by what becomes of them."""

    recorded: int
    baseline: int
    unmanaged: int
    managed: int
    pairs: int
    """Pairs of which both sides are there, finished and not excluded."""
    faults: int
    """Faults that were injected in the two arms."""
    unfinished: int
    excluded: tuple[str, ...]
    """Id and reason."""
    torn: int
    """Lines of runs and amendments that a crash tore; they lie beside the file."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Where an evaluation stands. Text in it comes from the plan: it is untrusted."""

    name: str
    folder: str
    plan_sha256: str
    locked_unix_s: float | None
    locked_by: str | None
    amendments: int
    amended_after_data: int
    sound: bool
    problems: tuple[str, ...]
    lacks: tuple[Lack, ...]
    runs: Runs
    steps: tuple[Step, ...]
    next: str
    """The command that comes next."""


def summarise(found: Standing) -> Status:
    """Return the status of an evaluation."""
    lacks = (*completeness.check(found.plan), *evidence.lacks(found.plan, found.log))
    runs = count(found)
    steps = (_paper(lacks), _baseline(found, lacks), _lock(found), _arms(found, runs), _report(found))
    return Status(
        name=found.plan.header.name,
        folder=str(found.folder.path),
        plan_sha256=found.plan_sha256,
        locked_unix_s=None if found.lock is None else found.lock.signed.at_unix_s,
        locked_by=None if found.lock is None else found.lock.signed.user,
        amendments=len(found.amendments),
        amended_after_data=sum(each.data_existed for each in found.amendments),
        sound=found.is_sound,
        problems=(*found.problems, *(f"{change.key} was changed without an amendment" for change in found.unamended)),
        lacks=lacks,
        runs=runs,
        steps=steps,
        next=_next(found, lacks, runs),
    )


def count(found: Standing) -> Runs:
    """Count the recorded runs."""
    arms = [run for run in found.log.runs if run.purpose == "arms"]
    good = [run for run in arms if run.finished and run.excluded is None]
    sides = {arm: {run.pair for run in good if run.arm is arm} for arm in Arm}
    return Runs(
        recorded=len(found.log.runs),
        baseline=len(evidence.collect(found.plan, found.log)),
        unmanaged=sum(run.arm is Arm.UNMANAGED for run in good),
        managed=sum(run.arm is Arm.MANAGED for run in good),
        pairs=len(sides[Arm.UNMANAGED] & sides[Arm.MANAGED]),
        faults=sum(_faults(run) for run in arms),
        unfinished=sum(not run.finished for run in found.log.runs),
        excluded=tuple(f"{run.id}: {run.excluded}" for run in found.log.runs if run.excluded is not None),
        torn=found.log.torn + found.torn_amendments,
    )


def _faults(run: Run) -> int:
    return sum(event.kind is EventKind.FAULT_INJECTED for event in run.events)


def _paper(lacks: tuple[Lack, ...]) -> Step:
    missing = [lack for lack in lacks if lack.part != "baseline"]
    if not missing:
        return Step("plan", "done", "complete and concrete")
    return Step("plan", "open", f"{len(missing)} missing, first: {missing[0].key}: {missing[0].what}")


def _baseline(found: Standing, lacks: tuple[Lack, ...]) -> Step:
    missing = [lack for lack in lacks if lack.part == "baseline"]
    if missing:
        return Step("baseline", "open", missing[0].what)
    counted = len(evidence.collect(found.plan, found.log))
    return Step("baseline", "done", f"{counted} runs measured, {found.plan.baseline.repetitions} asked for")


def _lock(found: Standing) -> Step:
    if found.problems:
        return Step("lock", "broken", found.problems[0])
    if found.unamended:
        return Step("lock", "broken", f"changed without an amendment: {', '.join(change.key for change in found.unamended)}")
    if found.lock is None:
        return Step("lock", "open", "not locked")
    amended = f", {len(found.amendments)} amendments" if found.amendments else ""
    return Step("lock", "done", f"{found.lock.plan_sha256[:12]}{amended}")


def _arms(found: Standing, runs: Runs) -> Step:
    wanted = found.plan.site.repetitions
    detail = f"{runs.pairs} of {wanted} pairs, {runs.faults} faults"
    return Step("runs", "done" if runs.pairs >= wanted else "open", detail)


def _report(found: Standing) -> Step:
    written = found.folder.report.is_dir() and any(found.folder.report.iterdir())
    return Step("report", "done" if written else "open", "written" if written else "not written")


def _next(found: Standing, lacks: tuple[Lack, ...], runs: Runs) -> str:
    if found.problems:
        return "put back what was changed"
    if found.unamended:
        return "perdure eval amend --reason '…'"
    if found.lock is None:
        return _before_lock(found, lacks)
    return "perdure eval run" if runs.pairs < found.plan.site.repetitions else "perdure eval report"


def _before_lock(found: Standing, lacks: tuple[Lack, ...]) -> str:
    if standing.managed_runs(found.log):
        return "perdure eval init --dir NEW"
    missing = {lack.part for lack in lacks}
    if missing - {"baseline"}:
        return f"edit {found.folder.plan}"
    return "perdure eval baseline" if missing else "perdure eval lock"
