"""How much counts and fit scatter: as Poisson has it, or as drawing blocks of days again shows. Called by `stats.rates`."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from perdure.stats import bootstrap, powerlaw, shrinkage, size_bins
from perdure.stats.cells import Sums

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Noise:
    """What is not known for sure about a law and about the counts in bins."""

    covariance: Floats
    """Of the law's (level, β), shape 2 × 2; zeros without a law."""
    shared_variance: float
    """Part of the level's variance that comes from bursts which strike all sizes alike: no bin escapes it."""
    bin_dispersion: Floats
    """Variance over mean of each bin's count, ≥ 1."""
    departure_dispersion: Floats
    """The same for the count's departure from the law, shared bursts taken out, ≥ 1."""
    freedom: float
    """Degrees of freedom of these variances; inf: they are Poisson's own."""


def poisson_noise(law: powerlaw.PowerLaw | None) -> Noise:
    """Return the noise of independent events."""
    ones = np.ones(size_bins.COUNT)
    return Noise(np.zeros((2, 2)) if law is None else law.covariance(), 0.0, ones, ones, np.inf)


def bootstrap_noise(sums: Sums, law: powerlaw.PowerLaw, generator: np.random.Generator) -> tuple[powerlaw.PowerLaw, Noise]:
    """Draw blocks of days again; return the law, its prior weighed against the information that is really there, and the noise.

    The fit is not repeated for each draw: one Newton step from the fit, which is linear in the days' scores, gives the
    same covariance (score bootstrap, Kline and Santos 2012) and cannot fail on a draw without events.
    """
    total = float(sums.events.sum())
    residuals = sums.by_day(sums.cells.events - sums.expected(law))
    block_days = bootstrap.choose_block_length(residuals)
    overall = max(1.0, float(bootstrap.resample_totals(residuals[:, None], block_days, generator).var()) / total)
    law = powerlaw.fit(sums.sizes, sums.events, sums.job_hours, dispersion=overall) or law
    events, expected = sums.by_bin(sums.cells.events), sums.by_bin(sums.expected(law))
    share = expected / expected.sum()
    hours = sums.by_bin(sums.cells.job_hours)
    own_rates = np.divide(events, hours, out=np.zeros(hours.size), where=hours > 0)[size_bins.bin_of(sums.sizes)]
    scores = _daily_scores(sums, law)
    departures = _daily_by_bin(sums, law.rate(sums.sizes))
    daily = np.hstack([scores, _daily_by_bin(sums, own_rates), departures - departures.sum(axis=1, keepdims=True) * share])
    drawn = bootstrap.resample_totals(daily, block_days, generator)
    own, departing = np.split(drawn[:, 2:].var(axis=0), 2)
    # A burst that strikes all sizes alike makes a bin's count scatter in proportion to the bin's share of the whole.
    bin_dispersion = np.maximum(own / np.maximum(events, 1.0), 1 + (overall - 1) * share)
    return law, Noise(
        covariance=law.covariance(_at_least(np.cov(drawn[:, :2], rowvar=False), law.information - law.penalty)),
        shared_variance=(overall - 1) / total,
        bin_dispersion=np.maximum(bin_dispersion, 1.0),
        departure_dispersion=np.maximum(np.divide(departing, expected, out=np.ones(expected.size), where=expected > 0), 1.0),
        freedom=bootstrap.degrees_of_freedom(scores[:, 0], block_days),
    )


def between_bins(sums: Sums, law: powerlaw.PowerLaw, noise: Noise) -> tuple[float, Noise]:
    """Return τ², the variance of bins' true rates around the law, and the noise with what that adds to the law's covariance.

    A law that the sizes do not follow exactly is not known better than the number of bins allows, however many events there are.
    """
    by_cell = sums.expected(law)
    expected = sums.by_bin(by_cell)
    tau_squared = shrinkage.heterogeneity(sums.by_bin(sums.cells.events), expected, noise.departure_dispersion)
    offset = sums.by_bin(by_cell * (np.log(sums.cells.size) - law.centre))
    shifts = np.column_stack([expected, offset])
    inverse = np.linalg.inv(law.information)
    return tau_squared, dataclasses.replace(noise, covariance=noise.covariance + tau_squared * inverse @ (shifts.T @ shifts) @ inverse)


