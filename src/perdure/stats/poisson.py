"""Intervals for a rate from a count of events and an exposure. Called by `stats.rates`, `stats.mttf` and whoever shows a single count.

`scipy.special` alone is used: `scipy.stats` takes half a second to import.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def rate_interval(
    events: ArrayLike,
    exposure: ArrayLike,
    *,
    level: float = 0.90,
    dispersion: ArrayLike = 1.0,
    degrees_of_freedom: ArrayLike = np.inf,
) -> tuple[Floats, Floats]:
    """Return the two-sided interval of a rate per unit of exposure.

    `events` ≥ 0 and `exposure` > 0 broadcast against each other. With `dispersion` 1 the interval is exact for a Poisson
    count (Garwood 1936): low = χ²(α/2; 2E)/2T, high = χ²(1−α/2; 2E+2)/2T, so that zero events give 0 and 3.69/T at 95 %
    (3.00/T at 90 %, which is the one-sided 95 % bound).

    `dispersion` φ ≥ 1 is the variance of the count over its mean: the count then carries the information of E/φ
    independent events. `degrees_of_freedom` ν says how well φ is known: the variance is widened by (t_ν/z)², as the t
    distribution widens the normal.
    """
    from scipy import special

    phi = np.maximum(np.asarray(dispersion, float), 1.0) * _widening(level, degrees_of_freedom)
    effective = np.asarray(events, float) / phi
    time = np.asarray(exposure, float) / phi
    tail = (1.0 - level) / 2
    low = np.where(effective > 0, special.gammaincinv(np.maximum(effective, 1e-12), tail), 0.0)
    high = special.gammaincinv(effective + 1, 1 - tail)
    return low / time, high / time


def gamma_interval(
    estimate: ArrayLike, log_variance: ArrayLike, *, level: float = 0.90, degrees_of_freedom: ArrayLike = np.inf
) -> tuple[Floats, Floats]:
    """Return the interval of a positive quantity that was estimated with variance `log_variance` of its logarithm.

    A rate from E events has log-variance 1/E and, under Jeffreys' prior, a gamma posterior of shape E + ½: the same shape is
    used here with E = 1/`log_variance`, which covers at the stated level on average where Garwood's covers at least that.
    `degrees_of_freedom` widens it as in `rate_interval`. A variance of zero gives the estimate itself twice.
    """
    from scipy import special

    value = np.asarray(estimate, float)
    variance = np.maximum(np.asarray(log_variance, float) * _widening(level, degrees_of_freedom), 1e-12)
    shape = 1.0 / variance + 0.5
    tail = (1.0 - level) / 2
    low = value * variance * special.gammaincinv(shape, tail)
    high = value * variance * special.gammaincinv(shape, 1 - tail)
    return np.minimum(low, value), np.maximum(high, value)


def student_quantile(level: float, degrees_of_freedom: ArrayLike) -> Floats:
    """Return the half-width, in standard errors, of a two-sided interval at `level`; infinite degrees: the variance is known."""
    from scipy import special

    probability = 1 - (1 - level) / 2
    freedom = np.asarray(degrees_of_freedom, float)
    known = ~np.isfinite(freedom)
    return np.where(known, special.ndtri(probability), special.stdtrit(np.where(known, 1.0, freedom), probability))


def _widening(level: float, degrees_of_freedom: ArrayLike) -> Floats:
    ratio: Floats = student_quantile(level, degrees_of_freedom) / student_quantile(level, np.inf)
    return ratio**2
