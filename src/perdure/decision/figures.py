"""From questions to arrays of figures: everything a verdict rests on, for many jobs at once. Called by `verdict`.

This is where the formulas of `stats` meet the rules that need numbers; which verdict they add up to is `verdict`'s affair.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence

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
class Asked:
    """What many questions ask, as numbers: one entry a question; minutes. Made by `gather`."""

    terms: completion.Terms
    mttf_low: Floats
    """At most M."""
    mttf_high: Floats
    """At least M; inf: none."""
    deadline: Floats
    """nan: none."""
    own_failure: Floats
    """Share of GPU-hours; 0 when not known."""

    def pick(self, rows: slice | NDArray[np.intp]) -> Asked:
        """Return some of them."""
        ends = (self.mttf_low, self.mttf_high, self.deadline, self.own_failure)
        return Asked(self.terms.pick(rows), *(column[rows] for column in ends))

    def with_mttfs(self, mttfs: Sequence[Mttf]) -> Asked:
        """Return the same asked at other mean times to interruption. Raises `errors.QuantityError` for one out of its range."""
        ends = [
            (one.minutes, one.minutes, one.minutes) if one.interval is None else (one.minutes, one.interval.low, one.interval.high)
            for one in mttfs
        ]
        mttf, low, high = np.array(ends, dtype=np.float64).reshape(-1, 3).T.copy()
        _check([("mttf", mttf), ("mttf_interval", low), ("mttf_interval", high)])
        low, high = _around(mttf, low, high)
        return dataclasses.replace(self, terms=self.terms.with_mttf(mttf), mttf_low=low, mttf_high=high)


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


def compute(asked: Asked) -> Figures:
    """Return the figures of all that is asked."""
    terms, low, high, due = asked.terms, asked.mttf_low, asked.mttf_high, asked.deadline
    best = completion.compare(terms)
    retry, resume, chunks = best.retry, best.resume.copy(), best.chunks
    gain = _gain(best)
    retry_meets, resume_meets = np.full_like(retry, np.nan), np.full_like(retry, np.nan)
    no_room = np.zeros(len(retry), dtype=np.bool_)
    rows = np.flatnonzero(~np.isnan(due))
    if len(rows):
        pressed = terms.pick(rows)
        retry_meets[rows] = deadline.retry(pressed, due[rows])
        chunks[rows], resume_meets[rows], no_room[rows] = _under_deadline(pressed, due[rows], chunks[rows], retry_meets[rows])
        # Chunks chosen for a deadline may cost more on average than retrying; the gain stays that of the cheapest way.
        resume[rows] = completion.resume(pressed, chunks[rows])
    gain_low, gain_high = gain.copy(), gain.copy()
    rows = np.flatnonzero((low < terms.mttf) | (high > terms.mttf))
    for ends, gains in ((low, gain_low), (high, gain_high)):
        gains[rows] = _gain(completion.compare(terms.pick(rows).with_mttf(ends[rows])))
    return Figures(
        terms, low, high, due, asked.own_failure, retry, resume, chunks, gain, gain_low, gain_high, retry_meets, resume_meets,
        over_limit=completion.exceeds_limit(terms),
        no_room=no_room,
    )  # fmt: skip


def _gain(found: completion.Policies) -> Floats:
    stuck = ~np.isfinite(found.resume)
    return np.where(stuck, 0.0, np.maximum(found.retry - np.where(stuck, 0.0, found.resume), 0.0))


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


def gather(questions: Sequence[JobQuestion]) -> Asked:
    """Return `questions` as numbers, in their order. Raises `errors.QuantityError` for a quantity out of its range, naming it."""
    flat: list[float] = []  # not a tuple a row: a million small objects would keep the garbage collector busy
    for question in questions:
        costs = question.costs
        limit, within, own = question.limit_minutes, question.deadline_minutes, question.user_failure_share
        mttf, interval = question.mttf_minutes, question.mttf_interval
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
    table = np.array(flat, dtype=np.float64).reshape(len(questions), len(_COLUMNS)).T.copy()
    due = np.where([question.deadline_minutes is None for question in questions], np.nan, table[10])
    _check(zip(_COLUMNS, [*table[:10], np.where(np.isnan(due), 0.0, table[10]), table[11]], strict=True))
    low, high = _around(table[1], table[8], table[9])
    return Asked(completion.Terms(*table[:8]), low, high, due, table[11])


def _around(mttf: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the interval's ends, with the estimate within it: an interval from another method may miss it."""
    if (low > high).any():
        raise errors.QuantityError("mttf_interval: its lower end is above its upper end", hint="give LOW,HIGH")
    # A lower end of 0 has no completion.
    return np.maximum(np.minimum(low, mttf), np.minimum(mttf, 1e-9)), np.maximum(high, mttf)


_COLUMNS = (
    "work", "mttf", "checkpoint_cost", "restore_cost", "fresh_cost", "downtime", "durable_fraction", "limit", "mttf_interval",
    "mttf_interval", "deadline", "user_failure_share",
)  # fmt: skip
_SHARES = frozenset({"durable_fraction", "user_failure_share"})
_POSITIVE = frozenset({"work", "mttf", "limit"})
_MAY_BE_INFINITE = frozenset({"mttf", "mttf_interval", "limit"})


def _check(columns: Iterable[tuple[str, Floats]]) -> None:
    for name, column in columns:
        bad = ~((column >= 0) & (column <= (1.0 if name in _SHARES else math.inf)))
        if name in _POSITIVE:
            bad |= column <= 0
        if name not in _MAY_BE_INFINITE:
            bad |= np.isinf(column)
        if bad.any():
            value = float(column[np.flatnonzero(bad)[0]])
            wanted = "above 0" if name in _POSITIVE else "from 0 to 1" if name in _SHARES else "0 or more, and finite"
            raise errors.QuantityError(f"{name}: {value:g} is out of range", hint=f"it must be {wanted}")
