"""A straight line through points by least squares, with an interval of its slope. Called by reports of restores: seconds against bytes.

Ordinary least squares; the slope's interval is Student's t with n − 2 degrees of freedom (Draper and Smith 1998, eq. 1.4.8). Oracle of the
tests: `scipy.stats.linregress`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from perdure.model.advice import Interval

FEWEST = 3
"""Two points lie on a line whatever they are: only a third can contradict it."""
SPREAD = 1.2
"""Largest over smallest x; closer together, a slope is noise divided by nearly nothing."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """y = intercept + slope · x, for x between `low` and `high`; beyond them it is an extrapolation."""

    intercept: float
    slope: float
    slope_interval: Interval
    r_squared: float
    """Share of the variance that the line explains, 0 to 1."""
    residual: float
    """Standard deviation of what is left, in units of y."""
    count: int
    low: float
    high: float

    def at(self, x: float) -> float:
        """Return y at `x`."""
        return self.intercept + self.slope * x

    def is_within(self, x: float) -> bool:
        """Tell whether `x` lies where points were."""
        return self.low <= x <= self.high


def fit(x: Sequence[float], y: Sequence[float], *, level: float) -> Line | None:
    """Return the line through points with all `x` > 0, or None when they cannot tell one: see `FEWEST` and `SPREAD`."""
    count = len(x)
    if count < FEWEST or max(x) < SPREAD * min(x):
        return None
    mean_x, mean_y = math.fsum(x) / count, math.fsum(y) / count
    sxx = math.fsum((one - mean_x) ** 2 for one in x)
    sxy = math.fsum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True))
    syy = math.fsum((other - mean_y) ** 2 for other in y)
    slope = sxy / sxx
    intercept = mean_y - slope * mean_x
    left = math.fsum((other - intercept - slope * one) ** 2 for one, other in zip(x, y, strict=True))
    residual = math.sqrt(left / (count - 2))
    half = _student(level, count - 2) * residual / math.sqrt(sxx)
    return Line(
        intercept=intercept,
        slope=slope,
        slope_interval=Interval(slope - half, slope + half, level),
        r_squared=1.0 if syy == 0 else max(0.0, 1 - left / syy),
        residual=residual,
        count=count,
        low=min(x),
        high=max(x),
    )


def _student(level: float, degrees: int) -> float:
    from scipy import special

    return float(special.stdtrit(degrees, (1 + level) / 2))
