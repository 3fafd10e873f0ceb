"""The best policy for each workload in hindsight: what retry and resume would cost under the true rates. Called by `truth`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perdure.history import lines, names
from perdure.history.simulate import truth
from perdure.history.simulate.endings import Ending
from perdure.history.simulate.happened import Happened
from perdure.history.simulate.hazards import Hazards
from perdure.history.simulate.jobs import Row, Workload
from perdure.history.simulate.spec import LOW_QOS, FleetSpec
from perdure.model.advice import VerdictKind
from perdure.stats import completion

FEW_WAITS = 5
"""With fewer restarts than this at a size, the fleet's mean wait stands for it."""


def key_name(workload: Workload) -> str:
    """Return the normalised name under which an analysis finds a workload."""
    name = workload.pattern.replace("{i}", "1")
    return names.normalise(lines.decode(name.encode("utf-8", "surrogateescape")))


def work_out(happened: Happened, workloads: list[Workload]) -> list[truth.PolicyTruth]:
    """Work out the best policy of each of `workloads`, all of which wanted something."""
    waits = _waits(happened.attempts)
    medians = [_terms_of(happened.spec, workload, happened.hazards, waits) for workload in workloads]
    index = np.repeat(np.arange(len(workloads)), [len(workload.true_works_s) for workload in workloads])
    table = np.array(medians, float).reshape(len(workloads), 8)
    typical = _terms(table)
    each = _terms(table[index])
    work = np.array([seconds / 60.0 for workload in workloads for seconds in workload.true_works_s], float)
    each = _with_work(each, work)
    fits = (work <= each.limit) | (typical.work > typical.limit)[index] | (each.durable > 0)
    gpus = np.array([workload.total_gpus for workload in workloads], float)[index] / 60.0
    chunks = completion.best_chunks(typical)
    columns = {
        "works": fits.astype(float),
        "bare": work * gpus,
        "retry": completion.retry(each) * gpus,
        "resume": completion.resume(each, completion.best_chunks(each)) * gpus,
    }
    sums = {name: _sums(index[fits], column[fits], len(workloads)) for name, column in columns.items()}
    return [
        _policy(workload, medians[i], float(chunks[i]), {n: float(s[i]) for n, s in sums.items()}) for i, workload in enumerate(workloads)
    ]


def _sums(index: NDArray[np.intp], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = np.bincount(index, values, count).astype(float)
    return sums


def _terms(table: NDArray[np.float64]) -> completion.Terms:
    return completion.Terms(*(table[:, column] for column in range(8)))


def _with_work(terms: completion.Terms, work: NDArray[np.float64]) -> completion.Terms:
    return completion.Terms(
        work, terms.mttf, terms.checkpoint, terms.restore, terms.fresh, terms.downtime, terms.durable, terms.limit
    )  # fmt: skip


def _waits(attempts: list[tuple[Row, Ending]]) -> dict[int, float]:
    """Mean minutes from a requeue to the next start by size, and of all sizes under 0."""
    sums: dict[int, list[float]] = {}
    for row, _ in attempts:
        if row.restarts and row.start is not None:
            for size in (0, row.job.work.workload.total_gpus):
                entry = sums.setdefault(size, [0.0, 0.0])
                entry[0] += (row.start - row.submit) / 60.0
                entry[1] += 1.0
    return {size: total / count for size, (total, count) in sums.items() if not size or count >= FEW_WAITS}


def _terms_of(fleet_spec: FleetSpec, workload: Workload, hazards: Hazards, waits: dict[int, float]) -> tuple[float, ...]:
    """W, M, C, R, R0, D, durable part and limit of a workload, in the order of `completion.Terms`."""
    gpus, costs = workload.total_gpus, fleet_spec.costs
    rate = hazards.per_hour("infrastructure", gpus) + hazards.per_hour("operator", gpus)
    if workload.qos == LOW_QOS:
        rate += hazards.per_hour("preemption", gpus)
    durable = 0.0
    if workload.app_interval_s is not None:
        durable = max(0.0, 1.0 - workload.app_interval_s / workload.work_s)
    return (
        workload.work_s / 60.0,
        60.0 / rate if rate > 0.0 else np.inf,
        costs.checkpoint_cost_minutes,
        costs.restore_cost_minutes,
        costs.restore_cost_minutes if durable else costs.fresh_cost_minutes,
        waits.get(gpus, waits.get(0, costs.downtime_minutes)),
        durable,
        np.inf if workload.limit_word == "UNLIMITED" else workload.limit_s / 60.0,
    )


def _policy(workload: Workload, terms: tuple[float, ...], chunks: float, sums: dict[str, float]) -> truth.PolicyTruth:
    work, mttf, checkpoint, restore, fresh, downtime, durable, limit = terms
    if workload.hopeless:
        best = VerdictKind.NEITHER
    elif work > limit and not durable:
        best = VerdictKind.RESUME_REQUIRED
    else:
        best = VerdictKind.RETRY if sums["retry"] <= sums["resume"] else VerdictKind.RESUME
    return truth.PolicyTruth(
        best=best,
        mttf_minutes=_finite(mttf),
        checkpoint_cost_minutes=checkpoint,
        restore_cost_minutes=restore,
        fresh_cost_minutes=fresh,
        downtime_minutes=float(f"{downtime:.9g}"),
        durable_fraction=float(f"{durable:.9g}"),
        works=round(sums["works"]),
        work_gpu_hours=float(f"{sums['bare']:.9g}"),
        retry_gpu_hours=_finite(sums["retry"]),
        resume_gpu_hours=_finite(sums["resume"]),
        chunks=chunks,
    )


def _finite(value: float) -> float | None:
    return float(f"{value:.9g}") if np.isfinite(value) else None
