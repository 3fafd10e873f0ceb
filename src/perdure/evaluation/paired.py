"""Points of both arms put together: pairs, medians, intervals, differences, ratios. Called by `measures`. Pure.

A pair is what is independent of other pairs: the interruptions of one run share its node, its hour and its luck. So a run enters by the
mean of its values, and a pair by the mean over the interruptions of which both sides have one.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from perdure.evaluation import power
from perdure.evaluation.plan import Plan
from perdure.model.advice import Interval
from perdure.model.evaluation import Arm, MeasureKind, MeasureResult, Outcome, Point, Unmeasured
from perdure.stats import paired as medians

_BACKWARD = frozenset({MeasureKind.UTILISATION})
"""More is better; of all others less is."""
_NOT_RECOVERED = frozenset({MeasureKind.RECOVERY_TIME, MeasureKind.WORK_LOST})


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """One value a run and one a pair."""

    arms: dict[Arm, tuple[float, ...]]
    """Mean of each run's values, by pair; no pair more than once."""
    differences: tuple[float, ...]
    """Managed − unmanaged, one a pair."""
    ratios: tuple[float, ...] | None
    """Managed / unmanaged, one a pair; None when the unmanaged side of any pair is 0, for which there is no ratio."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a measure is."""

    kind: MeasureKind
    unit: str
    includes: str


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs say: values, and reasons where there is none."""

    points: tuple[Point, ...]
    unmeasured: tuple[Unmeasured, ...] = ()


def pair(points: Iterable[Point]) -> Pairing:
    """Put points together, run by run and pair by pair."""
    cells: dict[tuple[Arm, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        cells[point.arm, point.pair][point.index].append(point.value)
    means = {side: {index: statistics.fmean(values) for index, values in found.items()} for side, found in cells.items()}
    units = {
        arm: tuple(statistics.fmean(found.values()) for (side, _), found in sorted(means.items(), key=_by_pair) if side is arm)
        for arm in Arm
    }
    differences, ratios = [], []
    for number in sorted({number for _, number in means}):
        managed, unmanaged = (means.get((arm, number), {}) for arm in (Arm.MANAGED, Arm.UNMANAGED))
        common = managed.keys() & unmanaged.keys()
        if common:
            above, below = (statistics.fmean(side[index] for index in sorted(common)) for side in (managed, unmanaged))
            differences.append(above - below)
            ratios.append(above / below if below > 0 else math.nan)
    defined = bool(ratios) and not any(math.isnan(ratio) for ratio in ratios)
    return Pairing(arms=units, differences=tuple(differences), ratios=tuple(ratios) if defined else None)


def compare(definition: Definition, values: Values, plan: Plan) -> MeasureResult:
    """Return one measure of both arms, judged against the plan's threshold, if it has one, at the plan's level."""
    points, unmeasured, level = values.points, values.unmeasured, plan.site.level
    threshold = plan.success.of(definition.kind)
    pairing = pair(points)
    lost = definition.kind in _NOT_RECOVERED and any(each.code == "never-recovered" and each.arm is Arm.MANAGED for each in unmeasured)
    partners = _without_partner(points)
    bounds = () if threshold is None else power.criteria(threshold, pairing)
    return MeasureResult(
        kind=definition.kind,
        unit=definition.unit,
        points=points,
        medians={arm: _median(pairing.arms[arm]) for arm in Arm},
        intervals={arm: medians.median_interval(pairing.arms[arm], level) for arm in Arm},
        difference=_median(pairing.differences),
        difference_interval=medians.median_interval(pairing.differences, level),
        ratio=None if pairing.ratios is None else _median(pairing.ratios),
        ratio_interval=None if pairing.ratios is None else medians.median_interval(pairing.ratios, level),
        threshold=threshold,
        outcome=None if threshold is None else _judge(bounds, level, lost=lost),
        runs_needed=power.runs_needed(bounds, level),
        runs_needed_by=power.explain(bounds),
        includes=definition.includes,
        pairs=len(pairing.differences),
        method=method(level),
        unmeasured=(*unmeasured, *partners),
        **_tail(definition.kind, [point.value for point in points if point.arm is Arm.MANAGED], lost=lost),
    )


def against_itself(definition: Definition, values: Values, plan: Plan) -> MeasureResult:
    """Return a measure whose points compare the two arms already, as overhead does, or that one arm alone has, as the cost of checkpoints.

    Its difference from 0, and its ratio one more than it, where it is a ratio.
    """
    found = compare(definition, values, plan)
    found = msgspec.structs.replace(found, unmeasured=tuple(each for each in found.unmeasured if each.code != "no-partner"))
    if definition.kind is not MeasureKind.OVERHEAD:
        return found
    middle, interval = found.medians[Arm.MANAGED], found.intervals[Arm.MANAGED]
    return msgspec.structs.replace(
        found,
        difference=middle,
        difference_interval=interval,
        ratio=None if middle is None else middle + 1,
        ratio_interval=None if interval is None else Interval(interval.low + 1, interval.high + 1, interval.level),
        pairs=len({point.pair for point in values.points}),
    )


def method(level: float) -> str:
    """Say how intervals are made."""
    return (
        f"median of pairs; interval of {level:.0%}: percentiles of the paired bootstrap with its ranks corrected for few pairs "
        f"(Hettmansperger and Sheather 1986); none with fewer than {medians.fewest(level)} pairs"
    )


def nearest_rank(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of `values` do not exceed: one of them, never between two."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def _judge(bounds: Sequence[power.Criterion], level: float, *, lost: bool) -> Outcome:
    outcomes = {power.judge(each, level) for each in bounds}
    if Outcome.FAIL in outcomes:
        return Outcome.FAIL
    # What never came back has no value that could enter a median: no median of the rest passes.
    return Outcome.PASS if outcomes == {Outcome.PASS} and not lost else Outcome.UNDECIDED


def _tail(kind: MeasureKind, values: Sequence[float], *, lost: bool) -> dict[str, float | None]:
    if not values or lost:
        return {"worst": None, "percentile_95": None}
    if kind in _BACKWARD:
        return {"worst": min(values), "percentile_95": -nearest_rank([-value for value in values], 0.95)}
    return {"worst": max(values), "percentile_95": nearest_rank(values, 0.95)}


def _without_partner(points: Sequence[Point]) -> tuple[Unmeasured, ...]:
    sides = {(point.arm, point.pair, point.index) for point in points}
    other = {Arm.MANAGED: Arm.UNMANAGED, Arm.UNMANAGED: Arm.MANAGED}
    return tuple(
        Unmeasured(
            point.run, point.arm, point.pair, "no-partner", "the other side of its pair has no value: it is in no difference", point.fault
        )
        for point in points
        if (other[point.arm], point.pair, point.index) not in sides
    )


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _by_pair(item: tuple[tuple[Arm, int], dict[int, float]]) -> int:
    return item[0][1]