_FEWEST_EXPECTED = 1.0
"""Bins of less say nothing of a misfit: one event in a bin of 0.01 would be a hundredfold departure (Cochran 1954)."""


def misfit(sums: Sums, law: powerlaw.PowerLaw, noise: Noise) -> float:
    """Return how many times more than `noise` allows the bins depart from the power law that fits them best, at least 1.

    Q/(k − 2), Q the weighted sum of squares around the line through the k bins' log-rates. To widen an interval of the slope by it is the
    adjustment of Knapp and Hartung (2003) for meta-regression, and the scale factor of the Particle Data Group: an
    estimated variance between few bins, never quite 0, would widen it also where the bins follow the law.
    """
    by_cell = sums.expected(law)
    expected = sums.by_bin(by_cell)
    used = expected >= _FEWEST_EXPECTED
    freedom = int(used.sum()) - 2
    if freedom < 1:
        return 1.0
    offsets = sums.by_bin(by_cell * (np.log(sums.cells.size) - law.centre))[used] / expected[used]
    departures = sums.by_bin(sums.cells.events)[used] / expected[used] - 1.0
    weights = expected[used] / noise.departure_dispersion[used]
    design = np.column_stack([np.ones(offsets.size), offsets]) * np.sqrt(weights)[:, None]
    target = departures * np.sqrt(weights)
    line, *_ = np.linalg.lstsq(design, target, rcond=None)
    return max(1.0, float(((target - design @ line) ** 2).sum()) / freedom)


def within_bins(sums: Sums, law: powerlaw.PowerLaw, noise: Noise) -> float:
    """Return the variance of sizes' true rates around that of their bin.

    Large where a cause strikes some kinds of jobs alone, as preemption does, and these are not alike at every size.
    """
    of_size = size_bins.bin_of(sums.sizes)
    expected = law.rate(sums.sizes) * sums.job_hours
    by_bin = np.bincount(of_size, expected, size_bins.COUNT)
    events = np.bincount(of_size, np.where(sums.job_hours > 0, sums.events, 0.0), size_bins.COUNT)
    scaled = expected * np.divide(events, by_bin, out=np.zeros(by_bin.size), where=by_bin > 0)[of_size]
    used = int(np.count_nonzero(events))
    return shrinkage.excess_variance(sums.events, scaled, noise.departure_dispersion[of_size], parameters=used)


def _daily_scores(sums: Sums, law: powerlaw.PowerLaw) -> Floats:
    """Each day's part of the derivative of the log-likelihood by (level, β), shape days × 2."""
    departure = sums.cells.events - sums.expected(law)
    design = law.design(sums.sizes)[sums.size_index]
    return np.column_stack([sums.by_day(departure * design[:, column]) for column in (0, 1)])


def _daily_by_bin(sums: Sums, rates: Floats) -> Floats:
    """Events less those that `rates` (one a distinct size) let expect, shape days × bins."""
    of_cell = size_bins.bin_of(sums.sizes)[sums.size_index]
    departure = sums.cells.events - rates[sums.size_index] * sums.cells.job_hours
    flat: Floats = np.bincount(sums.day * size_bins.COUNT + of_cell, departure, sums.days * size_bins.COUNT).astype(float)
    return flat.reshape(sums.days, size_bins.COUNT)


def _at_least(covariance: Floats, floor: Floats) -> Floats:
    """Raise `covariance` to be nowhere below `floor` (both 2 × 2): a few bursts can look calmer than chance, but never are."""
    values, vectors = np.linalg.eigh(floor)
    kept = values > values.max() * 1e-12
    root = vectors[:, kept] * np.sqrt(values[kept])
    inverse = vectors[:, kept] / np.sqrt(values[kept])
    ratios, axes = np.linalg.eigh(inverse.T @ covariance @ inverse)
    raised: Floats = root @ (axes * np.maximum(ratios, 1.0)) @ axes.T @ root.T
    return raised
