"""How often attempts are interrupted: rates by size, the power law through them, and how sure one can be. The door to `stats` for rates.

Called by `advisor` once for each cause, classification and unit. `mttf_for_size` and `mttf_for_sizes` turn the result into what a
decision needs.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perdure.model import advice
from perdure.model.attempt import Cause
from perdure.stats import dispersion, poisson, powerlaw, shrinkage, size_bins
from perdure.stats.cells import ExposureCells, Sums
from perdure.stats.mttf import mttf_for_size, mttf_for_sizes, zero_event_rates
from perdure.stats.noise import Noise, between_bins, bootstrap_noise, misfit, poisson_noise, within_bins

__all__ = ["ExposureCells", "estimate_rates", "mttf_for_size", "mttf_for_sizes"]

Floats = NDArray[np.float64]


def estimate_rates(
    cells: ExposureCells,
    event_times_h: Floats,
    *,
    cause: Cause,
    classification: Literal["strict", "inclusive"],
    unit: Literal["gpu", "node"],
    level: float = 0.90,
    generator: np.random.Generator,
) -> advice.CauseRates:
    """Estimate the rates of one cause.

    `event_times_h` are the instants of the events in hours from any origin, for the coefficient of variation. `level` is the
    two-sided level of every interval. `generator` drives the dispersion test and the bootstrap and nothing else, so that one seed
    gives one answer.

    Bins carry Garwood's exact Poisson interval. When the events are over-dispersed, a block bootstrap over days gives the variance of
    every count and of the fit instead, never below Poisson's; an interval then has the shape of Garwood's with that
    variance, and t quantiles for how well it is known, since the percentiles of a few bursts drawn again miss too often.

    Raises `errors.QuantityError` for malformed cells.
    """
    cells.check()
    sums = Sums.of(cells)
    law = powerlaw.fit(sums.sizes, sums.events, sums.job_hours)
    noise = poisson_noise(law)
    daily_expected = sums.by_day(cells.job_hours if law is None else sums.expected(law))
    spread = dispersion.measure(np.asarray(event_times_h, float), sums.by_day(cells.events), daily_expected, generator)
    if law is not None and spread.over_dispersed:
        law, noise = bootstrap_noise(sums, law, generator)
    tau_squared = within = 0.0
    exponent = None
    if law is not None:
        exponent = _exponent_interval(sums, law, noise, level)
        within = within_bins(sums, law, noise)
        tau_squared, noise = between_bins(sums, law, noise)
    bins = _bins(sums, law, noise, tau_squared, level)
    return advice.CauseRates(
        cause=cause,
        classification=classification,
        unit=unit,
        events=int(np.sum(cells.events)),
        job_hours=float(np.sum(cells.job_hours)),
        node_hours=float(np.sum(cells.node_hours)),
        gpu_hours=float(np.sum(cells.gpu_hours)),
        bins=bins,
        fit=None if law is None else _fit(sums, law, noise, (tau_squared, within), exponent),
        dispersion=spread,
        interval_method="bootstrap" if np.isfinite(noise.freedom) else "poisson",
    )


def _exponent_interval(sums: Sums, law: powerlaw.PowerLaw, noise: Noise, level: float) -> advice.Interval | None:
    """Return what the events alone, as `noise` has them scatter, and the bins' departures from the law leave possible for β."""
    if np.count_nonzero(sums.job_hours > 0) < 2:  # a single size says nothing of β: what is left is the prior
        return None
    bursts = law.beyond_poisson(noise.covariance)
    # Only what bursts add to Poisson's variance is estimated, and known no better than their number allows (Satterthwaite 1946).
    freedom = noise.freedom * (bursts / (bursts - 1.0)) ** 2 if bursts > 1.0 else np.inf
    low, high = powerlaw.exponent_interval(
        law,
        sums.sizes,
        sums.events,
        sums.job_hours,
        scatter=bursts * misfit(sums, law, noise),
        quantile=float(poisson.student_quantile(level, freedom)),
    )
    return advice.Interval(low, high, level)


def _fit(
    sums: Sums, law: powerlaw.PowerLaw, noise: Noise, departures: tuple[float, float], exponent: advice.Interval | None
) -> advice.RateFit:
    at_one = law.covariance_at_one(noise.covariance)
    exposed = sums.sizes[sums.job_hours > 0]
    return advice.RateFit(
        coefficient=float(np.exp(law.level - law.exponent * law.centre)),
        exponent=law.exponent,
        exponent_interval=exponent,
        covariance=((float(at_one[0, 0]), float(at_one[0, 1])), (float(at_one[1, 0]), float(at_one[1, 1]))),
        observed_low=float(exposed.min()),
        observed_high=float(exposed.max()),
        shared_variance=noise.shared_variance,
        heterogeneity=departures[0],
        within_bins=departures[1],
        degrees_of_freedom=noise.freedom if np.isfinite(noise.freedom) else None,
    )


