"""Block bootstrap of event counts: how much a total varies when whole blocks of days are drawn again. Called by `stats.rates`.

Failures come in bursts, so days are not independent. Blocks of consecutive days are: they hold a burst whole when they are
as long as the memory of the daily counts. The circular block bootstrap (Politis and Romano 1992) draws them with
replacement; totals are linear in the days, so a draw is one weighted sum and a thousand of them one matrix product.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHORTEST_BLOCK_DAYS = 3
"""Bursts that run past midnight, and nodes that come back twice, spoil the independence of neighbouring days too weakly for
three months of counts to show it. Where days are independent, thirty blocks of three days say as much as ninety of one."""
RESAMPLES = 1000
"""Draws; the Monte Carlo error of a variance is then √(2/1000) = 4.5 %, of a half-width 2.2 %."""


def choose_block_length(residuals: Floats) -> int:
    """Return the block length in days for daily `residuals` (counts less what exposure predicts), in order, gaps as zero.

    Politis and White 2004 with the correction of Patton, Politis and White 2009 for the circular bootstrap: the number of
    days over which the residuals remember each other decides. Bounded below by `SHORTEST_BLOCK_DAYS` and above by a sixth of the
    days (at least 1), since fewer than six blocks say nothing of their own variance; the upper bound wins.
    """
    days = residuals.size
    longest = max(1, days // 6)
    centred = residuals - residuals.mean() if days else residuals
    variance = float(centred @ centred) / max(days, 1)
    shortest = min(SHORTEST_BLOCK_DAYS, longest)
    if longest == shortest or variance <= 0:
        return shortest
    lags = min(longest, max(5, math.ceil(math.sqrt(days))))
    covariance = np.array([float(centred[: days - lag] @ centred[lag:]) / days for lag in range(lags + 1)])
    significant = np.flatnonzero(np.abs(covariance[1:]) > 2 * math.sqrt(math.log10(days) / days) * variance)
    if significant.size == 0:
        return shortest
    window = min(2 * int(significant[-1] + 1), lags)
    ramp = np.minimum(1.0, 2 * (1 - np.arange(1, window + 1) / (window + 1)))
    weighted = ramp * covariance[1 : window + 1]
    slope = 2 * float(weighted @ np.arange(1, window + 1))
    spectrum = variance + 2 * float(weighted.sum())
    if spectrum <= 0:
        return shortest
    best = (2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * days ** (1 / 3)
    return int(np.clip(math.ceil(best), shortest, longest))


def resample_totals(daily: Floats, block_days: int, generator: np.random.Generator, *, resamples: int = RESAMPLES) -> Floats:
    """Draw blocks of `block_days` days with replacement and return the totals of each draw.

    `daily` has one row a day and one column a quantity (shape days × quantities), in order. Returns shape resamples ×
    quantities. Each draw holds as many days as the history, and is scaled by √(N/(N−L)) about its mean, since
    deviations from an estimated mean are that much too small.
    """
    days, quantities = daily.shape
    centred = daily - daily.mean(axis=0)
    wrapped = np.vstack([centred, centred[: block_days - 1]]) if block_days > 1 else centred
    sums = np.vstack([np.zeros(quantities), np.cumsum(wrapped, axis=0)])
    windows = sums[block_days:] - sums[:-block_days]
    draws = days / block_days
    whole = math.ceil(draws)
    counts = generator.multinomial(whole, np.full(days, 1 / days), size=resamples)
    # A draw of more days than the history has is shrunk to the history's length in variance.
    scale = math.sqrt(draws / whole) * math.sqrt(days / max(days - block_days, 1))
    totals: Floats = daily.sum(axis=0) + scale * (counts @ windows)
    return totals


def degrees_of_freedom(daily: Floats, block_days: int) -> float:
    """Return how many independent normal blocks would tell the variance of the total of `daily` (one dimension) as well.

    Satterthwaite 1946: ν = 2(Σw²)²/(Σw⁴ − (Σw²)²/B) over the deviations w of blocks. Blocks of equal size give their number
    less one; one burst that outweighs all other days gives about 1, and the interval says so by its width.
    """
    days = daily.size
    blocks = days // block_days
    if blocks < 2:
        return 1.0
    centred = daily - daily.mean()
    wrapped = np.concatenate([centred, centred[: block_days - 1]])
    sums = np.concatenate([[0.0], np.cumsum(wrapped)])
    squares = (sums[block_days:] - sums[:-block_days]) ** 2
    second, fourth = float(squares.mean()), float((squares**2).mean())
    spread = fourth - second**2
    if second <= 0 or spread <= 0:
        return float(blocks - 1)
    return float(np.clip(2 * blocks * second**2 / spread, 1.0, blocks - 1))
