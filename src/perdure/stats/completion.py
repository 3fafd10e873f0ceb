"""Expected completion of work that is interrupted: run again from the beginning, or resumed from checkpoints.

Interruptions arrive at rate 1/M, also during restarts; each costs the downtime D, then a restart, then the work since the last
safe state. All quantities are arrays of minutes of one shape. *Never* is written as inf: the expectation exceeds
e^`NEVER_EXPONENT` times M, or a limit makes the end unreachable. Called by the decision and by the replay of a history.

Sources: the renewal argument of J. T. Daly (2006, eq. 13) with failures during restarts; K chunks as in M. Bougeret et al. (2011,
Checkpointing strategies for parallel jobs). Tests hold them against a simulation and against published figures.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from perdure.stats import intervals

Floats = NDArray[np.float64]

NEVER_EXPONENT = 100.0
"""Beyond e^100 ≈ 3e43 times M an expectation is no time any more; below it nothing here overflows."""

MOST_CHUNKS = 1_000_000.0
"""A free checkpoint would be taken without end."""


_MOST_STEPS = 100
"""From the ideal's neighbours to the best number of chunks: one at most where checkpoints are short beside the MTTF."""

_TOLERANCE = 1.0 + 1e-9
"""Work that equals its limit fits it, whatever the rounding."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """What the formulas are made of, one entry a job, minutes."""

    work: Floats
    """W > 0: uninterrupted run time."""
    mttf: Floats
    """M > 0, inf for never."""
    checkpoint: Floats
    """C ≥ 0."""
    restore: Floats
    """R ≥ 0: restart from a checkpoint."""
    fresh: Floats
    """R0 ≥ 0: restart from the beginning."""
    downtime: Floats
    """D ≥ 0."""
    durable: Floats
    """Part of the work that survives an interruption anyway, 0 to 1."""
    limit: Floats
    """Wall-time limit of one attempt, inf for none."""

    def pick(self, rows: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Terms:
        """Return the terms of some rows."""
        return Terms(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def with_mttf(self, mttf: Floats) -> Terms:
        """Return the terms with another M."""
        return dataclasses.replace(self, mttf=mttf)


def piece(length: Floats, restart: Floats, mttf: Floats, downtime: Floats) -> Floats:
    """Return E = e^{r/M}·(M + D)·(e^{x/M} − 1), the expected time to get through `length` x in one go, restarts costing r."""
    return _piece(_restart(restart, mttf, downtime), _through(length, mttf))


@dataclasses.dataclass(frozen=True)
class _Part:
    """One of the two parts of a piece's expected time, which is computed once for all pieces that share it."""

    exponent: Floats
    """Its share of the exponent that `NEVER_EXPONENT` bounds."""
    factor: Floats


def _restart(minutes: Floats, mttf: Floats, downtime: Floats) -> _Part:
    """What restarting takes: e^{r/M}·(1 + D/M)."""
    exponent = minutes / mttf
    return _Part(exponent, np.exp(np.minimum(exponent, NEVER_EXPONENT)) * (1.0 + downtime / mttf))


def _through(length: Floats, mttf: Floats) -> tuple[_Part, Floats]:
    """What getting through takes once it runs: (e^{x/M} − 1)/(x/M), which is 1 for M = inf; and the length."""
    exponent = length / mttf
    safe = np.minimum(exponent, NEVER_EXPONENT)
    return _Part(exponent, np.divide(np.expm1(safe), safe, out=np.ones_like(safe), where=safe > 0)), length


def _piece(restart: _Part, through: tuple[_Part, Floats]) -> Floats:
    work, length = through
    with np.errstate(over="ignore"):  # where it is never done
        expected = restart.factor * length * work.factor
    expected[work.exponent + restart.exponent > NEVER_EXPONENT] = np.inf
    return expected


def durable_pieces(durable: Floats) -> Floats:
    """Return 1/(1 − f): how many equal pieces an application that saves its own state in must make for a part f to survive.

    With n equal pieces an interruption destroys W/(2n) on average instead of W/2: a part 1 − 1/n survives.
    """
    return 1.0 / np.maximum(1.0 - durable, 1.0 / MOST_CHUNKS)


