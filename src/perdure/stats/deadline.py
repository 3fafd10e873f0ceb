"""The probability that interrupted work is done by its deadline, under retry and under resume. Called by the decision.

Time beyond the uninterrupted run is a sum of lost pieces of work, downtimes and restarts. Its generating function on a grid of
`CELLS` steps between 0 and the slack is known in closed form (a renewal in each chunk, failures during restarts included) and is
summed up to the slack by the lattice-Poisson algorithm of J. Abate and W. Whitt (1992, Numerical inversion of probability
generating functions). What it costs does not depend on how many interruptions fit into the slack.

Error: the atom *no interruption* is exact, and so is any slack too short for one restart; aliasing adds at most 1e-8. The grid
adds at most about 0.005 where a single lost piece is as long as the slack, typically under 0.001 (tests compare with a simulation).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from perdure.stats import completion

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]

CELLS = 48
"""Grid steps up to the slack: 49 evaluations a job and chunk kind. Twice as many halve the error and double the time."""

_BLOCK = 1024
"""Jobs at a time: intermediate arrays of 1 MB, which stay in the cache."""

_ROOTS = 2 * CELLS
_LOG_RADIUS = np.log(1e-8) / _ROOTS  # aliasing weighs ρ^roots, rounding 1e-16/ρ^roots: 1e-8 balances both
_TURNS = np.exp(-2j * np.pi * np.outer(np.arange(_ROOTS), np.arange(CELLS + 1)) / _ROOTS)
_POINTS = np.exp(_LOG_RADIUS) * _TURNS[1]


def _summing_weights() -> Complexes:
    """Weights w so that Re(Σ wₖ·F(ζₖ)) is the mass up to the slack; the last step counts half, since it is spread around it."""
    steps = np.arange(CELLS + 1)
    share = np.where(steps == CELLS, 0.5, 1.0) * np.exp(-steps * _LOG_RADIUS)
    both = np.where((np.arange(CELLS + 1) == 0) | (np.arange(CELLS + 1) == CELLS), 1.0, 2.0)
    turned = np.exp(2j * np.pi * np.outer(np.arange(CELLS + 1), steps) / _ROOTS)
    weights: Complexes = both * (turned @ share) / _ROOTS
    return weights


_WEIGHTS = _summing_weights()


@dataclasses.dataclass(frozen=True)
class _Part:
    """`count` chunks of one kind: `length` minutes in one go, `restart` minutes after each interruption."""

    length: Floats
    restart: Floats
    count: Floats


def retry(terms: completion.Terms, deadline: Floats) -> Floats:
    """Return the probability that retrying is done within `deadline` minutes, 0 to 1.

    A durable part that makes no whole number of pieces is interpolated between its neighbours.
    """
    pieces = completion.durable_pieces(terms.durable)
    low, high = np.floor(pieces), np.ceil(pieces)
    below = _retry_in(terms, deadline, low)
    split = high > low
    if split.any():
        above = np.array(below)
        above[split] = _retry_in(terms.pick(split), deadline[split], high[split])
        below = below + (pieces - low) * (above - below)
    return np.where(completion.exceeds_limit(terms), 0.0, below)


def _retry_in(terms: completion.Terms, deadline: Floats, pieces: Floats) -> Floats:
    return _within(deadline - terms.work - completion.lost_at_limits(terms), terms, (_Part(terms.work / pieces, terms.fresh, pieces),))


def resume(terms: completion.Terms, deadline: Floats, chunks: Floats) -> Floats:
    """Return the probability that resuming in K equal `chunks` is done within `deadline` minutes, 0 to 1."""
    chunk = terms.work / chunks
    ends = completion.limit_ends(terms, chunks)
    stops = np.where(ends > 0, ends * (terms.downtime + terms.restore + terms.checkpoint), 0.0)
    slack = deadline - terms.work - (chunks - 1.0) * terms.checkpoint - stops
    parts = (
        _Part(chunk + terms.checkpoint, terms.fresh, np.minimum(chunks - 1.0, 1.0)),
        _Part(chunk + terms.checkpoint, terms.restore, np.maximum(chunks - 2.0, 0.0)),
        _Part(chunk, terms.restore, np.ones_like(chunks)),
    )
    probability = _within(np.where(chunks > 1, slack, -np.inf), terms, parts)
    whole = chunks <= 1
    if whole.any():
        probability[whole] = retry(terms.pick(whole), deadline[whole])
    return probability


def _within(slack: Floats, terms: completion.Terms, parts: tuple[_Part, ...]) -> Floats:
    """Return the probability that all parts together lose at most `slack` minutes to interruptions."""
    busy = sum((part.length * part.count for part in parts), start=np.zeros_like(slack))
    calm = np.exp(-np.minimum(busy / terms.mttf, 700.0))  # no interruption at all
    shortest = np.minimum.reduce([np.where(part.count > 0, part.restart, np.inf) for part in parts]) + terms.downtime
    probability = np.where(slack < 0, 0.0, calm)
    open_rows = np.flatnonzero((slack > shortest) & (slack > 0) & (calm < 1.0))
    for begin in range(0, len(open_rows), _BLOCK):
        rows = open_rows[begin : begin + _BLOCK]
        chosen = tuple(_Part(part.length[rows], part.restart[rows], part.count[rows]) for part in parts)
        found = _sum_to_slack(slack[rows], terms.mttf[rows], terms.downtime[rows], chosen)
        probability[rows] = np.clip(found, calm[rows], 1.0)
    return probability


def _sum_to_slack(slack: Floats, mttf: Floats, downtime: Floats, parts: tuple[_Part, ...]) -> Floats:
    step = slack / CELLS
    total: Complexes = np.ones((len(slack), CELLS + 1), dtype=np.complex128)
    waiting = _delay(downtime, step)
    endless = _endless(mttf, step)
    lost: Complexes = endless
    previous = np.full_like(slack, -1.0)
    for part in parts:
        length = np.where(part.count > 0, part.length, 1.0)
        whole = length + part.restart
        if not np.array_equal(length, previous):  # the first chunk and the middle ones are equally long
            lost, previous = _lost_piece(length, mttf, step, endless), length
        failed = lost * _delay(downtime + part.restart, step) * _calm(whole, mttf)
        chunk = _calm(length, mttf) + failed / (1.0 - _lost_piece(whole, mttf, step, endless) * waiting)
        if (part.count == 1.0).all():
            total *= chunk
        else:
            # A chunk that cannot be passed at all underflows to zero, whose logarithm is kept finite.
            total *= np.exp(part.count[:, None] * np.log(np.where(chunk == 0, 1e-300, chunk)))
    return np.real(total @ _WEIGHTS)


def _calm(length: Floats, mttf: Floats) -> Floats:
    return np.exp(-np.minimum(length / mttf, 700.0))[:, None]


def _endless(mttf: Floats, step: Floats) -> Complexes:
    """Transform of the time to an interruption without an end: the first cell's, repeated."""
    rate = step / mttf
    transform: Complexes = _cell(np.ones_like(step), rate) / (1.0 - np.exp(-np.minimum(rate, 700.0))[:, None] * _POINTS)
    return transform


