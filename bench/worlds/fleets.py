"""Simulated fleets, advised, and held against their truth: the coverage of rate intervals and the regret of verdicts.

Called by `bench.coverage`. One fleet is one call of `judge`, so that a pool of processes can share them out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

import perdure
from perdure.decision import figures
from perdure.history import simulate, table
from perdure.history.simulate.truth import CauseTruth, PolicyTruth, SizeTruth, Truth, WorkloadTruth
from perdure.model.advice import Advice, CauseRates, Costs, JobQuestion, Size, VerdictKind, WorkloadAdvice
from perdure.stats import completion, rates, size_bins

_LEAST_JOB_HOURS = 24.0
"""Sizes that ran for less than a day in all are not asked about by themselves; their bins are."""

_LEAST_EVENTS = 10
"""An exponent from fewer is mostly its prior, whose interval holds any likely truth: that says nothing of the method."""


@dataclasses.dataclass
class Judged:
    """One fleet: intervals that held the truth, and what the verdicts cost beside the best policies."""

    hits: list[tuple[str, str, str, bool]]
    """Cause, kind of interval, size or bin, and whether it held the truth."""
    best_gpu_hours: float = 0.0
    advised_gpu_hours: float = 0.0
    worst_gpu_hours: float = 0.0
    """As advised, but EITHER taken the worse way each time."""
    retry_gpu_hours: float = 0.0
    resume_gpu_hours: float = 0.0
    workloads: int = 0
    unmatched: int = 0
    never_finishing: int = 0
    """Workloads told a policy by which they would never be done."""
    verdicts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Counts of ``true best → verdict``."""


