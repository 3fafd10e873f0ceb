"""The median of few pairs: its interval, and how many pairs tell a number from noise. Called by `evaluation`.

Resampling pairs (Efron 1979) and taking percentiles of the resampled medians ends at two of the sorted values, whatever their
distribution; drawing adds nothing but its own noise. With few values those two are too close: the plain percentile interval of 90 %
covers 82 to 88 % at 7 to 10 values (its error falls only as 1/√n: Falk and Kaufmann 1991). Hence the correction for small samples used
here: the ranks that cover by the binomial law, interpolated between (Hettmansperger and Sheather 1986). No draws, no seed: anyone can
repeat it by hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from perdure.model.advice import Interval

HEADROOM = 1 / 3
"""Part of the allowed error that is not used: interpolated ranks hold their level closely, but not for every distribution, and an interval
that says *pass* must err on the other side."""
MOST_PAIRS = 1_000_000
"""Beyond this many pairs nobody measures."""
POWER = 0.8
"""Chance that an evaluation of the size named finds what is there."""


def fewest(level: float) -> int:
    """Return the smallest number of values whose range covers their population's median with probability `level` (0.5 to 0.999).

    The range misses it when all values lie on one side: 2·(1/2)ⁿ. Five for 90 %, six for 95 %.
    """
    return max(2, math.ceil(1 - math.log2(1 - level) - 1e-9))


def median_interval(values: Sequence[float], level: float) -> Interval | None:
    """Return the interval of the median of what `values` (independent, one a pair) are drawn from; None with fewer than `fewest`.

    Hettmansperger and Sheather 1986, eq. 3, for 1 − (1 − level)·(1 − `HEADROOM`). Its test simulates five distributions.
    """
    count = len(values)
    if count < fewest(level):
        return None
    rank, weight = _position(count, level)
    ordered = np.sort(np.asarray(values, float))
    # Written so that equal neighbours give exactly their value: a threshold may be that value.
    low = ordered[rank - 1] + weight * (ordered[rank] - ordered[rank - 1])
    high = ordered[count - rank] + weight * (ordered[count - rank - 1] - ordered[count - rank])
    return Interval(float(low), float(high), level)


def pairs_needed(favourable: float, level: float, *, power: float = POWER) -> int | None:
    """Return how many pairs put the whole interval of `level` on one side of a number with probability `power`.

    `favourable`: probability, 0 to 1, that a single pair lies on that side. None when no number of pairs up to `MOST_PAIRS` does, as with
    one half. The sign test's reasoning (Noether 1987), with the exact binomial in place of his normal.
    """
    share = max(favourable, 1 - favourable)
    least = fewest(level)
    if share <= 0.5 or _power(MOST_PAIRS, share, level) < power:
        return None
    most = least
    while _power(most, share, level) < power:
        most *= 2
    low = max(least, most // 2)
    # Power climbs with small steps down: where it first suffices is looked for one by one among few, by halving among many.
    while most - low > 64:
        middle = (low + most) // 2
        low, most = (low, middle) if _power(middle, share, level) >= power else (middle, most)
    return next(count for count in range(low, most + 1) if _power(count, share, level) >= power)


def _position(count: int, level: float) -> tuple[int, float]:
    """Return the rank k ≥ 1 and the weight 0 to 1 of rank k + 1: where the lower end lies among the sorted values."""
    aim = 1 - (1 - level) * (1 - HEADROOM)
    rank = max(1, _rank(count, aim))
    outer, inner = _coverage(count, rank), _coverage(count, rank + 1)
    if outer <= aim:
        return rank, 0.0
    share = (outer - aim) / (outer - inner)
    return rank, (count - rank) * share / (rank + (count - 2 * rank) * share)


def _rank(count: int, aim: float) -> int:
    """Return the largest rank k of which [k, n + 1 − k] covers with at least `aim`, 0 when none does."""
    low, high = 0, (count + 1) // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _coverage(count, middle) >= aim else (low, middle)
    return low


def _coverage(count: int, rank: int) -> float:
    """Return the probability that the median lies between the values of ranks `rank` and count + 1 − `rank`, for any continuous law."""
    from scipy import special

    return 1 - 2 * float(special.bdtr(rank - 1, count, 0.5))


def _power(count: int, share: float, level: float) -> float:
    """Return the probability that the near end of the interval lies on the side on which single values lie with probability `share`."""
    from scipy import special

    rank, weight = _position(count, level)
    outer, inner = (float(special.bdtrc(count - k, count, share)) for k in (rank, rank + 1))
    return (1 - weight) * outer + weight * inner
