"""What advice is made of: costs that are assumed, rates that were estimated, evidence per workload, and the verdict.

All are frozen records; all times are minutes where the name ends in `_minutes`, hours for `_hours`, seconds for `_s`;
`gpu_hours` counts node-hours for workloads without GPUs (`Size.unit` says which). None means *not known* or *does not apply*.
`gc=False` marks the small records of which advice over 100,000 workloads holds a million: they cannot be part of a cycle.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from perdure.model.attempt import Cause


class Interval(msgspec.Struct, frozen=True, gc=False):
    """An interval of confidence: `low ≤ high`, two-sided at `level`."""

    low: float
    high: float
    level: float = 0.90


class Size(msgspec.Struct, frozen=True, gc=False):
    """The size of a workload: GPUs for work that has GPUs, else nodes."""

    count: float
    unit: Literal["gpu", "node"] = "gpu"


# Costs -----------------------------------------------------------------------------------------------------------


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What accounting cannot tell. Every field has a default, a reason for it, and an entry in the policy file of the same name."""

    checkpoint_cost_minutes: float = 2.0
    """C: the workload stands still this long for one checkpoint."""
    checkpoint_size_gb: float | None = None
    """Stored size of one checkpoint in GiB; None: memory per GPU is not known, storage costs nothing."""
    restore_cost_minutes: float = 10.0
    """R: from the order to restore until useful work goes on."""
    fresh_cost_minutes: float = 5.0
    """R0: a fresh start's own set-up; 20 to 30 for a serving worker that loads a very large model."""
    downtime_minutes: float = 5.0
    """D: detection plus requeue delay plus queue, the same under both policies. Read from the history where it can be."""
    durable_fraction: float = 0.0
    """Part of an interrupted attempt's work that survives without Perdure, 0 to 1: the application's own checkpoints."""
    idempotent: bool | None = None
    """Is running it twice safe? None: not known."""
    gpu_hour_price: float | None = None
    """Price of one GPU-hour, in the site's currency."""
    storage_price_gb_month: float | None = None
    """Price of one GiB stored for a month."""
    engineering_cost: float | None = None
    """Cost of making one workload resumable, in the same currency, for the pay-back figure."""


class JobQuestion(msgspec.Struct, frozen=True):
    """One job to decide about. All times in minutes."""

    work_minutes: float
    """W: uninterrupted run time still to do, > 0."""
    mttf_minutes: float
    """M: mean time to interruption of a job of this size, > 0; inf when none was ever seen."""
    mttf_interval: Interval | None = None
    """Interval of M in minutes."""
    size: Size = Size(1)
    costs: Costs = Costs()
    limit_minutes: float | None = None
    """Wall-time limit of one attempt; None or inf: none."""
    deadline_minutes: float | None = None
    """The result is wanted this long from now; None: no deadline."""
    user_failure_share: float | None = None
    """Share of GPU-hours of this workload that ended by its own failure, 0 to 1."""
    extrapolated: bool = False
    """The rate was not observed at this size."""


# Verdict ---------------------------------------------------------------------------------------------------------


class VerdictKind(enum.StrEnum):
    """The five answers."""

    RETRY = "RETRY"
    RESUME = "RESUME"
    RESUME_REQUIRED = "RESUME-REQUIRED"
    EITHER = "EITHER"
    NEITHER = "NEITHER"


class InputPoint(msgspec.Struct, frozen=True, gc=False):
    """One of the four inputs: where it points, its figure, and a sentence that says why."""

    points_to: Literal["retry", "resume", "either"]
    figure: float | None
    unit: str
    reason: str


class FourInputs(msgspec.Struct, frozen=True, gc=False):
    """The four inputs of a verdict, in the order in which they are shown."""

    interruption: InputPoint
    """How often work of this size is interrupted."""
    destroyed: InputPoint
    """How much an interruption destroys."""
    rebuild: InputPoint
    """What rebuilding costs."""
    schedule: InputPoint
    """Whether the schedule has room."""


class PolicyOutcome(msgspec.Struct, frozen=True, gc=False):
    """What one policy leads to for one job."""

    expected_minutes: float | None
    """Expected completion, interruptions included; None when it never finishes (see `never_finishes`)."""
    never_finishes: bool
    """The expectation is beyond all bounds: W/M in the hundreds, or the work exceeds its limit under retry."""
    chunks: int
    """K: pieces between which checkpoints are taken; 1 is none."""
    interval_minutes: float | None
    """Work between checkpoints, W/K; None without checkpoints."""
    meets_deadline: float | None
    """Probability of being done by the deadline, 0 to 1; None without a deadline."""


