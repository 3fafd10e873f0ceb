"""Frozen records of an evaluation: the plan on paper, raw runs with their events, measures, and the mistakes an evaluation may make.

The plan is `evaluation.toml`; raw runs are one `Run` a line in `runs.jsonl`, appended and never rewritten. All that is computed
comes from those two. Times of events are seconds of one monotonic clock since the evaluation's start on that host (`at_s`);
hours are of nodes or GPUs where the name says so. None means *not known* or *does not apply*.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import msgspec

from perdure.model.advice import Interval

FORMAT = 1
"""Version of `evaluation.toml`, `runs.jsonl` and the report's JSON."""


class Arm(enum.StrEnum):
    """The two sides, which differ in one thing."""

    UNMANAGED = "unmanaged"
    MANAGED = "managed"


class MeasureKind(enum.StrEnum):
    """The four measures, and the cost of checkpoints that is shown beside the fourth."""

    RECOVERY_TIME = "recovery-time"
    """Seconds from the fault to useful work."""
    WORK_LOST = "work-lost"
    """Node-hours (GPU-hours where the plan counts GPUs) of compute destroyed by one interruption."""
    UTILISATION = "utilisation"
    """Share of allocated hours that ended in delivered work, 0 to 1."""
    OVERHEAD = "overhead"
    """Managed over unmanaged duration minus one, with no checkpoint in progress."""
    CHECKPOINT_COST = "checkpoint-cost"
    """Seconds that the workload stands still for one checkpoint; not one of the four."""


class FaultKind(enum.StrEnum):
    """What can be broken on purpose."""

    KILL = "kill"
    """The workload's main process gets SIGKILL."""
    KILL_TREE = "kill-tree"
    """Every process of the workload gets SIGKILL at once."""
    NODE_LOST = "node-lost"
    """All processes of the node and its network at once."""
    OUT_OF_MEMORY = "out-of-memory"
    HANG = "hang"
    """SIGSTOP; nobody is told; found by a missing heartbeat."""
    DISK_FULL = "disk-full"
    AGENT_KILLED = "agent-killed"
    PREEMPTION = "preemption"
    """SIGTERM, and SIGKILL after the grace time."""
    TIME_LIMIT = "time-limit"


class EventKind(enum.StrEnum):
    """What happens in a run, in the words that the measures are defined with."""

    LAUNCHED = "launched"
    """The command was given; `data` may hold the life's number."""
    READY = "ready"
    """The first progress signal of a life, or the ready probe passed."""
    PROGRESS = "progress"
    """`value`: the workload's own counter."""
    RECOVERABLE = "recoverable"
    """A point that survives: `value` is the counter it holds; `data.source` is ``own`` or ``perdure``."""
    CHECKPOINT_BEGUN = "checkpoint-begun"
    CHECKPOINT_DONE = "checkpoint-done"
    """`data`: id, stopped_s, logical_bytes, stored_bytes, new_bytes."""
    FAULT_PLANNED = "fault-planned"
    """`data`: kind, and the counter or time it was planned for."""
    FAULT_INJECTED = "fault-injected"
    DETECTED = "detected"
    """Whoever restarts the workload knows that it is down."""
    RESTARTED = "restarted"
    """The scheduler or harness gave the command again; `data.how` is ``start`` or ``restore``."""
    RESTORED = "restored"
    """The engine says so."""
    USEFUL = "useful"
    """The first progress signal after a fault: recovery ends here on both sides. What is computed again counts as work lost."""
    ENDED = "ended"
    """`data`: exit_status, completed."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a run."""

    at_s: float
    kind: EventKind
    value: float | None = None
    data: dict[str, Any] = {}


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run took place, as read on that host."""

    host: str
    boot_id: str
    kernel: str
    cpu_model: str
    cores: int
    memory_bytes: int
    perdure_version: str
    criu_version: str | None = None
    gpus: tuple[str, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    gpu_findings: tuple[str, ...] = ()
    """What `perdure doctor --gpu` warned of, each as its code and the thing it is about."""
    versions: dict[str, str] = {}
    """Versions that the plan asks to be recorded, by name."""
    clock: str = "CLOCK_MONOTONIC"
    clock_offset_s: float = 0.0
    """Measured offset of this host's clock to the harness's, 0 on one host."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one arm, as it was. Never changed; what excludes it is said, not done."""

    id: str
    arm: Arm
    pair: int
    """Runs of one pair meet the same faults at the same points of progress."""
    repetition: int
    node: str
    nodes: int
    gpus: int
    begun_unix_s: float
    environment: Environment
    command: tuple[str, ...]
    events: tuple[Event, ...]
    plan_hash: str
    warm_up_s: float = 0.0
    finished: bool = True
    """False: the harness itself was interrupted in it."""
    excluded: str | None = None
    """Why it does not count, or None."""
    purpose: Literal["baseline", "arms", "coldstart", "matrix"] = "arms"


