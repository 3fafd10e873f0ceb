"""The schema of ``truth.json``: intensities, what they made happen, and the best policy for each workload in hindsight.

The package's docstring tells it in words. Filled in by `ledger` and `policies`.
"""

from __future__ import annotations

import msgspec

from perdure.history.simulate.spec import FleetSpec
from perdure.model.advice import VerdictKind

SCHEMA = 1
CAUSES = ("infrastructure", "preemption", "operator")
"""Causes that strike at random. Wall time is deterministic and has counts only."""


class SizeTruth(msgspec.Struct, frozen=True):
    """One cause and one size: the true intensity, and what it made happen."""

    gpus: int
    attempts: int
    job_hours: float
    """Hours that all attempts of this size ran, running ones included."""
    exposed_job_hours: float
    """Those of attempts that this cause could strike; differs from `job_hours` for preemption alone."""
    node_hours: float
    gpu_hours: float
    long_run_rate_per_job_hour: float
    """λ(n) = a·n^β, for a job that the cause can strike."""
    expected_events: float
    """∫ λ(n)·f·m(t) dt over what really ran: lemon nodes and bursts as they fell. Its difference from the events is noise of mean 0."""
    events: int
    """Interruptions that happened to running jobs, those that accounting shows as FAILED included."""
    shown_events: int
    """Of these, the ones whose state names the cause: NODE_FAIL, PREEMPTED, CANCELLED by 0."""
    expected_shown_events: float
    start_failures: int
    """BOOT_FAIL records: no exposure, no work destroyed; never part of `events`."""
    expected_start_failures: float
    """What the chance of a failed start, per node and start, makes one expect of them."""


class CauseTruth(msgspec.Struct, frozen=True):
    """One cause's law and its realisation."""

    cause: str
    coefficient_per_job_hour: float
    """a: the rate at one GPU."""
    exponent: float
    """β in GPUs."""
    per_1000_node_days: float
    """The same law for a job that fills one node."""
    applies_to: str
    """``all`` or ``qos=low``."""
    events: int
    expected_events: float
    shown_events: int
    expected_shown_events: float
    start_failures: int
    expected_start_failures: float
    by_size: tuple[SizeTruth, ...]


class PolicyTruth(msgspec.Struct, frozen=True):
    """What is best for one workload. Expected GPU-hours are of all its works, bare work included."""

    best: VerdictKind
    """RETRY, RESUME, RESUME-REQUIRED (the work is longer than its limit) or NEITHER (it always fails)."""
    mttf_minutes: float | None
    """M under the true long-run rates of all causes that can strike it; None: never interrupted."""
    checkpoint_cost_minutes: float
    restore_cost_minutes: float
    fresh_cost_minutes: float
    downtime_minutes: float
    """D: mean time from the end of an attempt to the start of the next at this size."""
    durable_fraction: float
    """Part of the work that its own checkpoints save; 0 without."""
    works: int
    """Works that the costs are summed over: all, or where only the longest exceed the limit, those that fit."""
    work_gpu_hours: float
    retry_gpu_hours: float | None
    """None: never finishes."""
    resume_gpu_hours: float | None
    chunks: float
    """K of the least expected completion at the median work; 1: no checkpoint pays."""


class WorkloadTruth(msgspec.Struct, frozen=True):
    """One workload: its key as an analysis of the history would form it, and what is best for it."""

    cluster: str
    user: str
    account: str
    name: str
    """Normalised as `history.names` does; bytes that are not UTF-8 as the reader keeps them."""
    gpus: int
    """All components of a heterogeneous job together."""
    component_gpus: tuple[int, ...]
    """GPUs per accounting row: one figure, or two for heterogeneous jobs."""
    kind: str
    qos: str
    works: int
    """Results that its user wanted within the window."""
    rows: int
    attempts: int
    gpu_hours: float
    work_minutes: float
    """W: median uninterrupted run time."""
    work_sigma: float
    """Standard deviation of log W between the works of this workload."""
    limit_minutes: float | None
    """None: none."""
    resumes_itself: bool
    always_fails: bool
    policy: PolicyTruth


class Truth(msgspec.Struct, frozen=True):
    """The content of ``truth.json``."""

    schema: int
    seed: int
    spec: FleetSpec
    nodes: int
    start: str
    days: int
    rows: int
    lines: int
    """Lines of the accounting file, header included."""
    attempts: int
    """Attempts that started; a heterogeneous job's counts once."""
    capacity_gpu_hours: float
    allocated_gpu_hours: float
    utilisation: float
    rates: tuple[CauseTruth, ...]
    walltime_events_by_size: dict[str, int]
    """TIMEOUT ends by GPUs."""
    day_multipliers: tuple[float, ...] | None
    """m(t) by day; None when not bursty."""
    lemon_nodes: int
    endings: dict[str, int]
    """Rows by true cause; heterogeneous jobs leave two."""
    states: dict[str, int]
    """Rows by base state."""
    quirks: dict[str, int]
    """How often each thing that breaks careless readers was planted."""
    workloads: tuple[WorkloadTruth, ...]
