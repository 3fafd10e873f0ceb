"""The records that everything about GPUs shares: devices, CUDA processes, what the driver is asked, what it answers.

Used by the rest of this room, by `preflight` and by the supervisor. Nothing here knows CUDA: only `driver` imports its bindings, in a
process of its own, and speaks in these records. GPUs are named by UUID (``GPU-…``), never by index, which differs with the viewer.
"""

from __future__ import annotations

import enum

import msgspec

from perdure.model.checkpoint import CheckpointId

HELD = "held"
"""A file beside the records of GPU memory in a store, there as long as the helper holds the store's lock."""


class State(enum.StrEnum):
    """What the driver says of a process (CUprocessState of the CUDA driver API)."""

    RUNNING = "running"
    LOCKED = "locked"
    """Its calls of CUDA wait; its GPU memory is where it was."""
    CHECKPOINTED = "checkpointed"
    """Its GPU memory is in its own host memory, or was copied away; it holds no device."""
    FAILED = "failed"
    """The driver lost it: it cannot be brought back, only ended."""
    CHECKPOINTING = "checkpointing"
    """Its GPU memory is mapped for whoever copies it away, until the operation is completed."""
    RESTORING = "restoring"
    """Its GPU memory is mapped for whoever copies it back, until the operation is completed."""


class Operation(enum.StrEnum):
    """What the helper can be asked."""

    FACTS = "facts"
    """The driver and the devices."""
    STATE = "state"
    PREPARE = "prepare"
    """Get ready to store GPU memory in `Request.store`, before anybody is locked: it is opened, and what it holds is looked at."""
    LOCK = "lock"
    CHECKPOINT = "checkpoint"
    """Move GPU memory into the process's own memory; with `Request.folder` into files there, or into the store that was prepared."""
    RESTORE = "restore"
    """Move it back; with `Request.regions` from files, or out of a store."""
    UNLOCK = "unlock"


class Trouble(enum.StrEnum):
    """Why an operation did not succeed, as far as a caller decides on it."""

    TIMED_OUT = "timed-out"
    """Work on the GPU did not end within the lock's time (CUDA_ERROR_NOT_READY); the process runs on."""
    WRONG_STATE = "wrong-state"
    """The process is not in the state that the operation needs (CUDA_ERROR_ILLEGAL_STATE)."""
    INVALID = "invalid"
    """The driver does not take the arguments: the process has no CUDA, or the map lacks a GPU (CUDA_ERROR_INVALID_VALUE)."""
    NO_MEMORY = "no-memory"
    """Too little memory on the GPU or the host, or MIG (CUDA_ERROR_OUT_OF_MEMORY)."""
    UNSUPPORTED = "unsupported"
    """This driver or this GPU cannot do it (CUDA_ERROR_NOT_SUPPORTED), or the process uses what cannot be saved."""
    SYSTEM = "system"
    """A call of the operating system failed inside the driver (CUDA_ERROR_OPERATING_SYSTEM)."""
    NO_DRIVER = "no-driver"
    """There is no driver, or none that answers (CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_INITIALIZED, no libcuda)."""
    NO_BINDINGS = "no-bindings"
    """The extra `gpu` is not installed."""
    GONE = "gone"
    """The process is not there any more, or is another one now."""
    HUNG = "hung"
    """The driver did not answer in time; the helper was replaced."""
    FILES = "files"
    """GPU memory could not be written to or read from files."""
    STORE = "store"
    """GPU memory could not be written into the store, or read out of it."""
    DAMAGED = "damaged"
    """What the store holds of GPU memory is not what was written."""
    OTHER = "other"


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of this machine, whoever may see it."""

    uuid: str
    index: int
    """NVML's, for people."""
    model: str
    memory_bytes: int
    free_bytes: int
    capability: str
    """Compute capability, such as ``9.0``; empty: not told."""
    mig: bool = False
    """It is split into instances, which the driver cannot save."""
    minor: int | None = None
    """The number in the name of its device file, ``/dev/nvidia0``; None: not told."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has memory on a device, as NVML tells. `pid` is the host's."""

    uuid: str
    pid: int
    memory_bytes: int | None
    mps: bool = False
    """It goes through the multi-process service, with which it cannot be saved."""


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel driver with its libcuda."""

    version: str
    """Such as ``580.65.06``; empty: NVML did not tell."""
    cuda: str
    """Newest CUDA it speaks, such as ``13.4``."""
    has_checkpoint: bool
    """It can lock, checkpoint, restore and unlock (driver 570 and newer)."""
    has_remap: bool
    """It can restore onto other GPUs (driver 580 and newer)."""
    has_custom_storage: bool
    """It lets GPU memory be copied away by us, without the process's host memory (CUDA 13.4 and newer)."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver and NVML say of this machine."""

    driver: Driver
    devices: tuple[Device, ...]
    uses: tuple[Use, ...]


class CudaProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has CUDA loaded: a thread group's leader with libcuda mapped. The start time tells a recycled PID."""

    pid: int
    """The host's."""
    start_ticks: int
    inner_pid: int
    """Inside its PID namespace: names it in a manifest."""
    command: str


class HeldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of the NVIDIA driver that a process has open or mapped. After a checkpoint nobody may."""

    pid: int
    command: str
    path: str
    """Such as ``/dev/nvidia0``, ``/dev/nvidia-uvm``, ``/dev/nvidiactl``."""
    fd: int | None
    """None: it is mapped."""


class Kept(enum.StrEnum):
    """Where GPU memory that was handed out is."""

    FILE = "file"
    """In a file at `Region.path`."""
    PLACED = "placed"
    """In packs of a store, before there is a checkpoint: `Region.path` is the record of where (`store.placed`)."""
    STORED = "stored"
    """In the checkpoint that `Request.store` names, as `Region.path`."""


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """GPU memory of one process on one GPU. `uuid` is the GPU's at the checkpoint."""

    uuid: str
    path: str
    """Absolute, in a folder that only root may enter; of one that is `Kept.STORED`, its name in the checkpoint."""
    size_bytes: int
    kept: Kept = Kept.FILE
    elapsed_s: float = 0.0
    """Until all of it had been copied off the device; 0 where nobody measured it."""


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """The store that GPU memory goes into and comes out of, without a file in between. Holds no secret."""

    url: str
    key_file: str | None
    cache: str
    threads: int
    checkpoint: CheckpointId
    """That is being made, or brought back."""
    avoid: tuple[str, ...] = ()
    """Keys of objects that are known to be damaged."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that the helper is asked. `pid` and `start_ticks` name the process, 0 where there is none."""

    number: int
    operation: Operation
    pid: int = 0
    start_ticks: int = 0
    time_limit_ms: int = 0
    """Of a lock: at least 1, since the driver takes 0 for ever."""
    mapping: tuple[tuple[str, str], ...] = ()
    """Of a restore: old UUID and new UUID of every GPU; empty: the same ones."""
    folder: str | None = None
    """Of a checkpoint: where GPU memory is written, through the driver's custom storage; with a store, the records of where it lies."""
    name: str = ""
    """Of a checkpoint: how the names of what is stored begin, before the GPU's UUID. Empty: it goes into files."""
    store: Store | None = None
    """Of a preparation, and of a restore of what is in a store."""
    regions: tuple[Region, ...] = ()
    """Of a restore: what GPU memory is read from; empty: the process has it in its host memory."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why an operation did not succeed."""

    trouble: Trouble
    message: str
    """For a person, with the driver's own name of the error."""
    number: int | None = None
    """The driver's CUresult."""
    object_key: str = ""
    """Of what is damaged in a store: its key."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a `Request` of the same number. `problem` None: it succeeded."""

    number: int
    moved_bytes: int | None = None
    """Not None: it is under way, and GPU memory is being moved: so much by this helper in all. Its answer follows."""
    problem: Problem | None = None
    state: State | None = None
    """Of the process afterwards, where the driver tells."""
    facts: Facts | None = None
    regions: tuple[Region, ...] = ()
    """What a checkpoint wrote."""
    elapsed_s: float = 0.0
