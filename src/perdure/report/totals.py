"""Sums over a finished advice, for every report: by unit, by cause and size, by outcome. Nothing is estimated here.

GPU-hours and node-hours are never added to each other: workloads without GPUs have totals of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from perdure.model.advice import Advice, Bounds, Exposure, VerdictKind, WorkloadAdvice

Unit = Literal["gpu", "node"]

SAVING = frozenset({VerdictKind.RESUME, VerdictKind.RESUME_REQUIRED})
"""Verdicts whose saving counts when they are followed."""


class UnitTotal(msgspec.Struct, frozen=True):
    """Sums over the workloads of one unit; hours are GPU-hours or node-hours."""

    unit: Unit
    workloads: int
    jobs: int
    interruptions: int
    destroyed_hours: Bounds
    retry_lost_hours: float
    resume_lost_hours: float
    saved_hours: float
    """By the workloads whose verdict is to resume."""
    to_resume: int
    """Workloads whose verdict is to resume."""
    without_figure: int
    """Of those, how many have no figure, since they never finish under retry."""
    never_finish: int
    """Workloads without a figure for what retrying loses."""
    whole_hours: float
    """All hours of this unit that the history allocated, in any workload."""


class Lost(msgspec.Struct, frozen=True):
    """Hours lost to one cause by workloads of one size range."""

    cause: str
    low: float
    high: float | None
    hours: float


class OutcomeShare(msgspec.Struct, frozen=True):
    """One outcome's part of the whole. `share_*` are 0 to 1."""

    outcome: str
    attempts: int
    node_hours: float
    gpu_hours: float
    share_attempts: float
    share_hours: float
    """Of GPU-hours, or of node-hours in a history without GPUs."""


def by_unit(advice: Advice, workloads: Iterable[WorkloadAdvice] | None = None) -> tuple[UnitTotal, ...]:
    """Sum `workloads` (all of the advice's, unless given) for each unit that occurs among them, GPUs first."""
    chosen = advice.workloads if workloads is None else tuple(workloads)
    return tuple(
        _unit_total(unit, members, whole_hours(advice.exposure, unit))
        for unit in ("gpu", "node")
        if (members := [row for row in chosen if row.evidence.key.size.unit == unit])
    )


def whole_hours(exposure: Exposure, unit: Unit) -> float:
    """Return all hours of `unit` in the history: GPU-hours, or the node-hours of attempts without GPUs."""
    if unit == "gpu":
        return exposure.gpu_hours
    return sum(row.node_hours for row in exposure.rows if row.unit == "node")


def lost_by_cause(advice: Advice, unit: Unit) -> tuple[Lost, ...]:
    """Sum the hours that workloads lost (upper bounds) by cause and size range, the dearest cause first, sizes ascending."""
    ranges = sorted({(row.size_low, row.size_high) for row in advice.exposure.rows if row.unit == unit}, key=lambda one: one[0])
    sums: dict[tuple[str, float, float | None], float] = {}
    for row in advice.workloads:
        key = row.evidence.key
        if key.size.unit != unit:
            continue
        low, high = _range_of(key.size.count, ranges)
        for cause, hours in row.evidence.lost_by_cause.items():
            sums[cause, low, high] = sums.get((cause, low, high), 0.0) + hours
    per_cause: dict[str, float] = {}
    for (cause, _, _), hours in sums.items():
        per_cause[cause] = per_cause.get(cause, 0.0) + hours
    lost = [Lost(cause, low, high, hours) for (cause, low, high), hours in sums.items() if hours > 0]
    return tuple(sorted(lost, key=lambda one: (-per_cause[one.cause], one.cause, one.low)))


def by_outcome(exposure: Exposure) -> tuple[OutcomeShare, ...]:
    """Sum the exposure table over sizes, most hours first."""
    attempts: dict[str, int] = {}
    node_hours: dict[str, float] = {}
    gpu_hours: dict[str, float] = {}
    for row in exposure.rows:
        attempts[row.outcome] = attempts.get(row.outcome, 0) + row.attempts
        node_hours[row.outcome] = node_hours.get(row.outcome, 0.0) + row.node_hours
        gpu_hours[row.outcome] = gpu_hours.get(row.outcome, 0.0) + row.gpu_hours
    hours = gpu_hours if exposure.gpu_hours > 0 else node_hours
    all_attempts, all_hours = sum(attempts.values()), sum(hours.values())
    shares = [
        OutcomeShare(
            outcome,
            attempts[outcome],
            node_hours[outcome],
            gpu_hours[outcome],
            attempts[outcome] / all_attempts if all_attempts else 0.0,
            hours[outcome] / all_hours if all_hours else 0.0,
        )
        for outcome in attempts
    ]
    return tuple(sorted(shares, key=lambda one: (-hours[one.outcome], -one.attempts, one.outcome)))


def _unit_total(unit: Unit, members: Sequence[WorkloadAdvice], whole: float) -> UnitTotal:
    to_resume = [row for row in members if row.verdict.verdict in SAVING]
    return UnitTotal(
        unit=unit,
        workloads=len(members),
        jobs=sum(row.evidence.jobs for row in members),
        interruptions=sum(sum(row.evidence.interruptions.values()) for row in members),
        destroyed_hours=Bounds(
            sum(row.evidence.destroyed_gpu_hours.low for row in members), sum(row.evidence.destroyed_gpu_hours.high for row in members)
        ),
        retry_lost_hours=sum(row.retry_lost_gpu_hours or 0.0 for row in members),
        resume_lost_hours=sum(row.resume_lost_gpu_hours or 0.0 for row in members),
        saved_hours=sum(row.saved_gpu_hours or 0.0 for row in to_resume),
        to_resume=len(to_resume),
        without_figure=sum(row.saved_gpu_hours is None for row in to_resume),
        never_finish=sum(row.retry_lost_gpu_hours is None for row in members),
        whole_hours=whole,
    )


def _range_of(count: float, ranges: Sequence[tuple[float, float | None]]) -> tuple[float, float | None]:
    """The range that holds `count`, fractions of a GPU included; one of its own when the exposure table has none for it."""
    for place, (low, high) in enumerate(ranges):
        if (place == 0 or low <= count) and (high is None or count < high + 1):
            return low, high
    return count, count
