"""Mean time to interruption of a job of a given size, all causes together. Called by `advisor` through `stats.rates`.

Rates of causes add up. Wall time is left out: it is a deterministic limit, not a rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perdure import errors
from perdure.model import advice
from perdure.model.attempt import Cause
from perdure.stats import poisson, shrinkage, size_bins

Floats = NDArray[np.float64]

_JEFFREYS_EVENTS = 0.5
"""Where nothing was ever seen: the posterior mean of a rate under Jeffreys' prior is ½ event in the exposure."""


def mttf_for_size(rates: Sequence[advice.CauseRates], size: advice.Size, *, level: float = 0.90) -> advice.Mttf:
    """Return the mean time to interruption of a job of `size`. See `mttf_for_sizes`."""
    return mttf_for_sizes(rates, np.array([size.count], float), size.unit, level=level)[0]


def mttf_for_sizes(
    rates: Sequence[advice.CauseRates], sizes: ArrayLike, unit: Literal["gpu", "node"], *, level: float = 0.90
) -> list[advice.Mttf]:
    """Return the mean time to interruption of jobs of each of `sizes` (> 0, GPUs or nodes by `unit`), in order.

    `rates` may hold both units; those of another unit, and wall time, are passed over. They must be of one classification.

    The rate at size n is the fit's, times what the shrunk rate of n's bin departs from the fit: continuous within a bin and
    equal to the fit where the bins do not depart from it. Where sizes of one bin are seen to differ among themselves, the
    interval is wider by that (`RateFit.within_bins`). `source` names which of the two weighs more for the cause that matters most.

    Intervals of several causes are joined by MOVER (Zou and Donner 2008): each side's distances from the estimate add in
    quadrature, as for independent estimates. A cause without events adds nothing beside one that has some; when no cause has
    any, the estimate is ½ event in the whole exposure (Jeffreys), scaled to n in proportion to size, and the interval
    reaches from the bound of zero events (3.00 in the exposure at 90 %) to no interruption ever (`high` inf).

    A size outside the observed range is *extrapolated*. Without any exposure the answer is inf without an interval.
    Raises `errors.UsageError` for rates of both classifications, `errors.QuantityError` for a size that is not above zero.
    """
    values = np.asarray(sizes, float)
    if not bool(np.all(np.isfinite(values) & (values > 0))):
        raise errors.QuantityError("a job's size is not above zero", hint="give the number of GPUs or nodes")
    used = [cause for cause in rates if cause.unit == unit and cause.cause is not Cause.WALLTIME and cause.job_hours > 0]
    if len({cause.classification for cause in used}) > 1:
        raise errors.UsageError("rates of both classifications were given", hint="choose the strict or the inclusive ones")
    distinct, index = np.unique(values, return_inverse=True)
    if not used:
        return [advice.Mttf(float("inf"), None, "prior", extrapolated=True, events=0)] * values.size
    records = _records(used, distinct, level)
    return [records[position] for position in index]


def zero_event_rates(sizes: Floats, size_hours: float, level: float) -> tuple[Floats, Floats]:
    """Return estimate and upper bound of the rate per job-hour at `sizes` when no event was seen in `size_hours` = Σ n·hours.

    Taken to be in proportion to size, which nothing seen contradicts. Without exposure both are NaN.
    """
    exposure = size_hours if size_hours > 0 else float("nan")
    _, bound = poisson.rate_interval(0.0, 1.0, level=level)
    return sizes * (_JEFFREYS_EVENTS / exposure), sizes * (float(bound) / exposure)


def _records(rates: Sequence[advice.CauseRates], sizes: Floats, level: float) -> list[advice.Mttf]:
    seen = [_rates_at(cause, cause.fit, sizes, level) for cause in rates if cause.fit is not None]
    if seen:
        total = np.sum([cause.rate for cause in seen], axis=0)
        low = total - np.sqrt(np.sum([(cause.rate - cause.low) ** 2 for cause in seen], axis=0))
        high = total + np.sqrt(np.sum([(cause.high - cause.rate) ** 2 for cause in seen], axis=0))
        main = np.argmax([cause.rate for cause in seen], axis=0)
        from_bin = np.array([cause.own_weight >= 0.5 for cause in seen])[main, np.arange(sizes.size)]
        events = np.sum([np.where(cause.own_weight >= 0.5, cause.bin_events, cause.events) for cause in seen], axis=0)
    else:
        exposure = max(sum(bin_.mean_size * bin_.job_hours for bin_ in cause.bins if bin_.job_hours > 0) for cause in rates)
        total, high = zero_event_rates(sizes, exposure, level)
        low, events = np.zeros(sizes.size), np.zeros(sizes.size)
        from_bin = np.zeros(sizes.size, bool)
    smallest, largest = _observed(rates)
    beyond = (sizes < smallest) | (sizes > largest)
    records = []
    for position in range(sizes.size):
        least = max(float(low[position]), 0.0)
        source: Literal["bin", "fit", "prior"] = "prior" if not seen else "bin" if from_bin[position] else "fit"
        records.append(
            advice.Mttf(
                minutes=60 / float(total[position]),
                interval=advice.Interval(60 / float(high[position]), 60 / least if least > 0 else float("inf"), level),
                source=source,
                extrapolated=bool(beyond[position]),
                events=int(events[position]),
            )
        )
    return records


@dataclasses.dataclass(frozen=True)
class _AtSizes:
    """One cause's rate per job-hour at each size, its interval and what stands behind it."""

    rate: Floats
    low: Floats
    high: Floats
    own_weight: Floats
    bin_events: NDArray[np.int64]
    events: int


def _rates_at(cause: advice.CauseRates, fit: advice.RateFit, sizes: Floats, level: float) -> _AtSizes:
    factor, weight = np.ones(size_bins.COUNT), np.zeros(size_bins.COUNT)
    # Where no bin was seen, its departure from the fit is only known to be like that of the others.
    variance = np.full(size_bins.COUNT, fit.heterogeneity)
    bin_events = np.zeros(size_bins.COUNT, np.int64)
    for one in cause.bins:
        if one.fitted_rate_per_job_hour:
            position = int(size_bins.bin_of(one.mean_size))
            factor[position] = one.shrunk_rate_per_job_hour / one.fitted_rate_per_job_hour
            weight[position], variance[position] = one.own_weight, one.deviation_variance
            bin_events[position] = one.events
    place = size_bins.bin_of(sizes)
    logs = np.log(sizes)
    (level_level, level_beta), (_, beta_beta) = fit.covariance
    of_fit = level_level + 2 * logs * level_beta + logs**2 * beta_beta
    log_variance = shrinkage.rate_variance(np.maximum(of_fit, 0.0), fit.shared_variance, weight[place], variance[place] + fit.within_bins)
    rate = fit.coefficient * np.exp(fit.exponent * logs) * factor[place]
    freedom = np.inf if fit.degrees_of_freedom is None else fit.degrees_of_freedom
    low, high = poisson.gamma_interval(rate, log_variance, level=level, degrees_of_freedom=freedom)
    return _AtSizes(rate, low, high, weight[place], bin_events[place], cause.events)


def _observed(rates: Sequence[advice.CauseRates]) -> tuple[float, float]:
    """Range of sizes with exposure: the fit's own, or, without any event, the bins'."""
    ranges = [(cause.fit.observed_low, cause.fit.observed_high) for cause in rates if cause.fit is not None]
    if not ranges:
        bins = [one for cause in rates for one in cause.bins if one.job_hours > 0]
        ranges = [(one.low, float("inf") if one.high is None else one.high) for one in bins]
    return min(low for low, _ in ranges), max(high for _, high in ranges)