def retry(terms: Terms) -> Floats:
    """Return the expected completion without checkpoints of ours: e^{R0/M}·(M + D)·(e^{W/M} − 1); inf: never.

    A durable part f cuts the work into `durable_pieces`. Work longer than the limit of one attempt is never done, unless the
    application goes on from its own pieces: then every end at the limit costs the downtime, a start and half a piece.
    """
    pieces = durable_pieces(terms.durable)
    expected = pieces * piece(terms.work / pieces, terms.fresh, terms.mttf, terms.downtime)
    return np.where(exceeds_limit(terms), np.inf, expected + lost_at_limits(terms))


def lost_at_limits(terms: Terms) -> Floats:
    """Return the minutes that an application which goes on by itself loses where its attempts end at their limit; 0 for others."""
    own = terms.work / durable_pieces(terms.durable)
    over = (terms.work > terms.limit * _TOLERANCE) & ~exceeds_limit(terms)
    room = np.where(over, terms.limit - terms.fresh - own, 1.0)
    ends = np.ceil(np.where(over, terms.work - terms.limit, 0.0) / room)
    return ends * (terms.downtime + terms.fresh + own / 2.0)


def exceeds_limit(terms: Terms) -> NDArray[np.bool_]:
    """Tell where the work is longer than one attempt may run, so that running it again can never end.

    W is run time as accounting sees it: a first start's set-up is part of it. An application that keeps a part of its state is
    exempt where a start and one of its own pieces fit into the limit.
    """
    own = terms.work / durable_pieces(terms.durable)
    return (terms.work > terms.limit * _TOLERANCE) & ((terms.durable <= 0) | (terms.fresh + own >= terms.limit))


def resume(terms: Terms, chunks: Floats) -> Floats:
    """Return the expected completion in K equal `chunks` with a checkpoint between them; inf: never.

    Σᵢ e^{rᵢ/M}·(M + D)·(e^{(W/K + cᵢ)/M} − 1): the first chunk restarts at R0, later ones at R, the last is followed by no
    checkpoint. K = 1 is retry. Every end of an attempt at its limit costs one more checkpoint, the downtime and a restore.
    """
    return _Chunking.of(terms).expected(chunks, retry(terms))


@dataclasses.dataclass(frozen=True)
class _Chunking:
    """What `resume` takes of the same jobs in any number of chunks."""

    terms: Terms
    fresh: _Part
    restore: _Part

    @classmethod
    def of(cls, terms: Terms) -> _Chunking:
        return cls(terms, *(_restart(minutes, terms.mttf, terms.downtime) for minutes in (terms.fresh, terms.restore)))

    def expected(self, chunks: Floats, in_one_go: Floats) -> Floats:
        """Return what `resume` does; `in_one_go`: for a single chunk."""
        terms = self.terms
        chunk = terms.work / chunks
        saved = _through(chunk + terms.checkpoint, terms.mttf)
        first, middle, last = _piece(self.fresh, saved), _piece(self.restore, saved), _piece(self.restore, _through(chunk, terms.mttf))
        between = np.where(chunks > 2, np.where(chunks > 2, chunks - 2.0, 1.0) * middle, 0.0)
        return np.where(chunks > 1, first + between + last + self._stops(chunks), in_one_go)

    def _stops(self, chunks: Floats) -> Floats:
        """What the ends at the limit cost."""
        terms = self.terms
        stops = limit_ends(terms, chunks)
        met = np.flatnonzero(stops > 0)
        if met.size:
            some = terms.pick(met)
            stops[met] *= some.downtime + piece(some.restore + some.checkpoint, some.restore, some.mttf, some.downtime)
        return stops


def limit_ends(terms: Terms, chunks: Floats) -> Floats:
    """Return how many attempts end at their limit in an otherwise uninterrupted run; inf where no attempt gets on.

    An attempt of length L has room for L − R − C of progress: it begins with a restore and ends with a checkpoint.
    """
    busy = terms.work + (chunks - 1.0) * terms.checkpoint
    room = terms.limit - terms.restore - terms.checkpoint
    bounded = (busy > terms.limit * _TOLERANCE) & (chunks > 1)
    usable = bounded & (room > 0)
    ends = np.ceil(np.where(usable, busy - terms.limit + terms.checkpoint, 0.0) / np.where(usable, room, 1.0))
    return np.where(bounded, np.where(usable, ends, np.inf), 0.0)


