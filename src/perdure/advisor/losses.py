"""What each policy is expected to lose over a history's jobs. Called by `advise`.

Lost are the GPU-hours beyond the bare work: run again, spent on restarts and on checkpoints. Waiting in a queue holds no GPU and
is not among them, so the formulas are used with a downtime of nothing.

An expectation grows beyond all bounds where work is many times longer than the time between interruptions, but no workload can
have lost more in a history than it was given there: what it was allocated is the most that either policy is said to lose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perdure.model.advice import JobQuestion, Verdict
from perdure.stats import completion

Floats = NDArray[np.float64]

MINUTES_PER_MONTH = 43_830.0
"""A twelfth of a year of 365.25 days."""


@dataclasses.dataclass(frozen=True)
class Losses:
    """GPU-hours (node-hours for work without GPUs), one entry a workload, finite. Money is NaN without a price."""

    retry: Floats
    resume: Floats
    money: Floats

    def saved(self) -> Floats:
        """Return retry − resume."""
        return self.retry - self.resume


def expect(
    terms: completion.Terms, questions: Sequence[JobQuestion], verdicts: Sequence[Verdict], wanted: Floats, allocated_hours: Floats
) -> Losses:
    """Return the expected losses of `wanted` jobs of each workload, at most what it was allocated.

    `terms` are those of `questions`. Resuming takes the chunks of the verdict.

    The money saved is what the GPU-hours saved cost, less the storage of one checkpoint for as long as each job takes, where
    the costs hold the prices and the size.
    """
    while_running = dataclasses.replace(terms, downtime=np.zeros_like(terms.downtime))
    chunks = np.array([verdict.resume.chunks for verdict in verdicts], dtype=np.float64)
    hours = wanted * np.array([question.size.count for question in questions]) / 60.0
    retry = np.minimum(_beyond(completion.retry(while_running), terms.work, hours), allocated_hours)
    resume = np.minimum(_beyond(completion.resume(while_running, chunks), terms.work, hours), allocated_hours)
    losses = Losses(retry, resume, np.full(len(questions), np.nan))
    return dataclasses.replace(losses, money=_money(losses.saved(), questions, verdicts, wanted))


def _beyond(expected: Floats, work: Floats, hours: Floats) -> Floats:
    finite = np.isfinite(expected)
    # No job wanted is nothing lost, even where a job would never finish.
    return np.where(finite, (np.where(finite, expected, 0.0) - work) * hours, np.where(hours > 0, np.inf, 0.0))


def _money(saved: Floats, questions: Sequence[JobQuestion], verdicts: Sequence[Verdict], wanted: Floats) -> Floats:
    money = np.full(len(questions), np.nan)
    for index, (question, verdict) in enumerate(zip(questions, verdicts, strict=True)):
        costs = question.costs
        if costs.gpu_hour_price is None or question.size.unit != "gpu":
            continue
        money[index] = saved[index] * costs.gpu_hour_price
        if costs.storage_price_gb_month and costs.checkpoint_size_gb and verdict.resume.chunks > 1 and verdict.resume.expected_minutes:
            kept_months = wanted[index] * verdict.resume.expected_minutes / MINUTES_PER_MONTH
            money[index] -= kept_months * costs.checkpoint_size_gb * costs.storage_price_gb_month
    return money
