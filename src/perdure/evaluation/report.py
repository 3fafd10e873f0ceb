"""A whole evaluation, read from its folder and computed: what terminal, JSON, CSV and page all show. Called by `perdure eval report`.

Everything comes from the plan, its lock and amendments, and the raw runs; nothing is kept from an earlier report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from perdure._version import __version__
from perdure.evaluation import (
    canonical,
    coldtable,
    course,
    headline,
    leaving,
    measures,
    mistakes,
    outcome,
    past,
    realised,
    rto,
    standing,
    timeline,
    window,
)
from perdure.evaluation.coldtable import ColdStart
from perdure.evaluation.folder import Folder
from perdure.evaluation.headline import Headline
from perdure.evaluation.leaving import ExitTest
from perdure.evaluation.outcome import RecipeOutcome
from perdure.evaluation.paper import Amendment, Change, Lock
from perdure.evaluation.past import Past
from perdure.evaluation.realised import Realised
from perdure.evaluation.standing import Standing
from perdure.evaluation.timeline import Timeline
from perdure.evaluation.window import ArmHours
from perdure.model.evaluation import Arm, Environment, EventKind, MeasureResult, Mistake, RtoStatement, Run

FORMAT = 1
"""Version of the report's JSON; it grows by fields without a new number."""


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run in few words; every run has one, whatever became of it."""

    id: str
    purpose: Literal["baseline", "arms", "coldstart", "matrix"]
    arm: Arm
    pair: int
    repetition: int
    node: str
    begun_unix_s: float
    duration_s: float | None
    """From the first to the last event."""
    faults: int
    completed: bool | None
    """None: no end was recorded."""
    finished: bool
    excluded: str | None


class EnvironmentLine(msgspec.Struct, frozen=True, kw_only=True):
    """One environment, and the runs that took place in it. Boots of one host are told apart by `boots`."""

    environment: Environment
    runs: tuple[str, ...]
    boots: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that an evaluation says. Text from the plan, the runs and their output is untrusted."""

    format: int = FORMAT
    perdure_version: str
    name: str
    headline: Headline
    plan: dict[str, Any]
    """The plan as it is now: canonical content, without defaults."""
    plan_sha256: str
    lock: Lock | None
    amendments: tuple[Amendment, ...]
    unamended: tuple[Change, ...]
    problems: tuple[str, ...]
    past: Past | None
    """What the accounting history says, where the plan names one."""
    measures: tuple[MeasureResult, ...]
    window: tuple[ArmHours, ...]
    """All hours of each arm, summed."""
    rto: tuple[RtoStatement, ...]
    schedule: Realised
    """The faults as they struck."""
    timelines: tuple[Timeline, ...]
    cold_start: ColdStart
    matrix: tuple[RecipeOutcome, ...]
    mistakes: tuple[Mistake, ...]
    environments: tuple[EnvironmentLine, ...]
    runs: tuple[RunLine, ...]
    torn: int
    exit_tests: tuple[ExitTest, ...]
    repeat: tuple[str, ...]
    """Commands that make the same evaluation again, in order."""


class Findings(msgspec.Struct, frozen=True):
    """What the measures and the check for mistakes say."""

    measures: tuple[MeasureResult, ...]
    rto: tuple[RtoStatement, ...]
    mistakes: tuple[Mistake, ...]


def build(found: Standing, findings: Findings, exit_tests: Sequence[ExitTest], history: Past | None = None) -> Report:
    """Return the report of an evaluation that was read and measured. Pure."""
    runs = found.log.runs
    problems = (*found.problems, *(f"{change.key} was changed after the lock, and no amendment says why" for change in found.unamended))
    cold = coldtable.summarise(runs, level=found.plan.site.level)
    return Report(
        perdure_version=__version__,
        name=found.plan.header.name,
        headline=headline.write(findings.measures, findings.mistakes, (*_unlocked(found), *problems, *_other_answers(cold))),
        plan=canonical.content(found.plan),
        plan_sha256=found.plan_sha256,
        lock=found.lock,
        amendments=found.amendments,
        unamended=found.unamended,
        problems=problems,
        past=history,
        measures=findings.measures,
        window=window.summarise(runs),
        rto=findings.rto,
        schedule=realised.read([course.read(run) for run in runs if course.counts(run)]),
        timelines=timeline.of_runs(run for run in runs if course.counts(run)),
        cold_start=cold,
        matrix=outcome.of_runs(runs),
        mistakes=findings.mistakes,
        environments=_environments(runs),
        runs=tuple(_line(run) for run in runs),
        torn=found.log.torn + found.torn_amendments,
        exit_tests=tuple(exit_tests),
        repeat=_repeat(found),
    )


def _unlocked(found: Standing) -> tuple[str, ...]:
    return () if found.is_locked else ("the plan was never locked: its numbers may have been chosen after the data",)


def _other_answers(cold: ColdStart) -> tuple[str, ...]:
    if cold.same == cold.asked:
        return ()
    return (f"{cold.asked - cold.same} of {cold.asked} restored servers gave other answers than before the checkpoint",)


def _line(run: Run) -> RunLine:
    times = [event.at_s for event in run.events]
    ended = next((event for event in reversed(run.events) if event.kind is EventKind.ENDED), None)
    return RunLine(
        id=run.id,
        purpose=run.purpose,
        arm=run.arm,
        pair=run.pair,
        repetition=run.repetition,
        node=run.node,
        begun_unix_s=run.begun_unix_s,
        duration_s=max(times) - min(times) if times else None,
        faults=sum(event.kind is EventKind.FAULT_INJECTED for event in run.events),
        completed=None if ended is None else ended.data.get("completed") is True,
        finished=run.finished,
        excluded=run.excluded,
    )


def _environments(runs: Sequence[Run]) -> tuple[EnvironmentLine, ...]:
    groups: dict[bytes, list[Run]] = {}
    for run in runs:
        key = msgspec.json.encode(msgspec.structs.replace(run.environment, boot_id="", clock_offset_s=0.0), order="deterministic")
        groups.setdefault(key, []).append(run)
    return tuple(
        EnvironmentLine(
            environment=members[0].environment,
            runs=tuple(run.id for run in members),
            boots=len({run.environment.boot_id for run in members}),
        )
        for members in groups.values()
    )


def _repeat(found: Standing) -> tuple[str, ...]:
    steps = ["perdure eval baseline", "perdure eval lock", "perdure eval run"]
    if any(run.purpose == "coldstart" for run in found.log.runs):
        steps.append("perdure eval coldstart")
    return (*steps, "perdure eval report")


def read(folder: Folder) -> Report:
    """Read an evaluation from its folder, measure it and return its report. Nothing is written.

    An evaluation that was edited is not refused: its report says so. Raises what reading raises: `errors.InputMissing`,
    `errors.InputFormat`, `errors.LinkInPath`, `errors.InputDenied`.
    """
    found = standing.look(folder)
    runs = found.log.runs
    computed = measures.compute(runs, found.plan)
    findings = Findings(
        measures=computed,
        rto=rto.statements(runs),
        mistakes=mistakes.check(found, computed),
    )
    return build(found, findings, leaving.read(folder), past.read(found))
