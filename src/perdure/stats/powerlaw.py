"""Poisson regression of events on size: λ(n) = a·n^β per job-hour. Called by `stats.rates`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXPONENT_PRIOR_MEAN = 1.0
"""Failures proportional to size: what independent parts would do, and what most published systems assume."""
EXPONENT_PRIOR_SD = 0.5
"""Weak on purpose. It decides only where a handful of events, or a single size, would leave β to chance: a history with 30 events
over two decades of size knows β to ±0.15, and the prior then moves it by a tenth of its distance from 1."""


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """λ(n) = exp(level + exponent·(log n − centre)); `information` is the penalised Fisher information of (level, exponent)."""

    level: float
    exponent: float
    centre: float
    information: Floats
    penalty: Floats

    def rate(self, sizes: Floats) -> Floats:
        """Return the rate per job-hour at `sizes`."""
        fitted: Floats = np.exp(self.level + self.exponent * (np.log(sizes) - self.centre))
        return fitted

    def design(self, sizes: Floats) -> Floats:
        """Return the regressors (1, log n − centre), shape sizes × 2."""
        return np.column_stack([np.ones(sizes.size), np.log(sizes) - self.centre])

    def covariance(self, score_covariance: Floats | None = None) -> Floats:
        """Return the covariance of (level, exponent).

        `score_covariance` is the covariance of the data's part of the score; None takes the Poisson model's own. The prior
        counts as one more observation: H⁻¹(S + P)H⁻¹ (Huber 1967; White 1982).
        """
        inverse = np.linalg.inv(self.information)
        data = self.information - self.penalty if score_covariance is None else score_covariance
        sandwich: Floats = inverse @ (data + self.penalty) @ inverse
        return sandwich

    def beyond_poisson(self, covariance: Floats) -> float:
        """Return how many times the variance of β that Poisson's scatter alone gives is in `covariance`, without the prior; at least 1.

        `covariance` is in the form of `covariance`'s result: r = (J⁻¹SJ⁻¹)/J⁻¹ of β, J being the data's information and S the score's
        covariance (Kent 1982). At least two sizes must have been observed.
        """
        data = self.information - self.penalty
        if np.linalg.cond(data) > 1e12:  # all but one size hardly ran: the data say nothing of β
            return 1.0
        score = self.information @ covariance @ self.information - self.penalty
        inverse = np.linalg.inv(data)
        return max(1.0, float((inverse @ score @ inverse)[1, 1] / inverse[1, 1]))

    def covariance_at_one(self, covariance: Floats) -> Floats:
        """Return the covariance of (log a, β), a being the rate at size 1, from that of (level, exponent)."""
        shift = np.array([[1.0, -self.centre], [0.0, 1.0]])
        moved: Floats = shift @ covariance @ shift.T
        return moved


def fit(sizes: Floats, events: Floats, job_hours: Floats, *, dispersion: float = 1.0) -> PowerLaw | None:
    """Fit λ(n) = a·n^β by penalised maximum likelihood (Newton), or return None without any event.

    `sizes` > 0 are distinct; `events` and `job_hours` ≥ 0 are their totals. The penalty is a normal prior on β alone
    (`EXPONENT_PRIOR_MEAN`, `EXPONENT_PRIOR_SD`); `dispersion` φ ≥ 1 makes the events worth 1/φ against it. A single size
    leaves β at the prior's mean.

    The likelihood is concave, and the level has a closed form for each β, so that halving a step that does not improve always ends.
    """
    exposed = job_hours > 0
    total = float(events[exposed].sum())
    if total <= 0:
        return None
    log_sizes = np.log(sizes[exposed])
    hours, counts = job_hours[exposed], events[exposed]
    centre = float(np.average(log_sizes, weights=hours * sizes[exposed]))
    offsets = log_sizes - centre
    pull = dispersion / EXPONENT_PRIOR_SD**2

    def profile(beta: float) -> tuple[float, float, float]:
        """Log-likelihood with the level at its best, and its first and second derivative."""
        weights = hours * np.exp(beta * offsets)
        mass = float(weights.sum())
        mean = float(weights @ offsets) / mass
        spread = float(weights @ (offsets - mean) ** 2) / mass
        value = beta * float(counts @ offsets) - total * float(np.log(mass)) - pull / 2 * (beta - EXPONENT_PRIOR_MEAN) ** 2
        return value, float(counts @ offsets) - total * mean - pull * (beta - EXPONENT_PRIOR_MEAN), -total * spread - pull

    beta = EXPONENT_PRIOR_MEAN
    value, slope, curve = profile(beta)
    for _ in range(50):
        step = float(np.clip(-slope / curve, -1.0, 1.0))
        trial = profile(beta + step)
        while trial[0] < value - 1e-9 * abs(value) and abs(step) > 1e-12:
            step /= 2
            trial = profile(beta + step)
        beta += step
        value, slope, curve = trial
        if abs(step) < 1e-10:
            break
    weights = hours * np.exp(beta * offsets)
    level = float(np.log(total / weights.sum()))
    expected = weights * np.exp(level)
    design = np.column_stack([np.ones(offsets.size), offsets])
    penalty = np.diag([0.0, pull])
    return PowerLaw(level, beta, centre, design.T @ (expected[:, None] * design) + penalty, penalty)


def exponent_interval(
    law: PowerLaw, sizes: Floats, events: Floats, job_hours: Floats, *, scatter: float, quantile: float
) -> tuple[float, float]:
    """Return the interval of β that the events alone give, without the prior: the β that the likelihood ratio does not refute.

    `scatter` ≥ 1 says how many times Poisson's variance β has (`PowerLaw.beyond_poisson`); `quantile` is the half-width of the
    interval in standard errors (normal or t). `sizes`, `events` and `job_hours` as for `fit`, of at least two sizes with exposure.

    The profile likelihood (Venzon and Moolgavkar 1988) over the level, with Jeffreys' prior as penalty, which keeps it finite
    where all events struck one end of the sizes (Firth 1993; Heinze and Schemper 2002); its logarithm is divided by
    `scatter` (McCullagh and Nelder 1989; Kent 1982). An interval around the penalised estimate that counts the prior as an
    observation is right on average over true exponents as far apart as the prior has them, and too wide for those near 1.
    """
    exposed = job_hours > 0
    offsets, hours, counts = np.log(sizes[exposed]) - law.centre, job_hours[exposed], events[exposed]
    total, moment = float(counts.sum()), float(counts @ offsets)

    def profile(beta: float) -> float:
        # Scaled by its largest term: β goes far where a few sizes lie close together.
        logs = np.log(hours) + beta * offsets
        most = float(logs.max())
        weights = np.exp(logs - most)
        mass = float(weights.sum())
        mean = float(weights @ offsets) / mass
        spread = float(weights @ (offsets - mean) ** 2) / mass
        likelihood = beta * moment - total * (float(np.log(mass)) + most)
        return likelihood / scatter + 0.5 * float(np.log(max(spread, 1e-300)))

    top = _peak(profile, law.exponent)
    floor = profile(top) - quantile**2 / 2
    # The law's own exponent is drawn towards the prior; it is not left outside of its interval.
    return min(_crossing(profile, floor, top, -1.0), law.exponent), max(_crossing(profile, floor, top, 1.0), law.exponent)


_WIDEST = 100.0
"""Exponents beyond ±100 are not looked at."""


def _peak(profile: Callable[[float], float], near: float) -> float:
    """Find where `profile` is highest: it has one peak. Golden section between steps that double until both sides fall."""
    low, high, step = near - 1.0, near + 1.0, 1.0
    while profile(low) > profile(low + step / 2) and low > -_WIDEST:
        low, step = low - 2 * step, 2 * step
    step = 1.0
    while profile(high) > profile(high - step / 2) and high < _WIDEST:
        high, step = high + 2 * step, 2 * step
    golden = (5**0.5 - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if profile(left) > profile(right) else (left, high)
    return (low + high) / 2


def _crossing(profile: Callable[[float], float], floor: float, top: float, direction: float) -> float:
    """Find where `profile`, from its peak at `top` on, falls to `floor`."""
    inside, step = top, 0.25
    while profile(top + direction * step) > floor and step < _WIDEST:
        inside, step = top + direction * step, 2 * step
    outside = top + direction * step
    for _ in range(60):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if profile(middle) > floor else (inside, middle)
    return (inside + outside) / 2
