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

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from perdure.decision import cautions, figures, inputs, reasons
from perdure.model.advice import BreakEven, JobQuestion, PolicyOutcome, Verdict, VerdictKind

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


def decide_all(questions: Sequence[JobQuestion], asked: figures.Asked | None = None) -> list[Verdict]:
    """Return the verdicts of many jobs, in order: the same as `decide` of each, at about 10 µs each.

    `asked`: what `figures.gather` made of `questions`, for a caller that needs it itself.

    Raises `errors.QuantityError` for a quantity out of its range, naming it.
    """
    told = inputs.Teller()
    numbers = figures.gather(questions) if asked is None else asked
    return [verdict for block in _blocks(len(questions)) for verdict in _decide(questions[block], numbers.pick(block), told)]


def _decide(questions: Sequence[JobQuestion], asked: figures.Asked, told: inputs.Teller) -> Iterator[Verdict]:
    found = figures.compute(asked)
    work = found.terms.work
    retries = _outcomes(found.retry, np.ones_like(work), work, found.retry_meets)
    resumes = _outcomes(found.resume, found.chunks, work, found.resume_meets)
    columns = (questions, _cases(found), reasons.rows(found), retries, resumes, _break_evens(found))
    warned = cautions.find(found, questions)
    for index, (question, case, row, retry, resume, break_even) in enumerate(zip(*columns, strict=True)):
        yield Verdict(
            _KINDS[case],
            reasons.sentence(case, row),
            retry,
            resume,
            break_even,
            told.four_inputs(row, question.size),
            warned.get(index, ()),
            reasons.settling(case, row, extrapolated=question.extrapolated) if case in _OPEN else None,
        )


def _blocks(count: int) -> Iterator[slice]:
    """Cut into pieces whose arrays stay within a processor's cache."""
    return (slice(first, first + _BLOCK) for first in range(0, count, _BLOCK))


def kinds(asked: figures.Asked) -> list[VerdictKind]:
    """Return only which verdict each of many jobs gets: what `decide_all` says, without the cost of saying why."""
    blocks = _blocks(len(asked.deadline))
    return [_KINDS[case] for block in blocks for case in _cases(figures.compute(asked.pick(block)))]


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


def _outcomes(expected: figures.Floats, chunks: figures.Floats, work: figures.Floats, meets: figures.Floats) -> Iterator[PolicyOutcome]:
    never = np.isinf(expected)
    return map(
        PolicyOutcome,
        _known(expected, ~never),
        never.tolist(),
        chunks.astype(np.int64).tolist(),
        _known(work / chunks, chunks > 1),
        _known(meets, ~np.isnan(meets)),
    )


def _break_evens(found: figures.Figures) -> Iterator[BreakEven]:
    work, checkpoint, mttf = found.break_even_work, found.break_even_checkpoint, found.break_even_mttf
    positive = (_known(column, (column > 0) & (column < np.inf)) for column in (checkpoint, mttf))
    return map(BreakEven, _known(work, work < np.inf), *positive)


def _known(column: figures.Floats, known: figures.Flags) -> list[float | None]:
    """Return plain numbers, None for those that are not `known`."""
    if known.all():
        values: list[float | None] = column.tolist()
        return values
    objects = column.astype(object)
    objects[~known] = None
    return list(objects)
