"""Retry or resume: the verdict for one job or for a hundred thousand. The door of this room; called by the library and the advisor.

The rules, in order; the first that holds decides:

1. `NEITHER`: at least `OWN_FAILURE_SHARE` of its GPU-hours ended by its own failure, or nothing that is asked of it can end
   (a limit without room for a restore and a checkpoint, interruptions faster than a restart).
2. `RESUME-REQUIRED`: the work is longer than one attempt may run, or its deadline has no room for a second run and resuming
   makes it likelier to be met. This overrides what follows.
3. `EITHER`: resuming gains more than the margin at one end of the MTTF's interval and nothing at the other; or what it gains at
   the estimate is within the margin.
4. `RESUME` where it gains, else `RETRY`.

The margin is `INDIFFERENCE` of retry's expected completion.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from perdure.decision import cautions, figures, inputs, reasons
from perdure.model.advice import BreakEven, JobQuestion, Mttf, PolicyOutcome, Verdict, VerdictKind

OWN_FAILURE_SHARE = 0.5
"""From here on more is lost to the workload's own failures than is delivered or interrupted: its bug comes first."""

INDIFFERENCE = 0.005
"""Half a percent of a run: repetitions of one job differ by more, so that nobody would see the gain."""

_BLOCK = 8192

_OPEN = frozenset({reasons.Case.STRADDLES, reasons.Case.SMALL_GAIN})
"""Cases that a measurement would settle."""

_KINDS: dict[reasons.Case, VerdictKind] = {
    reasons.Case.OWN_FAILURE: VerdictKind.NEITHER,
    reasons.Case.LIMIT_TOO_SHORT: VerdictKind.NEITHER,
    reasons.Case.NEVER_UP: VerdictKind.NEITHER,
    reasons.Case.OVER_LIMIT: VerdictKind.RESUME_REQUIRED,
    reasons.Case.NO_ROOM: VerdictKind.RESUME_REQUIRED,
    reasons.Case.STRADDLES: VerdictKind.EITHER,
    reasons.Case.SMALL_GAIN: VerdictKind.EITHER,
    reasons.Case.RETRY_NEVER_ENDS: VerdictKind.RESUME,
    reasons.Case.GAIN: VerdictKind.RESUME,
    reasons.Case.NO_GAIN: VerdictKind.RETRY,
}


def decide(question: JobQuestion) -> Verdict:
    """Return the verdict for one job. Raises `errors.QuantityError` for a quantity out of its range."""
    return decide_all([question])[0]


def decide_all(questions: Sequence[JobQuestion]) -> list[Verdict]:
    """Return the verdicts of many jobs, in order: the same as `decide` of each, at about 10 µs each.

    Raises `errors.QuantityError` for a quantity out of its range, naming it.
    """
    told = inputs.Teller()
    return [verdict for block in _blocks(questions) for verdict in _decide(block, told)]


def _decide(questions: Sequence[JobQuestion], told: inputs.Teller) -> Iterator[Verdict]:
    found = figures.compute(questions)
    rows = reasons.rows(found)
    warned = cautions.find(found, questions)
    for index, (question, case, row) in enumerate(zip(questions, _cases(found), rows, strict=True)):
        yield Verdict(
            _KINDS[case],
            reasons.sentence(case, row),
            _retry_outcome(row),
            _resume_outcome(row),
            _break_even(row),
            told.four_inputs(row, question.size),
            warned.get(index, ()),
            reasons.settling(case, row, extrapolated=question.extrapolated) if case in _OPEN else None,
        )


def _blocks(questions: Sequence[JobQuestion]) -> Iterator[Sequence[JobQuestion]]:
    """Cut into pieces whose arrays stay within a processor's cache."""
    for first in range(0, len(questions), _BLOCK):
        yield questions[first : first + _BLOCK]


def kinds(questions: Sequence[JobQuestion], mttfs: Sequence[Mttf] | None = None) -> list[VerdictKind]:
    """Return only which verdict each of many jobs gets: what `decide_all` says, without the cost of saying why.

    With `mttfs`, one a question: which it would get if its mean time to failure were that.

    Raises `errors.QuantityError` for a quantity out of its range, naming it.
    """
    others = [None] * len(questions) if mttfs is None else mttfs
    found: list[VerdictKind] = []
    for first in range(0, len(questions), _BLOCK):
        block = slice(first, first + _BLOCK)
        found += (_KINDS[case] for case in _cases(figures.compute(questions[block], others[block])))
    return found


def _cases(found: figures.Figures) -> list[reasons.Case]:
    """Apply the rules of the module's docstring, all jobs at once."""
    retry_never, resume_never = np.isinf(found.retry), np.isinf(found.resume)
    margin = INDIFFERENCE * np.where(retry_never, 0.0, found.retry)
    straddles = (found.gain_low > margin) & (found.gain_high <= 0)
    conditions: list[tuple[reasons.Case, NDArray[np.bool_]]] = [
        (reasons.Case.OWN_FAILURE, found.own_failure >= OWN_FAILURE_SHARE),
        (reasons.Case.LIMIT_TOO_SHORT, retry_never & resume_never & found.over_limit),
        (reasons.Case.NEVER_UP, retry_never & resume_never),
        (reasons.Case.OVER_LIMIT, found.over_limit),
        (reasons.Case.NO_ROOM, found.no_room),
        (reasons.Case.STRADDLES, straddles),
        (reasons.Case.RETRY_NEVER_ENDS, retry_never),
        (reasons.Case.SMALL_GAIN, (found.gain > 0) & (found.gain <= margin)),
        (reasons.Case.GAIN, found.gain > margin),
    ]
    order = [case for case, _ in conditions] + [reasons.Case.NO_GAIN]
    chosen = np.select([flags for _, flags in conditions], np.arange(len(conditions)), default=len(conditions))
    return [order[number] for number in chosen.tolist()]


# Hundreds of thousands are made: the tests are written out here, not called. NaN differs from itself: no deadline.


def _retry_outcome(row: reasons.Row) -> PolicyOutcome:
    expected, meets = row.retry, row.retry_meets
    never = expected == math.inf
    return PolicyOutcome(None if never else expected, never, 1, None, meets if meets == meets else None)  # noqa: PLR0124


def _resume_outcome(row: reasons.Row) -> PolicyOutcome:
    expected, meets = row.resume, row.resume_meets
    never, chunks = expected == math.inf, int(row.chunks)
    interval = row.work / chunks if chunks > 1 else None
    return PolicyOutcome(None if never else expected, never, chunks, interval, meets if meets == meets else None)  # noqa: PLR0124


def _break_even(row: reasons.Row) -> BreakEven:
    return BreakEven(
        _finite(row.break_even_work),
        row.break_even_checkpoint if 0 < row.break_even_checkpoint < math.inf else None,
        row.break_even_mttf if 0 < row.break_even_mttf < math.inf else None,
    )


def _finite(minutes: float) -> float | None:
    return minutes if minutes < math.inf else None
