"""What the simulator moves about: workloads, the works they want done, jobs, and the accounting rows that jobs leave behind.

Times are whole seconds since the first day of the simulation. A *work* is what a user wants to have: it may take several
jobs (resubmissions, the segments of a chain), and each job several attempts (requeues).
"""

from __future__ import annotations

import dataclasses

HOUR_S = 3600
DAY_S = 86_400


@dataclasses.dataclass(slots=True)
class User:
    """A user of the fleet."""

    name: str
    uid: int
    account: str


@dataclasses.dataclass(slots=True)
class Workload:
    """Jobs that are alike, and how they behave. Probabilities are per work unless said otherwise."""

    kind: str
    user: User
    stem: str
    """Name without its counter."""
    pattern: str
    """Name of the jobs, with ``{i}`` where the counter stands."""
    gpus: int
    nodes: int
    qos: str
    limit_s: int
    """What Slurm enforces."""
    limit_word: str
    """What TimelimitRaw shows: minutes, UNLIMITED or Partition_Limit."""
    work_s: float
    """Median of the uninterrupted run time of one work."""
    sigma: float
    works: int
    requeue: bool = True
    app_interval_s: int | None = None
    """Seconds between the application's own checkpoints; None: an interruption loses everything."""
    self_requeue: bool = False
    """Catches the signal before its limit, saves and requeues itself."""
    segments: int = 1
    """Jobs submitted at once as a chain with --dependency=afterany."""
    array: int = 0
    """Tasks of one array; 0: single jobs."""
    throttle: int = 0
    """Tasks of an array that may run at once; 0: all."""
    het_gpus: int = 0
    """GPUs of the second component of a heterogeneous job; 0: not one."""
    fails: float = 0.0
    fails_at_s: float = 180.0
    """Median of the run time until the user's bug strikes."""
    out_of_memory: float = 0.0
    cancels: float = 0.0
    """The user stops a run."""
    withdraws: float = 0.01
    """The user cancels a job that has not started after some hours."""
    suspends: float = 0.0
    user_requeues: float = 0.0
    resubmits: float = 0.7
    """Chance that an end without a result is followed by a new job for the same work."""
    deadline_s: int | None = None
    """``--deadline``, seconds after submission."""
    constraint: str = ""
    total_gpus: int = 0
    """GPUs of a whole job, all components of a heterogeneous one together."""
    true_works_s: list[int] = dataclasses.field(default_factory=list)
    """Run time of each work that was submitted."""

    @property
    def hopeless(self) -> bool:
        """Tell whether every run ends in the user's own bug."""
        return self.fails >= 1.0


@dataclasses.dataclass(slots=True)
class Work:
    """One result that a user wants."""

    workload: Workload
    number: int
    total_s: int
    saved_s: int = 0
    """Work that survives an interruption: the application's last checkpoint."""
    finished: bool = False
    submissions: int = 0
    """Jobs made for it so far."""
    resubmitted: int = 0
    """How often its user tried again under a new id."""
    cancels_at_s: int | None = None
    interrupted: bool = False
    """It was interrupted before, so that the next start pays for set-up again."""


@dataclasses.dataclass(slots=True)
class Job:
    """One job id: what was submitted once, and what has become of it."""

    work: Work
    raw_id: int
    job_id: str
    name: str
    submit: int
    eligible: int | None
    """None while it depends on a job that has not ended."""
    db_index: int
    submit_line: str
    waits_since: int = 0
    """What its priority counts from: when it became eligible; a large job that is requeued keeps it."""
    depends_on: int | None = None
    array_job: int | None = None
    array_task: int | None = None
    restarts: int = 0
    fails_at_s: int | None = None
    """Run time at which the user's bug strikes; None: not in this job."""
    fails_how: str = ""
    """``failed`` or ``memory``."""
    requeues_at_s: int | None = None
    suspend_s: int = 0
    deadline: int | None = None
    follower: Job | None = None
    """The next segment of a chain."""
    held: list[Job] = dataclasses.field(default_factory=list)
    """Tasks of an array that wait for this one to end."""
    queued: bool = False
    ended: bool = False


@dataclasses.dataclass(slots=True)
class Row:
    """One record of accounting: an attempt, or a job that never started. `job` holds what all its attempts share."""

    job: Job
    db_index: int
    submit: int
    eligible: int | None
    restarts: int
    start: int | None
    end: int | None
    elapsed_s: int
    suspended_s: int
    state: str
    cause: str
    """The true reason of the end: see `endings`. The state is what accounting shows of it."""
    canceller: int | None = None
    exit_code: int = 0
    exit_signal: int = 0
    nodes: tuple[int, ...] = ()
    failed_node: int | None = None
    comment: str = ""
    reason: str = "None"
    het_offset: int | None = None
    pending_tasks: tuple[int, ...] = ()
    """Tasks that the summary row of a pending array stands for."""