class BreakEven(msgspec.Struct, frozen=True, gc=False):
    """Where the verdict would turn."""

    work_minutes: float | None
    """W*: the first checkpoint pays for work longer than this. ΔR + √(ΔR² + 4CM)."""
    checkpoint_cost_minutes: float | None
    """C_max: the dearest checkpoint with which resuming still wins, from the exact forms (to first order
    W²/(4M) − W·ΔR/(2M)); None: never."""
    mttf_minutes: float | None
    """The MTTF at which both policies cost the same for this work and these costs."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer for one job or workload."""

    verdict: VerdictKind
    reason: str
    """One sentence a person can act on."""
    retry: PolicyOutcome
    resume: PolicyOutcome
    break_even: BreakEven
    inputs: FourInputs
    warnings: tuple[str, ...] = ()
    settle_by: str | None = None
    """With EITHER: the measurement that would settle it."""


# Rates -----------------------------------------------------------------------------------------------------------


class RateBin(msgspec.Struct, frozen=True):
    """Interruptions of one cause among attempts of one size range."""

    low: float
    """Smallest size in the bin, inclusive."""
    high: float | None
    """Largest size, inclusive; None: no upper end."""
    attempts: int
    events: int
    job_hours: float
    """Exposure: hours during which attempts of this size ran."""
    node_hours: float
    gpu_hours: float
    rate_per_job_hour: float
    """events / job_hours, unshrunk."""
    interval: Interval | None
    """Exact Poisson interval of `rate_per_job_hour` (Garwood 1936), or block bootstrap where over-dispersed."""
    shrunk_rate_per_job_hour: float
    """Pulled towards the fit in proportion to how thin the bin is (gamma-Poisson)."""
    shrunk_interval: Interval | None
    rate_per_1000_node_days: float | None
    mean_size: float
    """Exposure-weighted mean size of the attempts in the bin."""
    fitted_rate_per_job_hour: float | None = None
    """What the fit says for this bin's exposure; None without a fit."""
    own_weight: float = 0.0
    """Weight of the bin's own events in the shrunk rate, 0 (the fit alone) to 1."""
    deviation_variance: float = 0.0
    """Variance of the log of the bin's true rate over the fit's, after its events were seen."""


class RateFit(msgspec.Struct, frozen=True):
    """λ(n) = a·n^β per job-hour, Poisson regression over sizes."""

    coefficient: float
    """a: the rate per hour of a job of size 1."""
    exponent: float
    """β: 1 when failures are proportional to size."""
    exponent_interval: Interval | None
    covariance: tuple[tuple[float, float], tuple[float, float]]
    """Covariance of (log a, β), over-dispersion included. With a single size, β's is its prior's."""
    observed_low: float
    observed_high: float
    """Range of sizes that was observed; beyond it a rate is *extrapolated*."""
    shared_variance: float = 0.0
    """Part of the log rate's variance that comes from bursts which strike all sizes alike."""
    heterogeneity: float = 0.0
    """Variance of the log of bins' true rates around the fit; 0: no sign that the bins depart from it."""
    within_bins: float = 0.0
    """Variance of the log of sizes' true rates around that of their bin; 0: no sign that they differ."""
    degrees_of_freedom: float | None = None
    """Of the estimated over-dispersion; None: the variance is Poisson's own and known."""


class Dispersion(msgspec.Struct, frozen=True):
    """Are the events of a cause more bunched than a Poisson process would have them?"""

    coefficient_of_variation: float | None
    """Of the times between events; 1 for Poisson, 1.5 to 2 on LANL's systems."""
    index: float | None
    """Variance over mean of events per day, given exposure."""
    p_value: float | None
    over_dispersed: bool


class CauseRates(msgspec.Struct, frozen=True):
    """Everything estimated for one cause under one classification and one size unit."""

    cause: Cause
    classification: Literal["strict", "inclusive"]
    unit: Literal["gpu", "node"]
    events: int
    job_hours: float
    node_hours: float
    gpu_hours: float
    bins: tuple[RateBin, ...]
    fit: RateFit | None
    dispersion: Dispersion
    interval_method: Literal["poisson", "bootstrap"]


class Mttf(msgspec.Struct, frozen=True):
    """Mean time to interruption of a job of one size, with its interval and its source."""

    minutes: float
    """inf when no rate could be estimated above zero."""
    interval: Interval | None
    """In minutes; `high` is inf when the rate's lower end is zero."""
    source: Literal["bin", "fit", "prior", "given"]
    extrapolated: bool
    events: int
    """Events the estimate rests on."""


