"""Pull thin bins towards the fit, in proportion to how little they know. Called by `stats.rates`.

Gamma-Poisson empirical Bayes (Clayton and Kaldor 1987): a bin's true rate is θ times what the fit says, θ having mean 1 and
variance τ². With E events where the fit expects μ, and over-dispersion φ, θ's posterior is a gamma of shape 1/τ² + E/φ and rate
1/τ² + μ/φ. τ² comes from the data: how much more the bins depart from the fit than their own noise allows.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


HETEROGENEITY_SCALE = 0.2
"""Prior scale of τ: bins are expected to lie within some 20 % of a power law until they show otherwise."""
_GRID = np.linspace(0.0, 2.0, 201)


@dataclasses.dataclass(frozen=True)
class Shrunk:
    """Per bin: the factor on the fitted rate, the weight of the bin's own events, and the log-variance that they leave."""

    factor: Floats
    own_weight: Floats
    variance: Floats


def heterogeneity(events: Floats, expected: Floats, dispersion: Floats, *, parameters: int = 2) -> float:
    """Return τ², the variance of bins' true rates over the fit's: its posterior mean, so that it is never quite 0.

    A bin's events have mean μ and variance φμ + τ²μ²; the likelihood is that of normals with these moments, weighed down for the
    fit's own `parameters`. Seven bins are too few to call τ zero from, and intervals that do so are too narrow (Morris
    1983): hence the mean over a half-normal prior (`HETEROGENEITY_SCALE`) instead of the most likely value.
    """
    counted = expected > 0
    if not counted.any():
        return 0.0
    observed, mean, phi = events[counted], expected[counted], dispersion[counted]
    squared = _GRID[:, None] ** 2
    variance = phi * mean + squared * mean**2
    fits = -0.5 * (np.log(variance) + (observed - mean) ** 2 / variance).sum(axis=1)
    share = max(0.0, 1 - parameters / observed.size)
    log_posterior = share * fits - 0.5 * (_GRID / HETEROGENEITY_SCALE) ** 2
    weights = np.exp(log_posterior - log_posterior.max())
    return float(weights @ _GRID**2 / weights.sum())


def excess_variance(events: Floats, expected: Floats, dispersion: Floats, *, parameters: int) -> float:
    """Return the variance of true rates over expected ones that noise does not explain, 0 where noise may explain all.

    By moments (DerSimonian and Laird 1986): Q = Σ(E−μ)²/(φμ) has the mean (cases − parameters) + τ²·Σμ/φ. A Q that chance exceeds
    in one of twenty cases is taken for noise, lest every interval be widened for nothing.
    """
    from scipy import special

    counted = expected > 0
    freedom = int(counted.sum()) - parameters
    if freedom <= 0:
        return 0.0
    observed, mean, phi = events[counted], expected[counted], dispersion[counted]
    departure = float(((observed - mean) ** 2 / (phi * mean)).sum())
    if departure <= float(special.chdtri(freedom, 0.05)):
        return 0.0
    return (departure - freedom) / float((mean / phi).sum())


def shrink(events: Floats, expected: Floats, dispersion: Floats, tau_squared: float) -> Shrunk:
    """Return the posterior of each bin's factor θ; with `tau_squared` 0 it is the fit alone."""
    if tau_squared <= 0:
        zeros = np.zeros(events.size)
        return Shrunk(np.ones(events.size), zeros, zeros)
    prior = 1 / tau_squared
    own_events, own_expected = events / dispersion, expected / dispersion
    return Shrunk((prior + own_events) / (prior + own_expected), own_expected / (prior + own_expected), 1 / (prior + own_events))


def rate_variance(of_fit: Floats, shared: float, own_weight: Floats, own: Floats) -> Floats:
    """Return the log-variance of a shrunk rate.

    `of_fit` is the fit's log-variance there, of which `shared` comes from bursts that strike all sizes; `own` is `Shrunk.variance`.
    The more a bin relies on its own events, the less the fit's error matters, but what is shared is in those events too.
    """
    shared_part = np.minimum(shared, of_fit)
    variance: Floats = shared_part + (1 - own_weight) ** 2 * (of_fit - shared_part) + own
    return variance
