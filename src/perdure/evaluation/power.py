"""What the numbers say of a threshold, and how many pairs it takes for them to say it. Called by `paired`. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Protocol

import msgspec

from perdure.model.evaluation import Arm, Outcome, Threshold
from perdure.stats import paired as medians

FORMULA = (
    "extrapolated: the smallest number of pairs whose interval lies on one side of the threshold with probability 0.8, when one pair lies "
    "there with probability p = Φ(|median − threshold| / standard deviation)"
)


class Values(Protocol):
    """What `paired.Pairing` offers."""

    @property
    def arms(self) -> dict[Arm, tuple[float, ...]]:
        """Values by run."""

    @property
    def differences(self) -> tuple[float, ...]:
        """Managed − unmanaged by pair."""

    @property
    def ratios(self) -> tuple[float, ...] | None:
        """Managed / unmanaged by pair."""


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One bound of a threshold, and the values that it is a bound on, one a pair."""

    name: str
    bound: float
    values: tuple[float, ...]
    below: bool
    """The good side."""


def criteria(threshold: Threshold, pairing: Values) -> tuple[Criterion, ...]:
    """Return the bounds that a threshold gives."""
    managed = pairing.arms[Arm.MANAGED]
    found = (
        ("at_most", threshold.at_most, managed, True),
        ("ratio_at_most", threshold.ratio_at_most, pairing.ratios or (), True),
        ("at_least", threshold.at_least, managed, False),
        ("gain_at_least", threshold.gain_at_least, pairing.differences, False),
    )
    return tuple(Criterion(name=name, bound=bound, values=values, below=below) for name, bound, values, below in found if bound is not None)


def judge(criterion: Criterion, level: float) -> Outcome:
    """Return PASS when the whole interval of the median is on the good side or on the bound, FAIL when all of it is on the bad side."""
    interval = medians.median_interval(criterion.values, level)
    if interval is None:
        return Outcome.UNDECIDED
    low, high = (interval.low, interval.high) if criterion.below else (-interval.high, -interval.low)
    bound = criterion.bound if criterion.below else -criterion.bound
    if high <= bound:
        return Outcome.PASS
    return Outcome.FAIL if low > bound else Outcome.UNDECIDED


def runs_needed(bounds: Sequence[Criterion], level: float) -> int | None:
    """Return how many pairs tell all bounds from noise with 80 % power, given the median and the spread seen.

    Extrapolated by `FORMULA`, as if values were normal around their median, ratios by their logarithms. None when it cannot be said: fewer
    than two pairs, a median on the bound, or more than a million pairs.
    """
    needed = [_needed(each, level) for each in bounds]
    known = [count for count in needed if count is not None]
    return max(known, default=None) if len(known) == len(needed) else None


def explain(bounds: Sequence[Criterion]) -> str:
    """Return the formula of `runs_needed` with its inputs, '' without any."""
    inputs = [f"{each.name}: {seen.describe()}" for each in bounds if (seen := _seen(each)) is not None]
    return f"{FORMULA}; {'; '.join(inputs)}" if inputs else ""


class _Seen(msgspec.Struct, frozen=True):
    """What the values of a criterion say, on the scale on which their spread is even."""

    median: float
    bound: float
    spread: float
    scale: str

    @property
    def share(self) -> float:
        """Probability that one pair lies on the side of the threshold on which the median lies."""
        distance = abs(self.median - self.bound)
        if distance == 0:
            return 0.5
        return 1.0 if self.spread == 0 else statistics.NormalDist().cdf(distance / self.spread)

    def describe(self) -> str:
        """Return the inputs of the formula."""
        figures = f"median {self.median:.4g}, threshold {self.bound:.4g}, standard deviation {self.spread:.4g}"
        return f"{figures}{self.scale}, p = {self.share:.4f}"


def _needed(criterion: Criterion, level: float) -> int | None:
    seen = _seen(criterion)
    return None if seen is None else medians.pairs_needed(seen.share, level)


def _seen(criterion: Criterion) -> _Seen | None:
    values, bound, scale = criterion.values, criterion.bound, ""
    if len(values) < 2:
        return None
    if criterion.name == "ratio_at_most" and bound > 0 and min(values) > 0:
        values, bound, scale = tuple(math.log(value) for value in values), math.log(bound), " (all by their logarithms)"
    return _Seen(statistics.median(values), bound, statistics.stdev(values), scale)