# Workloads and advice --------------------------------------------------------------------------------------------


class Bounds(msgspec.Struct, frozen=True):
    """A quantity that accounting only bounds."""

    low: float
    high: float


class WorkloadKey(msgspec.Struct, frozen=True):
    """What makes jobs alike."""

    cluster: str
    user: str
    account: str
    name: str
    """Normalised: digits and counters replaced by #."""
    size: Size


class WorkloadEvidence(msgspec.Struct, frozen=True):
    """What the history says of one workload."""

    key: WorkloadKey
    jobs: int
    attempts: int
    gpu_hours: float
    """Allocated by all its attempts."""
    delivered_gpu_hours: float
    """Ended in success."""
    destroyed_gpu_hours: Bounds
    """By interruptions; upper: all of the attempt; lower: since a checkpoint that the workload seems to have taken."""
    lost_by_cause: dict[str, float]
    """GPU-hours of attempts that ended by each cause (and by `user_failure`), upper bound."""
    interruptions: dict[str, int]
    """Attempts interrupted, by cause."""
    work_minutes: float
    """W: uninterrupted run time; from completed siblings (median), else from the limit, else the longest attempt."""
    work_source: Literal["completed", "chain", "limit", "longest"]
    limit_minutes: float | None
    queue_minutes: float | None
    """Median wait of its attempts once eligible."""
    user_failure_share: float
    resubmissions: int
    """Jobs linked to an earlier one as its repetition under a new id."""
    segments_at_limit: int
    """Attempts that ended at their wall-time limit and were continued: the workload likely resumes by itself."""
    resumes_itself: bool
    """Evidence that the application already checkpoints."""


class WorkloadAdvice(msgspec.Struct, frozen=True):
    """One row of the answer."""

    evidence: WorkloadEvidence
    mttf: Mttf
    question: JobQuestion
    verdict: Verdict
    retry_lost_gpu_hours: float | None
    """Expected GPU-hours beyond the bare work over this history's jobs, retrying; at most what the workload was allocated in it."""
    resume_lost_gpu_hours: float | None
    """The same, resuming."""
    saved_gpu_hours: float | None
    """retry_lost − resume_lost: what resuming would have saved over the window (negative: cost)."""
    saved_money: float | None


class PolicyReplay(msgspec.Struct, frozen=True):
    """The history under one policy."""

    policy: Literal["retry-all", "resume-all", "as-advised"]
    lost_gpu_hours: float
    delivered_share: float
    """Share of allocated GPU-hours that ended in delivered work, 0 to 1."""
    jobs_meeting_limit: int
    jobs: int
    unfinished_jobs: int
    """Jobs that would never have been done under the policy."""


class ExposureRow(msgspec.Struct, frozen=True):
    """One line of the exposure table."""

    outcome: str
    size_low: float
    size_high: float | None
    unit: Literal["gpu", "node"]
    attempts: int
    node_hours: float
    gpu_hours: float


class Shares(msgspec.Struct, frozen=True):
    """Shares of the whole, 0 to 1: by count and by GPU time, since they differ so much."""

    infrastructure_jobs: float
    infrastructure_gpu_hours: float
    walltime_jobs: float
    walltime_gpu_hours: float
    resubmitted_jobs: float


class Exposure(msgspec.Struct, frozen=True):
    """What `perdure history show` prints: the history before any decision."""

    attempts: int
    jobs: int
    start: str
    """First and last instant of the window, ISO 8601 UTC."""
    end: str
    days: float
    rows: tuple[ExposureRow, ...]
    node_hours: float
    gpu_hours: float
    destroyed_gpu_hours: Bounds
    walltime_exposed_gpu_hours: float
    """GPU-hours that attempts spent exposed to termination at their limit: those that ended there or within 5 % of it."""
    shares: Shares
    cannot_tell: tuple[str, ...]
    """What this history cannot answer, a sentence each."""


class Advice(msgspec.Struct, frozen=True):
    """The whole answer for a history."""

    schema: int
    history: str
    """Name of the source; '' for a table in memory."""
    exposure: Exposure
    rates: tuple[CauseRates, ...]
    workloads: tuple[WorkloadAdvice, ...]
    """Worst loss first."""
    replay: tuple[PolicyReplay, ...]
    """Empty without --what-if."""
    assumptions: dict[str, str]
    """Each input that did not come from the history, with its value and where it came from."""
    notes: tuple[str, ...]