def _lost_piece(length: Floats, mttf: Floats, step: Floats, endless: Complexes) -> Complexes:
    """Transform of the time of an interruption that falls within `length`, each instant split between its two grid points.

    What falls after the last whole cell is taken off `endless`, and the broken cell put in its place.
    """
    full = np.floor(length / step)
    left = np.maximum(length - full * step, 0.0)
    rate = step / mttf
    tail = _powers(full, np.exp(-np.minimum(full * rate, 700.0)))
    transform: Complexes = endless + tail * (_cell(left / step, rate) - endless)
    return transform


def _cell(part: Floats, rate: Floats) -> Complexes:
    """Transform of an interruption within the first `part` (0 to 1) of one cell, at `rate` a cell."""
    hazard = part * rate
    mass = -np.expm1(-hazard)
    # ∫ λt·e^{−λt} dt = 1 − e^{−y}(1 + y), by its series where the difference would cancel.
    small = hazard < 0.05
    y = np.where(small, hazard, 0.0)
    series = y * y * (1 / 2 - y * (1 / 3 - y * (1 / 8 - y * (1 / 30 - y / 144))))
    moment = np.where(small, series, mass - hazard * np.exp(-np.minimum(hazard, 700.0)))
    later = moment / rate
    transform: Complexes = (mass - later)[:, None] + later[:, None] * _POINTS
    return transform


def _delay(minutes: Floats, step: Floats) -> Complexes:
    """Transform of a fixed delay, split between its two grid points."""
    full = np.floor(minutes / step)
    share = (minutes / step - full)[:, None]
    transform: Complexes = _powers(full, np.ones_like(full)) * ((1.0 - share) + share * _POINTS)
    return transform


def _powers(exponent: Floats, weight: Floats) -> Complexes:
    """Return weight·ζᵏ for whole k: the roots of unity repeat, so that a table answers what an exponential would."""
    scale = weight * np.exp(np.maximum(exponent * _LOG_RADIUS, -700.0))
    powers: Complexes = _TURNS[np.fmod(exponent, _ROOTS).astype(np.intp)] * scale[:, None]
    return powers
