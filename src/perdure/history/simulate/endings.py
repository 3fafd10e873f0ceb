"""How an attempt ends: which of the things that could end it comes first, and what accounting shows of it.

True causes, the values of `Row.cause`: ``success user_failure out_of_memory infrastructure masked boot preemption operator
walltime deadline user_cancel user_requeue self_requeue``, and ``withdrawn running pending`` for rows without an end of a run.
Called by `engine`.
"""

from __future__ import annotations

import dataclasses

from perdure.history.simulate.draws import Stream
from perdure.history.simulate.hazards import NEVER, Hazards
from perdure.history.simulate.jobs import Job
from perdure.history.simulate.spec import LOW_QOS, FleetSpec

BOOT_FAILURES_PER_NODE_START = 5e-5
"""Chance that a node does not come up when a job starts on it. Costs time, destroys no work."""

SIGNAL_LEAD_S = 300
"""Seconds before its limit at which a job with --signal=B:USR1@300 is told."""

STATES: dict[str, tuple[str, int, int]] = {
    "success": ("COMPLETED", 0, 0),
    "out_of_memory": ("OUT_OF_MEMORY", 0, 125),
    "infrastructure": ("NODE_FAIL", 1, 0),
    "masked": ("FAILED", 0, 9),
    "boot": ("BOOT_FAIL", 0, 0),
    "preemption": ("PREEMPTED", 0, 0),
    "operator": ("CANCELLED", 0, 0),
    "walltime": ("TIMEOUT", 0, 0),
    "deadline": ("DEADLINE", 0, 0),
    "user_cancel": ("CANCELLED", 0, 0),
    "withdrawn": ("CANCELLED", 0, 0),
    "user_requeue": ("REQUEUED", 0, 0),
    "self_requeue": ("REQUEUED", 0, 0),
    "running": ("RUNNING", 0, 0),
    "pending": ("PENDING", 0, 0),
}
"""State, exit code and signal by cause, as Slurm records them; user failures have exits of their own."""

USER_EXITS: tuple[tuple[int, int], ...] = ((1, 0), (1, 0), (1, 0), (1, 0), (2, 0), (127, 0), (0, 6), (0, 11))
"""Exit code and signal of scripts that fail by themselves."""

INTERRUPTIONS = frozenset({"infrastructure", "masked", "boot", "preemption", "operator", "walltime", "user_requeue", "self_requeue"})
"""Ends after which the same work still wants to be done, through no fault of its own."""


@dataclasses.dataclass(slots=True)
class Ending:
    """What will end an attempt, unless the history ends before."""

    cause: str
    elapsed_s: int
    suspended_s: int = 0
    setup_s: int = 0
    """Part of the run that went into setting up again after an interruption."""
    factor: float = 1.0
    """f of the nodes that were given."""


class Fate:
    """Decides ends. Holds what all decisions need."""

    def __init__(self, spec: FleetSpec, hazards: Hazards, stream: Stream) -> None:
        self._hazards = hazards
        self._stream = stream
        self._masked = spec.masked_share
        self._fresh_s = round(spec.costs.fresh_cost_minutes * 60)
        self._restore_s = round(spec.costs.restore_cost_minutes * 60)

    def decide(self, job: Job, nodes: tuple[int, ...], start: int) -> Ending:
        """Decide how the attempt of `job` that starts at `start` on `nodes` will end."""
        stream = self._stream
        factor = self._hazards.node_factor(nodes)
        if stream.chance(BOOT_FAILURES_PER_NODE_START * len(nodes)):
            return Ending("boot", 0, factor=factor)
        work = job.work
        setup_s = (self._restore_s if work.saved_s else self._fresh_s) if work.interrupted and not work.finished else 0
        cause, elapsed = self._own_end(job, setup_s)
        if job.deadline is not None and job.deadline - start < elapsed:
            cause, elapsed = "deadline", max(1, job.deadline - start)
        limit_s = work.workload.limit_s
        if work.workload.self_requeue and elapsed > limit_s - SIGNAL_LEAD_S:
            cause, elapsed = "self_requeue", limit_s - SIGNAL_LEAD_S + stream.between(20, 90)
        elif elapsed > limit_s:
            # Slurm looks at limits every half minute and then waits for KillWait.
            cause, elapsed = "walltime", limit_s + stream.between(20, 35)
        cause, elapsed = self._interruption(job, start, factor, cause, elapsed)
        suspended_s = job.suspend_s if job.suspend_s and elapsed > 1200 else 0
        return Ending(cause, elapsed, suspended_s, setup_s, factor)

    def _own_end(self, job: Job, setup_s: int) -> tuple[str, int]:
        """The end that the job or its user brings about."""
        work = job.work
        if work.finished:
            return "success", self._stream.between(20, 90)
        cause, elapsed = "success", setup_s + max(1, work.total_s - work.saved_s)
        if work.workload.hopeless:
            elapsed = NEVER
        if job.fails_at_s is not None and job.fails_at_s < elapsed:
            cause, elapsed = job.fails_how, job.fails_at_s
        if work.cancels_at_s is not None and work.cancels_at_s < elapsed:
            cause, elapsed = "user_cancel", work.cancels_at_s
        if job.requeues_at_s is not None and job.requeues_at_s < elapsed:
            cause, elapsed = "user_requeue", job.requeues_at_s
        return cause, max(1, elapsed)

    def _interruption(self, job: Job, start: int, factor: float, cause: str, elapsed: int) -> tuple[str, int]:
        hazards, stream = self._hazards, self._stream
        workload = job.work.workload
        gpus = workload.total_gpus
        failure = hazards.time_to_failure(start, hazards.per_second("infrastructure", gpus) * factor, stream)
        if failure < elapsed:
            cause, elapsed = ("masked" if stream.chance(self._masked) else "infrastructure"), max(1, round(failure))
        others = ("operator", "preemption") if workload.qos == LOW_QOS else ("operator",)
        for other in others:
            rate = hazards.per_second(other, gpus)
            after = stream.exponential() / rate if rate > 0.0 else NEVER
            if after < elapsed:
                cause, elapsed = other, max(1, round(after))
        return cause, elapsed


def progress_s(job: Job, ending: Ending) -> int:
    """Return how much of the work of `job` survives this end: all that its application had saved by then."""
    work = job.work
    gained = max(0, ending.elapsed_s - ending.setup_s)
    interval = work.workload.app_interval_s
    if interval is None:
        return work.saved_s
    # Told in time, it saves everything; else what its last periodic checkpoint held.
    kept = gained if ending.cause == "self_requeue" else gained // interval * interval
    return min(work.saved_s + kept, work.total_s - 1)
