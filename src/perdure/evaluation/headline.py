"""The one sentence above everything: what the evaluation says, and whether anything puts it in doubt. Called by `report`. Pure.

A flagged evaluation is reported, and its headline begins with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from perdure.model.evaluation import MeasureKind, MeasureResult, Mistake, Outcome

Verdict = Literal["passed", "failed", "undecided", "incomplete"]

NAMES: dict[MeasureKind, str] = {
    MeasureKind.RECOVERY_TIME: "recovery time",
    MeasureKind.WORK_LOST: "work lost per interruption",
    MeasureKind.UTILISATION: "utilisation at the job level",
    MeasureKind.OVERHEAD: "steady-state overhead",
    MeasureKind.CHECKPOINT_COST: "cost of a checkpoint",
}
FOUR = (MeasureKind.RECOVERY_TIME, MeasureKind.WORK_LOST, MeasureKind.UTILISATION, MeasureKind.OVERHEAD)


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """What the evaluation says."""

    verdict: Verdict
    flagged: bool
    text: str
    doubts: tuple[str, ...]
    """What puts the result in doubt, a line each."""


def write(measures: Sequence[MeasureResult], mistakes: Sequence[Mistake], problems: Sequence[str]) -> Headline:
    """Return the headline; `problems` are edits of plan, lock or baseline that no amendment records."""
    doubts = (*problems, *(one.title for one in mistakes if one.flagged))
    verdict, text = _verdict({one.kind: one for one in measures})
    if doubts:
        counted = "one thing puts" if len(doubts) == 1 else f"{len(doubts)} things put"
        text = f"Flagged: {counted} this result in doubt. {text}"
    return Headline(verdict=verdict, flagged=bool(doubts), text=text, doubts=doubts)


def _verdict(found: dict[MeasureKind, MeasureResult]) -> tuple[Verdict, str]:
    outcomes = {kind: found[kind].outcome if kind in found and found[kind].points else None for kind in FOUR}
    failed, undecided, missing = ([kind for kind in FOUR if outcomes[kind] is one] for one in (Outcome.FAIL, Outcome.UNDECIDED, None))
    if failed:
        rest = f" Not settled: {_listed((*undecided, *missing))}." if undecided or missing else ""
        return "failed", f"Failed: {_listed(failed)} did not reach the number that was fixed beforehand.{rest}"
    if missing:
        return "incomplete", f"Incomplete: {_listed(missing)} cannot be judged: data or a number to reach are missing."
    if undecided:
        return "undecided", f"Undecided: the runs do not settle {_listed(undecided)}."
    return "passed", "Passed: all four measures reached the numbers that were fixed beforehand."


def _listed(kinds: Sequence[MeasureKind]) -> str:
    names = [NAMES[kind] for kind in kinds]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
