"""What is remembered of a workload between commands: frozen records in, frozen records out. Called by `state` and all who ask it."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from perdure.checkpoint import machine
from perdure.model.checkpoint import CheckpointId, Manifest


class State(enum.StrEnum):
    """Where a workload is in its life."""

    STARTING = "starting"
    """Being launched or restored."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    """Running, with its GPU memory moved into the machine's: its calls of CUDA wait until it is resumed."""
    STOPPED = "stopped"
    """Ended by us; the next run continues from its newest checkpoint."""
    LOST = "lost"
    """Gone without a word: killed with its supervisor, or the machine went down; the next run continues."""
    COMPLETED = "completed"
    """Ended by itself with status 0; never resumed."""
    FAILED = "failed"
    """Ended by itself with another status, or by a signal that was not ours; never resumed."""


ENDED = frozenset({State.COMPLETED, State.FAILED})
"""States of a workload that ended by itself."""

LIVE = frozenset({State.STARTING, State.RUNNING, State.SUSPENDED})
"""States that need a supervisor: without one, the workload is lost."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a workload is kept: what `perdure run` was told, kept so that `perdure restore NAME` needs no more than a name."""

    every: float | Literal["auto", "never"] = "auto"
    """Seconds between two checkpoints."""
    mttf_s: float | None = None
    """Mean time to failure, as somebody said it."""
    rated_mttf_s: float | None = None
    """As the site's history has it, for this life's size; None: it does not say, or was not asked."""
    before_end: float | Literal["auto"] | None = None
    """Seconds before the end of the allotted time at which to save and stop."""
    keep: int = 3
    outputs: tuple[str, ...] = ()
    probe: str | None = None
    tcp: Literal["close", "keep"] = "close"
    grace_s: float = 600.0
    key_file: str | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A regular file that our own stdout or stderr leads to."""

    descriptor: int
    device: int
    inode: int
    start_bytes: int
    """Where in it the workload's output begins."""


class OnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint saved of one GPU."""

    uuid: str
    model: str
    used_bytes: int | None
    """None: the driver did not tell."""
    moved_s: float | None
    """Until all of it was off the GPU; None: nobody measured it."""


class LastCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The newest checkpoint in few words."""

    id: CheckpointId
    created_ns: int
    logical_bytes: int
    stored_bytes: int
    new_bytes: int
    stopped_s: float
    cost_s: float = 0.0
    """From the trigger until it was durable."""
    gpu_bytes: int | None = None
    """What of it was on GPUs, however it was saved; None: nothing, or the driver did not tell."""
    gpus: tuple[OnGpu, ...] = ()
    """Those that something was on."""

    @classmethod
    def of(cls, manifest: Manifest, *, cost_s: float = 0.0) -> LastCheckpoint:
        """Return what `manifest` says."""
        return cls(
            id=manifest.id,
            created_ns=manifest.created_ns,
            logical_bytes=manifest.logical_bytes,
            stored_bytes=manifest.stored_bytes,
            new_bytes=manifest.new_bytes,
            stopped_s=manifest.durations_s.get("stopped", 0.0),
            cost_s=cost_s,
            gpu_bytes=manifest.gpu_bytes,
            gpus=tuple(
                OnGpu(uuid=gpu.uuid, model=gpu.model, used_bytes=gpu.used_bytes, moved_s=gpu.moved_s or None)
                for gpu in manifest.gpus
                if gpu.used_bytes != 0
            ),
        )


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One workload as this machine knows it."""

    name: str
    command: tuple[str, ...]
    working_directory: str
    options: Options
    store: str
    """Address of the store, absolute."""
    created_ns: int
    changed_ns: int
    state: State
    epoch: int = 0
    pid: int | None = None
    """The host's PID of the tree's init."""
    start_ticks: int | None = None
    supervisor_pid: int | None = None
    supervisor_ticks: int | None = None
    boot_id: str = ""
    adopted: bool = False
    """It was running already when it was taken over: it does not end with its supervisor."""
    exit_status: int | None = None
    reason: str = ""
    targets: tuple[Target, ...] = ()
    """Where its output was passed on to, as far as those are files."""
    checkpoints: int = 0
    """As many as the store held when it was last asked."""
    damaged_objects: tuple[str, ...] = ()
    """Keys in the store of what was found to be damaged: no later checkpoint may lean on it."""
    last_checkpoint: LastCheckpoint | None = None


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Something begun that leaves things behind if it is cut off. Its row goes when it is over."""

    number: int
    workload: str
    kind: Literal["checkpoint", "restore"]
    began_ns: int
    staging: str | None = None
    pid: int | None = None
    """Root of the tree it works on, by the host."""
    start_ticks: int | None = None
    """When the root was started; without a root, when the supervisor was."""
    boot_id: str = ""
    state: machine.State = machine.State.FREEZING
    """How far it had come when that was last noted."""
