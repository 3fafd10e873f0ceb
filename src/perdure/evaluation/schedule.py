"""Which faults strike a run, and where in its work: drawn from a seed, the same in both arms of a pair. Called by `harness`. Pure.

A schedule is of points of progress, because only there can two arms meet the same fault: at a time of day one of them may be down. Faults
at a rate are drawn as a Poisson process in hours of undisturbed running (gaps are exponential) and put onto the counter by the pace of
the baseline; `distance` tests gaps against that. Kinds are dealt like cards: of n faults in a row each of n kinds comes once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import msgspec

from perdure.evaluation.plan import Faults
from perdure.model.evaluation import FaultKind

MOST = 10_000
"""A run meets no more faults than this: a rate far above the length of a run is a mistake in the plan."""


class Pace(msgspec.Struct, frozen=True):
    """How the workload counts when nothing disturbs it, from the baseline."""

    per_s: float
    """Counts a second, above 0."""
    last: float
    """The counter at its end."""


class Planned(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault to come."""

    kind: FaultKind
    counter: float | None
    """It strikes when the workload's counter reaches this for the first time; None: by hand, now."""
    drawn_s: float | None = None
    """Seconds of undisturbed running that were drawn, None where the plan names counters."""


def draw(faults: Faults, *, pair: int, pace: Pace | None) -> tuple[Planned, ...]:
    """Return the faults of the runs of `pair` (1, 2, …), in order of their counters; the same for the same seed, pair and pace.

    `pace` is needed for a rate. Raises ValueError for a plan without a seed or kinds, and for a rate without a pace.
    """
    if faults.seed is None or not faults.kinds:
        raise ValueError("a schedule needs a seed and kinds")
    drawn = random.Random(f"perdure schedule 1: {faults.seed}: {pair}")  # noqa: S311
    deck = _deal(faults.kinds, drawn)
    if faults.rate_per_hour is None:
        return tuple(Planned(next(deck), counter) for counter in sorted(faults.at_progress))
    if pace is None:
        raise ValueError("a rate needs the pace of the baseline")
    found: list[Planned] = []
    for at_s in _times(faults.rate_per_hour, drawn):
        counter = at_s * pace.per_s
        if counter >= pace.last or len(found) == MOST:
            break
        found.append(Planned(next(deck), counter, at_s))
    return tuple(found)


def distance(gaps: Sequence[float], rate: float) -> tuple[float, float]:
    """Compare `gaps` with the exponential distribution of `rate` (in the inverse of their unit), by Kolmogorov and Smirnov.

    Returns the largest distance D between the two distribution functions, 0 to 1, and the probability of one at least as large if the gaps
    are drawn from it (Kolmogorov's series, with the correction for small numbers by Stephens 1970). Raises ValueError without gaps.
    """
    if not gaps:
        raise ValueError("there are no gaps to compare")
    return evenness([-math.expm1(-rate * gap) for gap in gaps])


def evenness(shares: Sequence[float]) -> tuple[float, float]:
    """Compare `shares`, each 0 to 1, with the uniform distribution, by Kolmogorov and Smirnov; returns D and its probability as `distance`.

    Raises ValueError without shares.
    """
    if not shares:
        raise ValueError("there are no shares to compare")
    count = len(shares)
    largest = 0.0
    for index, share in enumerate(sorted(shares)):
        largest = max(largest, share - index / count, (index + 1) / count - share)
    root = math.sqrt(count)
    return largest, _kolmogorov((root + 0.12 + 0.11 / root) * largest)


def gaps_s(planned: Sequence[Planned]) -> tuple[float, ...]:
    """Return the seconds between faults that were drawn at a rate, the first from the start."""
    times = [each.drawn_s for each in planned if each.drawn_s is not None]
    return tuple(after - before for before, after in zip([0.0, *times], times, strict=False))


def _kolmogorov(value: float) -> float:
    if value < 0.2:
        return 1.0  # the series converges slowly there; the probability differs from 1 by less than 1e-12
    terms = (2 * (-1) ** (term - 1) * math.exp(-2 * term * term * value * value) for term in range(1, 101))
    return min(1.0, max(0.0, math.fsum(terms)))


def _times(rate_per_hour: float, drawn: random.Random) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += drawn.expovariate(rate_per_hour / 3600)
        yield at_s


def _deal(kinds: Sequence[FaultKind], drawn: random.Random) -> Iterator[FaultKind]:
    while True:
        deck = list(kinds)
        drawn.shuffle(deck)
        yield from deck