def _bins(sums: Sums, law: powerlaw.PowerLaw | None, noise: Noise, tau_squared: float, level: float) -> tuple[advice.RateBin, ...]:
    """Return the records of the bins that hold any attempt."""
    cells = sums.cells
    attempts, events, hours = sums.by_bin(cells.attempts), sums.by_bin(cells.events), sums.by_bin(cells.job_hours)
    node_hours, gpu_hours = sums.by_bin(cells.node_hours), sums.by_bin(cells.gpu_hours)
    # Attempts that ended at the instant of their start: events without exposure have no rate, NaN here.
    exposure = np.where(hours > 0, hours, np.nan)
    low, high = poisson.rate_interval(
        events,
        exposure,
        level=level,
        dispersion=noise.bin_dispersion,
        degrees_of_freedom=noise.freedom,
    )
    pulled = _pulled(sums, law, noise, tau_squared, exposure=exposure, level=level)
    records = []
    for index in np.flatnonzero((attempts > 0) | (hours > 0)):
        smallest, largest = size_bins.bounds(int(index))
        members = sums.sizes[size_bins.bin_of(sums.sizes) == index]
        exposed = bool(hours[index] > 0)
        record = advice.RateBin(
            low=min(smallest, float(members.min())),
            high=largest,
            attempts=int(attempts[index]),
            events=int(events[index]),
            job_hours=float(hours[index]),
            node_hours=float(node_hours[index]),
            gpu_hours=float(gpu_hours[index]),
            rate_per_job_hour=float(events[index] / exposure[index]),
            interval=advice.Interval(float(low[index]), float(high[index]), level) if exposed else None,
            shrunk_rate_per_job_hour=float(pulled.rate[index]),
            shrunk_interval=advice.Interval(float(pulled.low[index]), float(pulled.high[index]), level) if exposed else None,
            rate_per_1000_node_days=float(events[index] / node_hours[index]) * 24_000 if node_hours[index] > 0 else None,
            mean_size=float(pulled.mean_size[index]) if exposed else float(members.mean()),
            fitted_rate_per_job_hour=float(pulled.fitted[index]) if exposed and law is not None else None,
            own_weight=float(pulled.own_weight[index]),
            deviation_variance=float(pulled.variance[index]),
        )
        records.append(record)
    return tuple(records)


@dataclasses.dataclass(frozen=True)
class _Pulled:
    """Per bin, NaN where it has no exposure."""

    mean_size: Floats
    fitted: Floats
    rate: Floats
    low: Floats
    high: Floats
    own_weight: Floats
    variance: Floats


def _pulled(sums: Sums, law: powerlaw.PowerLaw | None, noise: Noise, tau_squared: float, *, exposure: Floats, level: float) -> _Pulled:
    """Return each bin's rate pulled towards the fit; without any event, the bound that the whole exposure gives."""
    cells = sums.cells
    scaled = sums.by_bin(cells.size * cells.job_hours)
    mean_size = scaled / exposure
    nothing = np.zeros(exposure.size)
    if law is None:
        rate, high = zero_event_rates(mean_size, float(scaled.sum()), level)
        return _Pulled(mean_size, np.full(exposure.size, np.nan), rate, nothing, high, nothing, nothing)
    by_cell = sums.expected(law)
    expected = sums.by_bin(by_cell)
    shrunk = shrinkage.shrink(sums.by_bin(cells.events), expected, noise.departure_dispersion, tau_squared)
    # The fit's variance for the bin as a whole: at the expectation-weighted mean of log size.
    offset = sums.by_bin(by_cell * (np.log(cells.size) - law.centre)) / np.where(expected > 0, expected, np.nan)
    covariance = noise.covariance
    of_fit = covariance[0, 0] + 2 * offset * covariance[0, 1] + offset**2 * covariance[1, 1]
    variance = shrinkage.rate_variance(of_fit, noise.shared_variance, shrunk.own_weight, shrunk.variance)
    rate = expected / exposure * shrunk.factor
    low, high = poisson.gamma_interval(rate, variance, level=level, degrees_of_freedom=noise.freedom)
    return _Pulled(mean_size, expected / exposure, rate, low, high, shrunk.own_weight, shrunk.variance)
