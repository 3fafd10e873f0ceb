"""Points of the rate chart, from rates, fits and published figures; x is a size, y, low and high are rates per day. Called by `charts`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from perdure.model.advice import CauseRates, RateFit
from perdure.model.attempt import Cause
from perdure.report import drawings
from perdure.stats.published import PublishedRate


def series(rate: CauseRates) -> str:
    return rate.cause.value + (", inclusive" if rate.classification == "inclusive" else "")


def published_band(published: Sequence[PublishedRate], unit: str, sizes: Sequence[float]) -> list[dict[str, Any]]:
    """The lowest and the highest published rate, in proportion to nodes as their authors have it, over the sizes drawn."""
    if not published:
        return []
    rates = [one.rate_per_1000_node_days for one in published]
    nodes = {
        size: max(1.0, size / drawings.GPUS_A_NODE) if unit == "gpu" else size for size in (min(sizes), drawings.GPUS_A_NODE, max(sizes))
    }
    return [{"x": size, "low": min(rates) / 1000 * nodes[size], "high": max(rates) / 1000 * nodes[size]} for size in sorted(nodes)]


def rate_points(rate: CauseRates) -> list[dict[str, Any]]:
    """Points per day of running. A bin without events is an upper bound, marked as such."""
    if rate.classification == "inclusive" and rate.cause is not Cause.INFRASTRUCTURE:
        return []
    points = []
    for one in rate.bins:
        size = one.mean_size if one.mean_size > 0 else one.low
        interval = one.interval
        point: dict[str, Any]
        if one.events:
            point = {"x": size, "y": one.rate_per_job_hour * 24, "seen": True}
            if interval is not None and interval.low > 0 and rate.classification == "strict":
                point |= {"low": interval.low * 24, "high": interval.high * 24}
        elif interval is not None and interval.high > 0 and one.job_hours > 0 and rate.classification == "strict":
            point = {"x": size, "y": interval.high * 24, "seen": False}
        else:
            continue
        points.append(point | {"series": series(rate)})
    return points


def fit_points(rate: CauseRates, fit: RateFit) -> list[dict[str, Any]]:
    """The fitted line and its band, with a piece beyond the observed sizes that is marked as extrapolated."""
    if fit.coefficient <= 0 or not 0 < fit.observed_low <= fit.observed_high:
        return []
    level = fit.exponent_interval.level if fit.exponent_interval is not None else 0.90
    quantile = statistics.NormalDist().inv_cdf((1 + level) / 2)
    pieces = {
        "observed": (fit.observed_low, fit.observed_high),
        "extrapolated": (fit.observed_high, fit.observed_high * 4),
    }
    points = []
    for piece, (start, end) in pieces.items():
        for step in range(25):
            size = start * (end / start) ** (step / 24)
            log_rate = math.log(fit.coefficient) + fit.exponent * math.log(size) + math.log(24)
            point = {"x": size, "y": math.exp(log_rate), "piece": piece, "series": series(rate)}
            spread = _spread(fit, size) if rate.cause is Cause.INFRASTRUCTURE else None
            if spread is not None:
                point |= {"low": math.exp(log_rate - quantile * spread), "high": math.exp(log_rate + quantile * spread)}
            points.append(point)
    return points


def _spread(fit: RateFit, size: float) -> float | None:
    """Standard deviation of the fitted log rate at `size`; None where it spans more than the chart could show."""
    (var_a, covariance), (_, var_b) = fit.covariance
    log_size = math.log(size)
    spread = math.sqrt(max(0.0, var_a + 2 * covariance * log_size + var_b * log_size**2))
    return spread if spread < 7 else None