class Threshold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number that one measure must reach, fixed before there are data.

    `at_most` is a bound on managed's value; `ratio_at_most` one on managed / unmanaged; at least one is given.
    For utilisation `at_least` and `gain_at_least` (managed − unmanaged) take their place.
    """

    reason: str
    at_most: float | None = None
    ratio_at_most: float | None = None
    at_least: float | None = None
    gain_at_least: float | None = None


class Outcome(enum.StrEnum):
    """What the data say of a threshold at the plan's level."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    UNDECIDED = "undecided"


class Point(msgspec.Struct, frozen=True):
    """One value of one run (or of one interruption in it), labelled."""

    run: str
    arm: Arm
    pair: int
    value: float
    parts: dict[str, float] = {}
    """Recovery time by ``detection scheduling restart warm_up``; work lost with the ``recoverable`` point and the point ``at_fault``."""
    basis: Literal["measured", "extrapolated"] = "measured"
    formula: str | None = None
    """Of an extrapolated value, with its inputs."""
    fault: FaultKind | None = None
    index: int = 0
    """Which interruption (or checkpoint) of its run, from 0: both arms of a pair meet the same ones."""


class Unmeasured(msgspec.Struct, frozen=True):
    """A run, or one interruption in it, to which a measure's definition cannot be applied: a reason in place of a number."""

    run: str
    arm: Arm
    pair: int
    code: str
    """``excluded unfinished no-fault not-interrupted never-recovered not-comparable no-progress no-pace no-end no-partner no-stop`` and
    the like."""
    reason: str
    fault: FaultKind | None = None


class MeasureResult(msgspec.Struct, frozen=True, kw_only=True):
    """One measure on both sides."""

    kind: MeasureKind
    unit: str
    points: tuple[Point, ...]
    medians: dict[Arm, float | None]
    intervals: dict[Arm, Interval | None]
    difference: float | None
    """Median of managed − unmanaged over pairs."""
    difference_interval: Interval | None
    ratio: float | None
    ratio_interval: Interval | None
    threshold: Threshold | None
    outcome: Outcome | None
    runs_needed: int | None
    """Pairs that would tell the threshold from noise with 80 % power, given the spread seen; None: it cannot be said."""
    runs_needed_by: str = ""
    """How `runs_needed` was extrapolated: the formula, and its inputs."""
    includes: str
    """What the value contains, in words."""
    worst: float | None = None
    """Of the managed points; None also when something never came back, so that no figure bounds it."""
    percentile_95: float | None = None
    """Of the managed points, by nearest rank: below 20 points it is the worst."""
    pairs: int = 0
    """Pairs that both sides have a value of: what `difference` and `ratio` stand on."""
    method: str = ""
    """How the intervals were made, in words."""
    unmeasured: tuple[Unmeasured, ...] = ()


class RtoStatement(msgspec.Struct, frozen=True, kw_only=True):
    """Recovery time as it is promised to others, for one arm and one kind of fault."""

    arm: Arm
    killed: FaultKind
    clock_started: str
    clock_stopped: str
    runs: int
    interruptions: int
    came_back: int
    median_s: float | None
    percentile_95_s: float | None
    """By nearest rank; None when fewer came back than it needs."""
    worst_s: float | None
    """None when one did not come back: it has no bound."""
    state: str
    """In which state it came back: from what, how far back, and whether the work was finished."""
    statement: str
    """All of it in a sentence."""


class Mistake(msgspec.Struct, frozen=True):
    """One thing that an evaluation may get wrong: clear or flagged, with the evidence."""

    code: str
    flagged: bool
    title: str
    evidence: str
