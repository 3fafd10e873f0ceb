"""What to beware of beside the verdict. Called by `verdict`; each warning is one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perdure.decision.figures import Figures
from perdure.decision.words import duration
from perdure.model.advice import JobQuestion

LIKELY_ENOUGH = 0.05
"""Interruptions a run from which it matters whether running twice is safe, where nobody said."""

NOT_IDEMPOTENT = (
    "Running it twice is not safe: a retry repeats all it did outside, a resume what it did since its checkpoint. Guard those effects."
)
IDEMPOTENT_UNKNOWN = "Whether running it twice is safe is not known; either policy repeats work."
EXTRAPOLATED = "No work of this size was observed: the rate is extrapolated from other sizes."
NONE_SEEN = "No interruption was ever seen; a longer history may show some."


def find(found: Figures, questions: Sequence[JobQuestion]) -> dict[int, tuple[str, ...]]:
    """Return the warnings of the jobs that have any, by position."""
    warned: dict[int, list[str]] = {}

    def warn(index: int, text: str) -> None:
        warned.setdefault(index, []).append(text)

    terms = found.terms
    repeated = (terms.work / terms.mttf >= LIKELY_ENOUGH) | found.over_limit
    for index, (question, matters) in enumerate(zip(questions, repeated.tolist(), strict=True)):
        idempotent = question.costs.idempotent
        if idempotent is False:
            warn(index, NOT_IDEMPOTENT)
        elif idempotent is None and matters:
            warn(index, IDEMPOTENT_UNKNOWN)
        if question.extrapolated:
            warn(index, EXTRAPOLATED)
    for index in np.flatnonzero(np.isinf(terms.mttf)).tolist():
        warn(index, NONE_SEEN)
    for index in np.flatnonzero(found.deadline < terms.work).tolist():
        text = "The deadline cannot be met: even without an interruption the work takes"
        warn(index, f"{text} {duration(float(terms.work[index]))}, and {duration(float(found.deadline[index]))} are left.")
    for index in np.flatnonzero((terms.work <= terms.limit) & (terms.work + terms.fresh > terms.limit)).tolist():
        text = "The work fits its limit only without a fresh start's set-up: a run after an interruption may be cut off at"
        warn(index, f"{text} {duration(float(terms.limit[index]))}.")
    slowest = np.maximum(terms.checkpoint, terms.restore)
    for index in np.flatnonzero(slowest >= terms.mttf).tolist():
        text = "A checkpoint or a restore takes as long as the time between interruptions"
        warn(index, f"{text} ({duration(float(terms.mttf[index]))}): most of them would be lost as well.")
    return {index: tuple(texts) for index, texts in warned.items()}
