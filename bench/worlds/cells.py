"""Exposure cells drawn from a known law: a fast world for the coverage of rate intervals, without jobs, queues or accounting.

Called by `bench.coverage` and by the tests of `stats.rates`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from perdure.model.attempt import Cause
from perdure.stats import rates, size_bins

SIZES = 2.0 ** np.arange(11)
_GPU_HOUR_SHARES = np.array([6, 5, 5, 12, 8, 9, 10, 12, 13, 10, 10]) / 100.0
"""Of each size: research clusters spend most GPU time on large jobs, and run mostly small ones (Kokolis et al. 2025)."""
_GPU_HOURS_A_DAY = 2048 * 24 * 0.8


@dataclasses.dataclass(frozen=True)
class CellWorld:
    """What is true: events expected in all, the exponent of λ(n) = a·n^β, and how bunched the days are."""

    events: float
    exponent: float = 1.0
    burst_shape: float | None = None
    """Shape of the gamma with mean 1 that multiplies each day's rate; None: a Poisson process. 0.5 is like LANL's systems."""
    burst_days: float = 0.0
    """Mean days for which a bad day lasts on; 0: each day is drawn for itself."""
    departure: float = 0.0
    """Standard deviation of the log by which each size bin departs from the law."""
    days: int = 90


def draw_cells(world: CellWorld, generator: np.random.Generator) -> tuple[rates.ExposureCells, np.ndarray, np.ndarray]:
    """Draw one fleet. Returns its cells, the instants of its events in hours, and the true rate per job-hour at each of `SIZES`."""
    mean_hours = _GPU_HOURS_A_DAY * _GPU_HOUR_SHARES / SIZES
    hours = mean_hours * generator.lognormal(0.0, 0.5, (world.days, SIZES.size)) * generator.lognormal(0.0, 0.3, (world.days, 1))
    law = SIZES**world.exponent
    truth = law * world.events / float((hours * law).sum())
    departures = np.exp(generator.normal(0.0, world.departure, size_bins.COUNT)) if world.departure else np.ones(size_bins.COUNT)
    truth = truth * departures[size_bins.bin_of(SIZES)]
    events = generator.poisson(hours * truth * _day_multipliers(world, generator)[:, None])
    days, sizes = np.meshgrid(np.arange(world.days), SIZES, indexing="ij")
    cells = rates.ExposureCells(
        size=sizes.ravel(),
        block=days.ravel(),
        attempts=np.ceil(hours / 4).astype(int).ravel(),
        events=events.ravel(),
        job_hours=hours.ravel(),
        node_hours=(hours * np.maximum(sizes / 8, 1)).ravel(),
        gpu_hours=(hours * sizes).ravel(),
    )
    times = np.sort(np.repeat(np.arange(world.days) * 24.0, events.sum(axis=1)) + generator.uniform(0, 24, int(events.sum())))
    return cells, times, truth


def _day_multipliers(world: CellWorld, generator: np.random.Generator) -> np.ndarray:
    if world.burst_shape is None:
        return np.ones(world.days)
    if not world.burst_days:
        return generator.gamma(world.burst_shape, 1 / world.burst_shape, world.days)
    decay = np.exp(-np.arange(round(4 * world.burst_days)) / world.burst_days)
    shocks = generator.gamma(world.burst_shape, 1 / world.burst_shape, world.days + decay.size - 1)
    return np.convolve(shocks, decay / decay.sum(), "valid")


def coverage(world: CellWorld, *, fleets: int, level: float = 0.90, seed: int = 1) -> dict[str, float]:
    """Return how often the intervals hold the truth over `fleets` draws, 0 to 1, by kind of interval."""
    hits: dict[str, list[bool]] = {"bins, unshrunk": [], "bins, shrunk": [], "sizes": [], "exponent": []}
    for number in range(fleets):
        generator = np.random.default_rng([seed, number])
        cells, times, truth = draw_cells(world, generator)
        found = rates.estimate_rates(
            cells, times, cause=Cause.INFRASTRUCTURE, classification="strict", unit="gpu", level=level, generator=generator
        )
        hours = np.bincount(np.log2(cells.size).astype(int), cells.job_hours)
        for one in found.bins:
            inside = (one.low <= SIZES) & ((one.high or np.inf) >= SIZES)
            of_bin = float(np.average(truth[inside], weights=hours[inside]))
            hits["bins, unshrunk"].append(one.interval.low <= of_bin <= one.interval.high)
            hits["bins, shrunk"].append(one.shrunk_interval.low <= of_bin <= one.shrunk_interval.high)
        for rate, mttf in zip(truth, rates.mttf_for_sizes([found], SIZES, "gpu", level=level), strict=True):
            hits["sizes"].append(mttf.interval.low <= 60 / rate <= mttf.interval.high)
        if found.fit is not None and not world.departure:
            hits["exponent"].append(found.fit.exponent_interval.low <= world.exponent <= found.fit.exponent_interval.high)
    return {kind: float(np.mean(held)) for kind, held in hits.items() if held}
