"""How often to checkpoint: Young, Daly and the exact optimum. Called by the decision, the replay and `perdure interval`.

All functions take arrays (or numbers) of minutes, broadcast against each other, and return minutes of *useful work* between
two checkpoints; `cost` is C ≥ 0, what one checkpoint takes, `mttf` is M > 0, the job's mean time to interruption (inf: never).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_SERIES_BELOW = 0.1
"""s = √(2C/M) under which the seven terms below are exact to 1e-13, where the logarithm would lose digits."""


def young(mttf: ArrayLike, cost: ArrayLike) -> Floats:
    """Return √(2CM) (J. W. Young, 1974, A first order approximation to the optimum checkpoint interval)."""
    mttf_minutes, cost_minutes = _pair(mttf, cost)
    # Roots apart, so that neither product overflows; a checkpoint that costs nothing is free at any rate, also at none.
    return np.sqrt(2.0 * cost_minutes) * np.sqrt(np.where(cost_minutes > 0, mttf_minutes, 0.0))


def daly_first_order(mttf: ArrayLike, cost: ArrayLike, restart: ArrayLike = 0.0) -> Floats:
    """Return √(2C(M + R)) − C, at least 0, where `restart` is R (J. T. Daly, 2006, eq. 15)."""
    cost_minutes = np.asarray(cost, dtype=np.float64)
    return np.maximum(young(np.asarray(mttf, dtype=np.float64) + np.asarray(restart, dtype=np.float64), cost_minutes) - cost_minutes, 0.0)


def daly(mttf: ArrayLike, cost: ArrayLike) -> Floats:
    """Return Daly's higher-order interval, √(2CM)·[1 + ⅓√(C/2M) + ⅑·C/2M] − C where C < 2M, else M (J. T. Daly, 2006, eq. 37)."""
    mttf_minutes, cost_minutes = _pair(mttf, cost)
    within = cost_minutes < 2.0 * mttf_minutes
    root = np.sqrt(np.where(within, cost_minutes, 0.0) / mttf_minutes / 2.0)
    return np.where(within, young(mttf_minutes, cost_minutes) * (1.0 + root / 3.0 + root * root / 9.0) - cost_minutes, mttf_minutes)


def exact(mttf: ArrayLike, cost: ArrayLike) -> Floats:
    """Return the interval that minimises the expected total time under exponential interruptions: M·(1 + W₀(−e^{−1−C/M})).

    W₀ is Lambert's function; the restart cost does not matter. y = τ/M solves −y − ln(1 − y) = C/M, which is what is solved
    here: by the inverse series where C/M is small (the branch point −1/e, where W₀ loses half its digits), else by Newton's
    method in ln(1 − y). Between 0 and M; inf for M = inf and C > 0; 0 for C = 0. Agrees with a brute-force minimum.
    """
    mttf_minutes, cost_minutes = _pair(mttf, cost)
    with np.errstate(over="ignore"):
        ratio = np.minimum(cost_minutes / mttf_minutes, 1e6)  # beyond 40 already, τ is M to the last bit
    root = np.sqrt(2.0 * ratio)
    start = np.minimum(root, 1.5)
    share = start * _over_root(start)
    log_rest = np.where(root < 1.5, np.log1p(-share), -1.0 - ratio)
    for _ in range(5):
        rest = np.exp(log_rest)
        # The function is concave and rising, so that the steps never overshoot 0; the guard holds where nothing is left to gain.
        log_rest = np.minimum(log_rest - (log_rest - rest + 1.0 + ratio) / np.maximum(1.0 - rest, 1e-9), -1e-9)
    series = young(mttf_minutes, cost_minutes) * _over_root(np.minimum(root, _SERIES_BELOW))
    # -expm1(-inf) would meet inf·0 for M = inf, which the series answers.
    newton = -np.expm1(log_rest) * np.where(root < _SERIES_BELOW, 1.0, mttf_minutes)
    return np.where(root < _SERIES_BELOW, series, newton)


def _over_root(s: Floats) -> Floats:
    """y/s as a series in s = √(2C/M): the inversion of −y − ln(1 − y) = s²/2 (as in Stirling's series)."""
    return 1 + s * (-1 / 3 + s * (1 / 36 + s * (1 / 270 + s * (1 / 4320 + s * (-1 / 17010 - s * 139 / 5443200)))))


def _pair(mttf: ArrayLike, cost: ArrayLike) -> tuple[Floats, Floats]:
    first, second = np.broadcast_arrays(np.asarray(mttf, dtype=np.float64), np.asarray(cost, dtype=np.float64))
    return first, second
