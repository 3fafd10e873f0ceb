"""What following a verdict is worth for one run: GPU-hours, money, and when making the workload resumable has paid for itself."""

from __future__ import annotations

import math

import msgspec

from perdure.model.advice import JobQuestion, Verdict

_MINUTES_PER_MONTH = 365.25 * 1440.0 / 12.0
_KEPT = 2.0
"""Checkpoints stored at a time: the last one stays until the next is committed."""


class Saving(msgspec.Struct, frozen=True):
    """Resuming against retrying, one run; None where a policy never ends or a price is not known."""

    gpu_hours: float | None
    """Expected GPU-hours (node-hours for work without GPUs) that resuming saves; negative: costs."""
    storage_cost: float | None
    """Keeping the last checkpoint and the one in the making while the run lasts."""
    money: float | None
    """GPU-hours at their price, less storage."""
    pays_back_after_runs: int | None
    """Runs after which the engineering cost is recovered; None: never, or not known."""


def saving(question: JobQuestion, verdict: Verdict) -> Saving:
    """Return what resuming saves in one run of `question`, given its `verdict` and the prices in its costs."""
    costs = question.costs
    retry, resume = verdict.retry.expected_minutes, verdict.resume.expected_minutes
    hours = None if retry is None or resume is None else (retry - resume) / 60.0 * question.size.count
    storage = None
    if resume is not None and costs.checkpoint_size_gb is not None and costs.storage_price_gb_month is not None:
        kept = _KEPT if verdict.resume.chunks > 1 else 0.0
        storage = kept * costs.checkpoint_size_gb * costs.storage_price_gb_month * resume / _MINUTES_PER_MONTH
    money = None if hours is None or costs.gpu_hour_price is None else hours * costs.gpu_hour_price - (storage or 0.0)
    runs = None
    if money is not None and money > 0 and costs.engineering_cost is not None:
        runs = math.ceil(costs.engineering_cost / money)
    return Saving(hours, storage, money, runs)