def spec_of(number: int, *, gpus: int, days: int) -> simulate.FleetSpec:
    """Return the fleet with this number: every second one bursty, exponents 0.8, 1 and 1.2 in turn."""
    return simulate.FleetSpec(
        gpus=gpus, days=days, burst_shape=0.5 if number % 2 else None, infrastructure_exponent=(0.8, 1.0, 1.2)[number // 2 % 3]
    )


def judge(number: int, gpus: int, days: int) -> Judged:
    """Simulate fleet `number`, advise on it, and compare both with the truth."""
    fleet = simulate.simulate(spec_of(number, gpus=gpus, days=days), 1000 + number)
    with table.connect(threads=1) as connection:
        fleet.fill(connection)
        advice = perdure.advise(connection.sql("FROM attempts"), seed=number, threads=1)
    truth = fleet.truth
    judged = Judged(hits=list(_hits(truth, advice)))
    _regret(judged, truth, advice)
    return judged


# Coverage --------------------------------------------------------------------------------------------------------


def _hits(truth: Truth, advice: Advice) -> Iterator[tuple[str, str, str, bool]]:
    estimated = {one.cause.value: one for one in advice.rates if one.classification == "strict" and one.unit == "gpu"}
    for law in truth.rates:
        found = estimated[law.cause]
        expected = {size.gpus: _expected(size) for size in law.by_size}
        hours = {size.gpus: size.exposed_job_hours for size in law.by_size}
        for one in found.bins:
            place = size_bins.bin_of(one.mean_size)
            inside = [size for size in hours if size_bins.bin_of(size) == place and hours[size] > 0]
            if not inside or one.interval is None:
                continue
            rate = sum(expected[size] for size in inside) / sum(hours[size] for size in inside)
            if rate == 0:
                continue
            yield law.cause, "bins, unshrunk", f"{one.low:g}", one.interval.low <= rate <= one.interval.high
            yield law.cause, "bins, shrunk", f"{one.low:g}", one.shrunk_interval.low <= rate <= one.shrunk_interval.high
        yield from _hits_by_size(law, found, expected, hours)
        known = found.fit is not None and found.fit.exponent_interval is not None and found.events >= _LEAST_EVENTS
        if known:
            yield law.cause, "exponent", "", found.fit.exponent_interval.low <= law.exponent <= found.fit.exponent_interval.high


def _hits_by_size(
    law: CauseTruth, found: CauseRates, expected: dict[int, float], hours: dict[int, float]
) -> Iterator[tuple[str, str, str, bool]]:
    sizes = [size for size in hours if hours[size] >= _LEAST_JOB_HOURS and expected[size] > 0]
    for size, mttf in zip(sizes, rates.mttf_for_sizes([found], sizes, "gpu"), strict=True):
        rate = expected[size] / hours[size]
        yield law.cause, "sizes", str(size), 60 / mttf.interval.high <= rate <= 60 / mttf.interval.low


def _expected(size: SizeTruth) -> float:
    """Events that a strict reading of this exposure should show in the long run. What bursts did in this window is not in it."""
    shown = size.expected_shown_events / size.expected_events if size.expected_events > 0 else 1.0
    return size.long_run_rate_per_job_hour * size.exposed_job_hours * shown


# Regret ----------------------------------------------------------------------------------------------------------


def _regret(judged: Judged, truth: Truth, advice: Advice) -> None:
    rows = {
        (row.evidence.key.user, row.evidence.key.account, row.evidence.key.name, row.evidence.key.size.count): row
        for row in advice.workloads
    }
    for workload in truth.workloads:
        if not workload.attempts:
            continue  # it was submitted and never ran within the window: there is nothing to advise on
        row = rows.get((workload.user, workload.account, workload.name, float(workload.gpus)))
        policy = workload.policy
        judged.workloads += 1
        if row is None:
            judged.unmatched += 1
            continue
        told = row.verdict.verdict
        pair = f"{policy.best.value} → {told.value}"
        judged.verdicts[pair] = judged.verdicts.get(pair, 0) + 1
        if policy.best is VerdictKind.NEITHER:
            continue  # it fails by its own bug: no policy delivers anything
        retry, resume = _retry_cost(workload), _resume_cost(workload, row)
        if not np.isfinite(resume):  # an interval that leaves no room for a checkpoint before the limit saves nothing
            resume = _never_ends(workload)
            judged.never_finishing += told in (VerdictKind.RESUME, VerdictKind.RESUME_REQUIRED)
        judged.never_finishing += policy.retry_gpu_hours is None and told is VerdictKind.RETRY
        # NEITHER says to fix a bug first; until then nothing changes, which is to retry.
        by_verdict = {VerdictKind.RETRY: retry, VerdictKind.NEITHER: retry, VerdictKind.EITHER: (retry + resume) / 2}
        advised = by_verdict.get(told, resume)
        judged.best_gpu_hours += min(retry, _at_best(policy))
        judged.retry_gpu_hours += retry
        judged.resume_gpu_hours += resume
        judged.advised_gpu_hours += advised
        judged.worst_gpu_hours += max(retry, resume) if told is VerdictKind.EITHER else advised


def _at_best(policy: PolicyTruth) -> float:
    assert policy.resume_gpu_hours is not None  # in chunks, all work ends: the costs of a simulated fleet are far below its MTTF
    return policy.resume_gpu_hours


def _never_ends(workload: WorkloadTruth) -> float:
    """The price of what never ends: what the workload was given in the window, on top of the work."""
    return workload.policy.work_gpu_hours + workload.gpu_hours


def _retry_cost(workload: WorkloadTruth) -> float:
    return _never_ends(workload) if workload.policy.retry_gpu_hours is None else workload.policy.retry_gpu_hours


def _resume_cost(workload: WorkloadTruth, row: WorkloadAdvice) -> float:
    """What resuming costs at the interval of the verdict instead of the best one, under the true MTTF, costs and work; inf: never ends."""
    policy = workload.policy
    interval = row.verdict.resume.interval_minutes
    if policy.mttf_minutes is None or interval is None:
        return _at_best(policy)
    costs = Costs(
        checkpoint_cost_minutes=policy.checkpoint_cost_minutes,
        restore_cost_minutes=policy.restore_cost_minutes,
        fresh_cost_minutes=policy.fresh_cost_minutes,
        downtime_minutes=policy.downtime_minutes,
        durable_fraction=policy.durable_fraction,
    )
    work = workload.work_minutes
    question = JobQuestion(work, policy.mttf_minutes, None, Size(workload.gpus), costs, workload.limit_minutes)
    chunks = np.array([max(1.0, np.ceil(work / interval - 1e-9)), policy.chunks])
    told, best = completion.resume(figures.gather([question, question]).terms, chunks)
    return _at_best(policy) * max(float(told / best), 1.0)
