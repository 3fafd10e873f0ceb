"""From questions to arrays of figures: everything a verdict rests on, for many jobs at once. Called by `verdict`.

This is where the formulas of `stats` meet the rules that need numbers; which verdict they add up to is `verdict`'s affair.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perdure import errors
from perdure.model.advice import JobQuestion, Mttf
from perdure.stats import completion, deadline

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

NEGLIGIBLE_MISS = 1e-4
"""A chance of missing the deadline that nobody would act on; below it, no second run has to fit."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """One entry a question; minutes, inf for never or none, nan for not asked."""

    terms: completion.Terms
    mttf_low: Floats
    mttf_high: Floats
    deadline: Floats
    """nan: none."""
    own_failure: Floats
    """Share of GPU-hours; 0 when not known."""
    retry: Floats
    resume: Floats
    chunks: Floats
    gain: Floats
    """retry − resume, at least 0; inf when only resuming ends."""
    gain_low: Floats
    """The same at the lower end of M."""
    gain_high: Floats
    """The same at the upper end of M."""
    retry_meets: Floats
    resume_meets: Floats
    over_limit: Flags
    """The work is longer than one attempt may run."""
    no_room: Flags
    """The deadline can be met, but not with a second run, and resuming makes that likelier."""

    # Which verdict it is needs none of these: they are for those who say why.

    @functools.cached_property
    def break_even_work(self) -> Floats:
        """See `completion.break_even_work`."""
        return completion.break_even_work(self.terms)

    @functools.cached_property
    def break_even_checkpoint(self) -> Floats:
        """See `completion.break_even_checkpoint`."""
        return completion.break_even_checkpoint(self.terms)

    @functools.cached_property
    def break_even_mttf(self) -> Floats:
        """See `completion.break_even_mttf`."""
        return completion.break_even_mttf(self.terms)

    @functools.cached_property
    def destroyed(self) -> Floats:
        """Work that an interruption destroys on average when retrying."""
        return completion.destroyed(self.terms)


def compute(questions: Sequence[JobQuestion], mttfs: Sequence[Mttf | None] | None = None) -> Figures:
    """Return the figures of all questions; where one of `mttfs` is given, at that in place of the question's own.

    Raises `errors.QuantityError` for a quantity out of its range, naming it.
    """
    terms, low, high, due, own = _gather(questions, mttfs or [None] * len(questions))
    retry = completion.retry(terms)
    chunks = completion.best_chunks(terms)
    resume = completion.resume(terms, chunks)
    gain = _gain(retry, resume)
    retry_meets, resume_meets = np.full_like(retry, np.nan), np.full_like(retry, np.nan)
    no_room = np.zeros(len(retry), dtype=np.bool_)
    rows = np.flatnonzero(~np.isnan(due))
    if len(rows):
        asked = terms.pick(rows)
        retry_meets[rows] = deadline.retry(asked, due[rows])
        chunks[rows], resume_meets[rows], no_room[rows] = _under_deadline(asked, due[rows], chunks[rows], retry_meets[rows])
        # Chunks chosen for a deadline may cost more on average than retrying; the gain stays that of the cheapest way.
        resume[rows] = completion.resume(asked, chunks[rows])
    gain_low, gain_high = gain.copy(), gain.copy()
    rows = np.flatnonzero((low < terms.mttf) | (high > terms.mttf))
    for ends, gains in ((low, gain_low), (high, gain_high)):
        at_end = terms.pick(rows).with_mttf(ends[rows])
        gains[rows] = _gain(completion.retry(at_end), completion.resume(at_end, completion.best_chunks(at_end)))
    return Figures(
        terms, low, high, due, own, retry, resume, chunks, gain, gain_low, gain_high, retry_meets, resume_meets,
        over_limit=completion.exceeds_limit(terms),
        no_room=no_room,
    )  # fmt: skip


def _gain(retry: Floats, resume: Floats) -> Floats:
    stuck = ~np.isfinite(resume)
    return np.where(stuck, 0.0, np.maximum(retry - np.where(stuck, 0.0, resume), 0.0))


def _under_deadline(terms: completion.Terms, due: Floats, chunks: Floats, retry_meets: Floats) -> tuple[Floats, Floats, Flags]:
    """Choose the chunks of jobs with a deadline: the likeliest to meet it where no second run fits, else the cheapest.

    A second run fits when it could begin at the very end of the first. Returns chunks, the probability of meeting the deadline
    with them, and where there is no room.
    """
    second_run = terms.work / completion.durable_pieces(terms.durable)
    tight = (due >= terms.work) & (due < terms.work + terms.downtime + terms.fresh + second_run) & (1.0 - retry_meets >= NEGLIGIBLE_MISS)
    pressed = np.where(tight, _pressed_chunks(terms, due, chunks), chunks)
    meets = deadline.resume(terms, due, pressed)
    helped = tight & (meets > retry_meets)
    undone = np.flatnonzero(tight & ~helped & (pressed != chunks))
    if len(undone):
        meets[undone] = deadline.resume(terms.pick(undone), due[undone], chunks[undone])
    return np.where(helped, pressed, chunks), meets, helped


def _pressed_chunks(terms: completion.Terms, due: Floats, chunks: Floats) -> Floats:
    """Return the chunks that make it likeliest to be done in time although one interruption falls anywhere into the run.

    The slack S pays K checkpoints, the downtime and a restore; what is left, B − K·C with B = S + C − D − R, covers that part of a
    chunk W/K whose loss still fits. (B − K·C)·K/W is greatest at K = B/2C; beyond √(W/C) it covers all, and more checkpoints
    only cost. Work that meets several interruptions, W > 2M, keeps the cheapest chunks.
    """
    left = due - terms.work + terms.checkpoint - terms.downtime - terms.restore
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ideal = np.fmin(np.sqrt(terms.work / terms.checkpoint), left / (2.0 * terms.checkpoint))
    return np.where(terms.work > 2.0 * terms.mttf, chunks, np.clip(np.round(ideal), 2.0, 10_000.0))


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("work", 0.0, math.inf),
    ("mttf", 0.0, math.inf),
    ("checkpoint_cost", 0.0, math.inf),
    ("restore_cost", 0.0, math.inf),
    ("fresh_cost", 0.0, math.inf),
    ("downtime", 0.0, math.inf),
    ("durable_fraction", 0.0, 1.0),
    ("limit", 0.0, math.inf),
    ("mttf_interval", 0.0, math.inf),
    ("mttf_interval", 0.0, math.inf),
    ("deadline", 0.0, math.inf),
    ("user_failure_share", 0.0, 1.0),
)
_POSITIVE = frozenset({"work", "mttf", "limit"})
_MAY_BE_INFINITE = frozenset({"mttf", "mttf_interval", "limit"})


def _gather(questions: Sequence[JobQuestion], mttfs: Sequence[Mttf | None]) -> tuple[completion.Terms, Floats, Floats, Floats, Floats]:
    flat: list[float] = []  # not a tuple a row: a million small objects would keep the garbage collector busy
    for question, other in zip(questions, mttfs, strict=True):
        costs = question.costs
        limit, within, own = question.limit_minutes, question.deadline_minutes, question.user_failure_share
        mttf, interval = (question.mttf_minutes, question.mttf_interval) if other is None else (other.minutes, other.interval)
        flat += (
            question.work_minutes,
            mttf,
            costs.checkpoint_cost_minutes,
            costs.restore_cost_minutes,
            costs.fresh_cost_minutes,
            costs.downtime_minutes,
            costs.durable_fraction,
            math.inf if limit is None else limit,
            mttf if interval is None else interval.low,
            mttf if interval is None else interval.high,
            -1.0 if within is None else within,
            0.0 if own is None else own,
        )
    table = np.array(flat, dtype=np.float64).reshape(len(questions), len(_RANGES)).T.copy()
    due = np.where([question.deadline_minutes is None for question in questions], np.nan, table[10])
    _check(np.vstack([table[:10], np.where(np.isnan(due), 0.0, table[10]), table[11]]))
    if (table[8] > table[9]).any():
        raise errors.QuantityError("mttf_interval: its lower end is above its upper end", hint="give LOW,HIGH")
    # The estimate lies within its interval; an interval from another method may miss it. A lower end of 0 has no completion.
    low = np.maximum(np.minimum(table[8], table[1]), np.minimum(table[1], 1e-9))
    return completion.Terms(*table[:8]), low, np.maximum(table[9], table[1]), due, table[11]


def _check(table: Floats) -> None:
    for column, (name, least, most) in zip(table, _RANGES, strict=True):
        bad = ~((column >= least) & (column <= most))
        if name in _POSITIVE:
            bad |= column <= 0
        if name not in _MAY_BE_INFINITE:
            bad |= np.isinf(column)
        if bad.any():
            value = float(column[np.flatnonzero(bad)[0]])
            wanted = "above 0" if name in _POSITIVE else "from 0 to 1" if most == 1.0 else "0 or more, and finite"
            raise errors.QuantityError(f"{name}: {value:g} is out of range", hint=f"it must be {wanted}")
