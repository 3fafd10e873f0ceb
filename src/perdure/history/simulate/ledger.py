"""Works out what is true of a simulated fleet from what happened on it. Called by `fleet`."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable

from perdure.history.simulate import endings, policies, quirks, truth
from perdure.history.simulate.happened import Happened
from perdure.history.simulate.jobs import DAY_S, HOUR_S, Row
from perdure.history.simulate.spec import LOW_QOS

SCHEMA = 1
CAUSES = ("infrastructure", "preemption", "operator")
"""Causes that strike at random. Wall time is deterministic and has counts only."""


@dataclasses.dataclass(slots=True)
class _Tally:
    attempts: int = 0
    seconds: int = 0
    exposed_s: int = 0
    expected: float = 0.0
    events: int = 0
    masked: int = 0
    boots: int = 0


def work_out(happened: Happened) -> truth.Truth:
    """Work out everything that is true of a fleet."""
    spec = happened.spec
    allocated = math.fsum(row.job.work.workload.total_gpus * _held_s(row, spec.days) for row, _ in happened.attempts) / HOUR_S
    capacity = spec.gpus * spec.days * 24.0
    found = quirks.count(happened.rows)
    multipliers = happened.hazards.day_multipliers
    return truth.Truth(
        schema=SCHEMA,
        seed=happened.seed,
        spec=spec,
        nodes=spec.gpus // spec.gpus_per_node,
        start=f"{spec.start}T00:00:00",
        days=spec.days,
        rows=len(happened.rows),
        lines=len(happened.rows) + 1 + found["newline_in_submit_line"],
        attempts=len(happened.attempts),
        capacity_gpu_hours=capacity,
        allocated_gpu_hours=_rounded(allocated),
        utilisation=_rounded(allocated / capacity),
        rates=tuple(_cause(cause, happened) for cause in CAUSES),
        walltime_events_by_size=_walltime(happened),
        day_multipliers=tuple(map(_rounded, multipliers)) if spec.burst_shape else None,
        lemon_nodes=sum(factor > 1.0 for factor in happened.hazards.factors),
        endings=_counts(row.cause for row in happened.rows),
        states=_counts(row.state for row in happened.rows),
        quirks=found,
        workloads=_workloads(happened),
    )


def _held_s(row: Row, days: int) -> int:
    """Seconds during which an attempt held its GPUs, suspension included."""
    if row.start is None:
        return 0
    return (row.end if row.end is not None else days * DAY_S) - row.start


def _rounded(value: float) -> float:
    """Nine significant figures, so that the last bits of a platform's mathematics do not show."""
    return float(f"{value:.9g}")


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(collections.Counter(values).items()))


def _walltime(happened: Happened) -> dict[str, int]:
    counts = collections.Counter(row.job.work.workload.total_gpus for row, _ in happened.attempts if row.cause == "walltime")
    return {str(gpus): counts[gpus] for gpus in sorted(counts)}


def _cause(cause: str, happened: Happened) -> truth.CauseTruth:
    spec, hazards = happened.spec, happened.hazards
    tallies = _tallies(cause, happened)
    sizes = tuple(_size(gpus, cause, tallies[gpus], happened) for gpus in sorted(tallies))
    return truth.CauseTruth(
        cause=cause,
        coefficient_per_job_hour=_rounded(hazards.coefficients[cause]),
        exponent=hazards.exponents[cause],
        per_1000_node_days=_rounded(hazards.per_hour(cause, spec.gpus_per_node) * 24_000.0),
        applies_to=f"qos={LOW_QOS}" if cause == "preemption" else "all",
        events=sum(size.events for size in sizes),
        expected_events=_rounded(math.fsum(size.expected_events for size in sizes)),
        shown_events=sum(size.shown_events for size in sizes),
        expected_shown_events=_rounded(math.fsum(size.expected_shown_events for size in sizes)),
        start_failures=sum(size.start_failures for size in sizes),
        expected_start_failures=_rounded(math.fsum(size.expected_start_failures for size in sizes)),
        by_size=sizes,
    )


def _tallies(cause: str, happened: Happened) -> dict[int, _Tally]:
    hazards = happened.hazards
    tallies: dict[int, _Tally] = {}
    for row, ending in happened.attempts:
        workload = row.job.work.workload
        tally = tallies.setdefault(workload.total_gpus, _Tally())
        tally.attempts += 1
        tally.seconds += row.elapsed_s
        tally.events += row.cause == cause
        if cause == "infrastructure":
            tally.events += row.cause == "masked"
            tally.masked += row.cause == "masked"
            tally.boots += row.cause == "boot"
        if cause == "preemption" and workload.qos != LOW_QOS:
            continue
        tally.exposed_s += row.elapsed_s
        weighted_s = float(row.elapsed_s)
        if cause == "infrastructure":
            weighted_s = ending.factor * hazards.exposure(row.start or 0, row.elapsed_s)
        tally.expected += hazards.per_second(cause, workload.total_gpus) * weighted_s
    return tallies


def _size(gpus: int, cause: str, tally: _Tally, happened: Happened) -> truth.SizeTruth:
    hours = tally.seconds / HOUR_S
    nodes = max(1, gpus // happened.spec.gpus_per_node)
    shown, boots = 1.0, 0.0
    if cause == "infrastructure":
        shown = 1.0 - happened.spec.masked_share
        boots = endings.BOOT_FAILURES_PER_NODE_START * nodes * tally.attempts
    return truth.SizeTruth(
        gpus=gpus,
        attempts=tally.attempts,
        job_hours=_rounded(hours),
        exposed_job_hours=_rounded(tally.exposed_s / HOUR_S),
        node_hours=_rounded(hours * nodes),
        gpu_hours=_rounded(hours * gpus),
        long_run_rate_per_job_hour=_rounded(happened.hazards.per_hour(cause, gpus)),
        expected_events=_rounded(tally.expected),
        events=tally.events,
        shown_events=tally.events - tally.masked,
        expected_shown_events=_rounded(tally.expected * shown),
        start_failures=tally.boots,
        expected_start_failures=_rounded(boots),
    )


def _workloads(happened: Happened) -> tuple[truth.WorkloadTruth, ...]:
    lines = collections.Counter(id(row.job.work.workload) for row in happened.rows)
    starts = collections.Counter(id(row.job.work.workload) for row, _ in happened.attempts)
    hours: dict[int, float] = collections.defaultdict(float)
    for row, _ in happened.attempts:
        workload = row.job.work.workload
        hours[id(workload)] += workload.total_gpus * row.elapsed_s / HOUR_S
    seen = [workload for workload in happened.workloads if workload.true_works_s]
    return tuple(
        truth.WorkloadTruth(
            cluster=happened.spec.cluster,
            user=workload.user.name,
            account=workload.user.account,
            name=policies.key_name(workload),
            gpus=workload.total_gpus,
            component_gpus=(workload.het_gpus, workload.gpus) if workload.het_gpus else (workload.gpus,),
            kind=workload.kind,
            qos=workload.qos,
            works=len(workload.true_works_s),
            rows=lines[id(workload)],
            attempts=starts[id(workload)],
            gpu_hours=_rounded(hours[id(workload)]),
            work_minutes=_rounded(workload.work_s / 60.0),
            work_sigma=workload.sigma,
            limit_minutes=None if workload.limit_word == "UNLIMITED" else workload.limit_s / 60.0,
            resumes_itself=workload.app_interval_s is not None,
            always_fails=workload.hopeless,
            policy=policy,
        )
        for workload, policy in zip(seen, policies.work_out(happened, seen), strict=True)
    )
