"""What became of one recipe of a matrix: the record that its run leaves, found again. Called by `matrix` and `report`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from perdure.model.evaluation import EventKind, Run

Result = Literal["works", "refused", "failed", "not-run"]
KEY = "matrix"
"""Where the record lies in the data of the run's end."""


class RecipeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe, put through: run undisturbed, saved, killed, brought back, compared."""

    recipe: str
    result: Result
    """``works``: what it left is what an undisturbed run leaves. ``refused``: said beforehand, and it went on unharmed."""
    step: str
    """Where it ended: needs, setup, undisturbed, start, checkpoint, restore, end, compare, done."""
    codes: tuple[str, ...] = ()
    """Of the findings that forbid a checkpoint, or of the error."""
    detail: str = ""
    """What was seen, in words; untrusted."""
    checkpoint: str = ""
    logical_bytes: int | None = None
    stored_bytes: int | None = None
    stopped_s: float | None = None
    """How long it stood still for the checkpoint."""
    checkpoint_s: float | None = None
    """From the command until the checkpoint was durable."""
    restore_s: float | None = None
    """From the command until the engine said that it runs."""
    undisturbed_s: float | None = None


def of_runs(runs: Iterable[Run]) -> tuple[RecipeOutcome, ...]:
    """Return what became of every recipe that was recorded, in order; of one that was put through again, the newest."""
    found: dict[str, RecipeOutcome] = {}
    for run in runs:
        for event in run.events:
            record = event.data.get(KEY) if run.purpose == "matrix" and event.kind is EventKind.ENDED else None
            if record is not None:
                outcome = msgspec.convert(record, RecipeOutcome)
                found[outcome.recipe] = outcome
    return tuple(found.values())