@dataclasses.dataclass(frozen=True)
class Policies:
    """Expected completions of both policies."""

    retry: Floats
    resume: Floats
    """In `chunks`."""
    chunks: Floats


def best_chunks(terms: Terms) -> Floats:
    """Return the K of `compare`."""
    return compare(terms).chunks


def compare(terms: Terms) -> Policies:
    """Return `retry`, and `resume` in the K ≥ 1 chunks that take least: from one, two, an ideal's floor or ceiling on downhill.

    The ideal is W over the exact interval, corrected for a first chunk that restarts at R0 instead of R: to first order the sum
    K·C + W²/(2MK) gains W·(e^{(R0 − R)/M} − 1)/K, so that K² grows by W·(e^{(R0 − R)/M} − 1)/C. Where C and R are not small beside M, it
    is a chunk or two off.

    Where the work is longer than an attempt may run, chunks are at least as many as make one fit into the limit; there are at
    least 2 unless the application goes on from its own state (then one, without checkpoints of ours, is possible too).
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ideal = terms.work / intervals.exact(terms.mttf, terms.checkpoint)
        first = terms.work * np.expm1(np.minimum((terms.fresh - terms.restore) / terms.mttf, NEVER_EXPONENT)) / terms.checkpoint
        corrected = np.sqrt(np.maximum(ideal * ideal + first, 1.0))
    # 0/0 and ∞ − ∞ stand for checkpoints that cost nothing.
    ideal = np.minimum(np.where(np.isnan(corrected), MOST_CHUNKS, corrected), MOST_CHUNKS)
    room = terms.limit - terms.restore - terms.checkpoint
    longer = terms.work > terms.limit * _TOLERANCE
    # A limit without room for a restore and a checkpoint is hopeless at any K; `resume` says so.
    fitting = np.ceil(np.where(longer & (room > 0), terms.work, 0.0) / np.where(longer & (room > 0), room, 1.0))
    least = np.where(longer, np.maximum(fitting, 2.0), 1.0)
    in_one_go, chunking = retry(terms), _Chunking.of(terms)
    best = np.where(exceeds_limit(terms), least, 1.0)
    lowest = chunking.expected(best, in_one_go) if (best > 1).any() else in_one_go
    most = np.maximum(MOST_CHUNKS, least)

    def try_out(candidate: Floats) -> bool:
        nonlocal best, lowest
        chunks = np.clip(candidate, least, most)
        expected = chunking.expected(chunks, in_one_go)
        better = expected < lowest
        best, lowest = np.where(better, chunks, best), np.where(better, expected, lowest)
        return bool(better.any())

    for candidate in (np.full_like(ideal, 2.0), np.floor(ideal), np.ceil(ideal)):
        try_out(candidate)
    for _ in range(_MOST_STEPS):
        has_moved = try_out(best + 1.0)
        if not (try_out(best - 1.0) or has_moved):
            break
    return Policies(in_one_go, lowest, best)


def destroyed(terms: Terms) -> Floats:
    """Return the work that one interruption destroys on average when retrying: M − w/(e^{w/M} − 1), w the piece that is run again."""
    own = terms.work / durable_pieces(terms.durable)
    exponent = own / terms.mttf
    plain = (exponent > 1e-4) & (exponent < NEVER_EXPONENT)
    middle = np.where(plain, exponent, 1.0)
    share = np.where(plain, 1.0 / middle - 1.0 / np.expm1(middle), 0.5 - np.minimum(exponent, 1.0) / 12.0)
    return np.where(exponent >= NEVER_EXPONENT, terms.mttf, own * share)


def break_even_work(terms: Terms) -> Floats:
    """Return W*, the work beyond which the first checkpoint pays, to first order: ΔR + √(ΔR² + 4CM), ΔR = R − R0; inf: never.

    With a durable part f the application's own pieces already save some: the least W over K of
    W²/2M·(1 − f − 1/K) = (K − 1)·C + W·ΔR/M·(1 − 1/K), reached near K = (1 + √f)/(1 − f).
    """
    best = np.full_like(terms.work, np.inf)
    difference = terms.restore - terms.fresh
    for chunks in _break_even_chunks(terms):
        gain = 1.0 - terms.durable - 1.0 / chunks
        possible = (gain > 0) & np.isfinite(terms.mttf)
        mttf = np.where(possible, terms.mttf, 1.0)
        half = difference * (1.0 - 1.0 / chunks)
        square = half * half + 2.0 * np.where(possible, gain, 1.0) * (chunks - 1.0) * terms.checkpoint * mttf
        best = np.where(possible, np.minimum(best, (half + np.sqrt(square)) / np.where(possible, gain, 1.0)), best)
    return best


def break_even_checkpoint(terms: Terms) -> Floats:
    """Return C_max, the dearest checkpoint with which resuming still beats retrying; 0 or less: none.

    Solved from the exact forms with K chunks: C = M·ln[1 + (X − e^{R/M}(e^{W/KM} − 1)) / (e^{R0/M} + (K − 2)e^{R/M})] − W/K,
    where X·(M + D) is what retrying takes. To first order W²/(4M) − W·ΔR/(2M).
    """
    best = np.full_like(terms.work, -np.inf)
    unit = np.zeros_like(terms.work)
    for chunks in _break_even_chunks(terms):
        whole = durable_pieces(terms.durable)
        total = whole * piece(terms.work / whole, terms.fresh, terms.mttf, unit)
        last = piece(terms.work / chunks, terms.restore, terms.mttf, unit)
        never = ~np.isfinite(total)
        rest = np.where(never, 0.0, total) - np.where(np.isfinite(last), last, np.inf)
        finite = np.isfinite(terms.mttf) & ~never & (rest > 0)
        mttf = np.where(finite, terms.mttf, 1.0)
        weight = np.exp(np.where(finite, terms.fresh / mttf, 0.0)) + (chunks - 2.0) * np.exp(np.where(finite, terms.restore / mttf, 0.0))
        cost = mttf * np.log1p(np.where(finite, rest, 0.0) / mttf / weight) - terms.work / chunks
        # Where retry never ends, e^{W/M} outweighs all else and what is left is the difference of the exponents.
        cost = np.where(never, terms.work * np.maximum(1.0 / whole - 1.0 / chunks, 0.0), np.where(finite, cost, 0.0))
        best = np.maximum(best, cost)
    return best


def break_even_checkpoint_first_order(terms: Terms) -> Floats:
    """Return W²/(4M) − W·ΔR/(2M), valid where W/M is small and nothing is durable."""
    return terms.work**2 / (4.0 * terms.mttf) - terms.work * (terms.restore - terms.fresh) / (2.0 * terms.mttf)


def break_even_mttf(terms: Terms) -> Floats:
    """Return the MTTF at which retry and resume cost the same, to first order; 0 or less: none; inf for free checkpoints.

    [W²/2·(1 − f − 1/K) − W·ΔR·(1 − 1/K)] / ((K − 1)·C); for f = 0 it is (W²/4 − W·ΔR/2)/C.
    """
    best = np.full_like(terms.work, -np.inf)
    for chunks in _break_even_chunks(terms):
        saved = terms.work / 2.0 * (1.0 - terms.durable - 1.0 / chunks)
        dearer = (terms.restore - terms.fresh) * (1.0 - 1.0 / chunks)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            mttf = terms.work * (saved - dearer) / ((chunks - 1.0) * terms.checkpoint)
        best = np.fmax(best, mttf)
    return best


def _break_even_chunks(terms: Terms) -> tuple[Floats, Floats]:
    """The numbers of chunks that pay first: 2 without durable state, (1 + √f)/(1 − f) rounded both ways with it."""
    ideal = np.minimum((1.0 + np.sqrt(terms.durable)) / np.maximum(1.0 - terms.durable, 1.0 / MOST_CHUNKS), MOST_CHUNKS)
    return np.maximum(np.floor(ideal), 2.0), np.maximum(np.ceil(ideal), 2.0)
