"""Frozen records of the engine: a workload, its lives, its checkpoints. Everything that `checkpoint`, `store` and `supervisor` hand
to each other, and what a manifest says.

Sizes are bytes, durations seconds, times nanoseconds of UTC since 1970 (`_ns`). Each PID says whether it is the host's or the one
inside the workload's PID namespace. Text from the workload (paths, command names) is untrusted. None means *not known* or *does not apply*.
"""

from __future__ import annotations

import enum
import re
from typing import Literal

import msgspec

from perdure import errors

BLOCK_BYTES = 4096
"""Unit of storage and of comparing: the page of x86-64 and of most arm64 kernels. Part of the store's format."""

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
"""What a workload may be called: it becomes part of object keys and file names."""


def check_name(name: str) -> str:
    """Return `name`, a workload's name. Raises `errors.UsageError` when it does not match `NAME`."""
    if not NAME.fullmatch(name):
        raise errors.UsageError(
            f"{name!r} cannot be a workload's name", hint="use 1 to 64 letters, digits, dots, dashes and underscores, as in train-7b"
        )
    return name


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """Names one checkpoint: `NAME@EPOCH.SEQUENCE`. Unique, because an epoch belongs to one life and only that life counts `sequence`."""

    workload: str
    epoch: int
    sequence: int

    def __str__(self) -> str:
        """Return the form people and programs see, such as ``train-7b@3.12``."""
        return f"{self.workload}@{self.epoch}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> CheckpointId:
        """Read ``NAME@EPOCH.SEQUENCE``. Raises `errors.UsageError`."""
        found = re.fullmatch(rf"({NAME.pattern})@([1-9][0-9]{{0,8}})\.([1-9][0-9]{{0,8}})", text)
        if not found:
            raise errors.UsageError(f"{text!r} is not a checkpoint", hint="checkpoints are called NAME@EPOCH.NUMBER; see perdure store ls")
        return cls(found[1], int(found[2]), int(found[3]))


class Part(enum.StrEnum):
    """What a stored file is part of."""

    MEMORY = "memory"
    """Pages of processes and of their shared memory."""
    GPU = "gpu"
    """Memory of devices."""
    IMAGES = "images"
    """The rest of the process images."""
    FILES = "files"
    """Output files, files in /dev/shm and /tmp that go along, the console's log."""


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`blocks` consecutive blocks of a file that belong at consecutive addresses of a space.

    The space names an address space that the checkpoint before may have had too (``mm:17`` of process 17, ``shm:5``, ``file:/path``);
    `address` is in bytes and a multiple of `BLOCK_BYTES`. Runs follow each other in the order of the file and cover it.
    """

    space: str
    address: int
    blocks: int


class PartSize(msgspec.Struct, frozen=True):
    """Bytes of one part of a checkpoint."""

    part: Part
    logical_bytes: int
    """As they were in the workload."""
    stored_bytes: int
    """What the store holds for them, counting what other checkpoints share."""
    new_bytes: int
    """What this checkpoint added to the store."""


class Trigger(enum.StrEnum):
    """Why a checkpoint was made."""

    INTERVAL = "interval"
    REQUEST = "request"
    SIGNAL = "signal"
    END = "end"
    """The end of the allotted time is near."""
    STOP = "stop"
    """SIGTERM, or `checkpoint --stop`: the workload was given up after it."""


class ProcessFact(msgspec.Struct, frozen=True):
    """One process of the tree at the freeze. `pid` and `parent` are those inside the PID namespace."""

    pid: int
    parent: int
    host_pid: int
    command: str
    executable: str
    uid: int
    gid: int
    threads: int
    resident_bytes: int
    stopped: bool = False
    """It had been stopped by a signal before the freeze, and stays so after a restore."""


class Placed(msgspec.Struct, frozen=True):
    """A thread with other processors, or another class of input and output, than its supervisor; None: those are as the supervisor's."""

    thread: int
    """Its id inside the PID namespace."""
    processors: tuple[int, ...] | None = None
    """Ascending."""
    io_priority: int | None = None
    """Class and level, as ioprio_get(2) returns them."""


class Holder(msgspec.Struct, frozen=True):
    """A descriptor that has a file open. `pid` is the host's at the freeze."""

    pid: int
    fd: int
    offset: int
    flags: int
    """open(2) flags as the kernel shows them in /proc/PID/fdinfo."""


class OutputFile(msgspec.Struct, frozen=True):
    """A regular file that the tree had open for writing, or had mapped shared and writable, as it was at the freeze."""

    path: str
    size_bytes: int
    device: int
    inode: int
    mtime_ns: int
    mode: int
    uid: int
    gid: int
    holders: tuple[Holder, ...]
    stored_as: str | None = None
    """Name of its content in the checkpoint, when it was asked for (`--outputs`) or goes along by itself; None: only recorded."""
    head_digest: str | None = None
    """BLAKE2b-128 over the last 64 KiB before `size_bytes`, hex: tells a file that was appended to from one that was overwritten."""
    mapped: bool = False
    """It was mapped shared and writable: what is written there is in no descriptor's hands."""
    without: tuple[str, ...] = ()
    """Paths that did not exist then and must not on restore: a journal of a later time would be played back into a database."""


class MappedFile(msgspec.Struct, frozen=True):
    """A file that the tree maps or executes and that must be the same where it is restored."""

    path: str
    size_bytes: int
    mtime_ns: int
    build_id: str | None = None


class Carried(msgspec.Struct, frozen=True):
    """A file that goes along because images do not hold it: in /dev/shm or /tmp, open or mapped by the tree, or the init's program."""

    path: str
    stored_as: str
    size_bytes: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int


class Folder(msgspec.Struct, frozen=True):
    """A folder for temporary files, such as one below /tmp, on the way to what the tree reaches by path: it is made again if missing."""

    path: str
    mode: int
    uid: int
    gid: int


class NamedPipe(msgspec.Struct, frozen=True):
    """A named pipe for temporary use, such as one below /tmp, that the tree has open: it is made again if missing."""

    path: str
    mode: int
    uid: int
    gid: int


class Connection(msgspec.Struct, frozen=True):
    """An INET socket of the tree. Established ones are closed on restore unless asked to be kept, and are named to the user."""

    protocol: Literal["tcp", "tcp6", "udp", "udp6"]
    state: str
    local: str
    remote: str
    inode: int
    inside: bool
    """Both ends belong to the tree."""


class Stream(msgspec.Struct, frozen=True):
    """How one of the workload's standard streams was wired.

    `external` is CRIU's name of the thing whose other end is ours: ``pipe:[123]`` or ``tty[RDEV:DEV]`` (hexadecimal); None for a file.
    """

    fd: int
    kind: Literal["pipe", "tty", "file", "null"]
    external: str | None = None
    path: str | None = None


class HostFact(msgspec.Struct, frozen=True):
    """The machine a checkpoint was made on, as far as restoring elsewhere depends on it."""

    hostname: str
    machine: str
    """Architecture, such as x86_64."""
    kernel: str
    boot_id: str
    cpu_model: str
    cpu_flags: tuple[str, ...]
    page_bytes: int
    criu_version: str
    perdure_version: str
    pid_max: int
    mounts: tuple[tuple[str, str], ...] = ()
    """Mount point and type of every mount that files of the tree lie on."""


class StoredFile(msgspec.Struct, frozen=True):
    """A file in a checkpoint. Its content is found through the manifest's extents, which only the store reads."""

    name: str
    """Relative, with slashes: ``images/core-2.img``, ``files/3``. Never absolute, never with ``..``."""
    size_bytes: int
    part: Part
    mode: int = 0o600


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The ordinary user a workload runs as, and whom its checkpoints belong to."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """All supplementary groups, ascending."""


class GpuFact(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the machine a checkpoint was made on."""

    uuid: str
    """``GPU-…``: names it in `CudaFact`."""
    model: str
    memory_bytes: int
    """Of the whole device."""
    used_bytes: int | None
    """By the workload, 0 where it had nothing on it; None: it may have had, and the driver did not tell how much."""
    capability: str = ""
    """Compute capability, such as ``9.0``."""
    moved_s: float | msgspec.UnsetType = msgspec.UNSET
    """How long it took until all that the workload had on it was off it. Where the driver moves a process's memory by itself, that of all
    its devices together. Left out where nothing was moved off it, or nobody measured it, as in manifests from before there was this."""


class GpuRegion(msgspec.Struct, frozen=True, kw_only=True):
    """GPU memory of one process on one GPU, stored as a file of the checkpoint instead of among the process's pages."""

    uuid: str
    stored_as: str
    size_bytes: int


class CudaFact(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the tree that had CUDA loaded. `pid` is that inside the PID namespace, as in `ProcessFact`."""

    pid: int
    gpus: tuple[str, ...]
    """UUIDs of the devices it had memory on; where the driver did not tell, of those that it had open."""
    memory_bytes: int | None
    """On all devices together; None: the driver did not tell."""
    regions: tuple[GpuRegion, ...] = ()
    """Empty: its GPU memory is among its pages, where the driver put it."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of itself. It exists when its manifest exists. Authenticated by the store."""

    id: CheckpointId
    created_ns: int
    trigger: Trigger
    reason: str
    """The trigger in words, such as "every 10 minutes"."""
    command: tuple[str, ...]
    working_directory: str
    host: HostFact
    processes: tuple[ProcessFact, ...]
    streams: tuple[Stream, ...]
    outputs: tuple[OutputFile, ...] = ()
    carried: tuple[Carried, ...] = ()
    folders: tuple[Folder, ...] | msgspec.UnsetType = msgspec.UNSET
    """Outer ones before those in them. Left out where there are none, as in manifests from before there was such a list."""
    named_pipes: tuple[NamedPipe, ...] | msgspec.UnsetType = msgspec.UNSET
    """Left out where there are none, as in manifests from before there was such a list."""
    placed: tuple[Placed, ...] | msgspec.UnsetType = msgspec.UNSET
    """Left out where there are none, as in manifests from before there was such a list."""
    mapped: tuple[MappedFile, ...] = ()
    connections: tuple[Connection, ...] = ()
    terminals: tuple[int, ...] = ()
    """N of each /dev/pts/N that the tree has the master of: it has to get the same number again."""
    epoch_file: str | None = None
    log_bytes: int = 0
    """Length of the console's log at the freeze: what the workload had written by then."""
    own_pid_namespace: bool = True
    tcp: Literal["close", "keep"] = "close"
    owner: Owner | None = None
    """Who it ran as; None: root, as the supervisor itself."""
    gpus: tuple[GpuFact, ...] = ()
    """Every GPU that the driver showed, since a restore has to map them all; empty: no process had CUDA loaded."""
    cuda_processes: tuple[CudaFact, ...] = ()
    gpu_driver: str | None = None
    """Version of the driver, such as ``580.65.06``; None: no process had CUDA loaded."""
    stood_still: bool | msgspec.UnsetType = msgspec.UNSET
    """No process of it ran since the checkpoint before, or since it was brought back: it waits for something, or hangs. Left out where it
    ran, as in manifests from before there was such a word."""
    images_directory: str = "images"
    durations_s: dict[str, float] = {}
    """By phase: ``freeze dump store upload commit``, with GPUs ``gpu-lock gpu-checkpoint gpu-restore``; ``stopped`` is how long the
    workload stood still."""
    sizes: tuple[PartSize, ...] = ()
    files: tuple[StoredFile, ...] = ()
    pinned: bool = False
    """Told by the store when it lists; not part of what is signed."""

    @property
    def gpu_bytes(self) -> int | None:
        """Bytes that were on GPUs, whichever part they are stored as; None: there were none, or the driver did not tell."""
        sizes = [process.memory_bytes for process in self.cuda_processes if process.memory_bytes is not None]
        return sum(sizes) if sizes and len(sizes) == len(self.cuda_processes) else None

    @property
    def logical_bytes(self) -> int:
        """Bytes of all parts as they were in the workload."""
        return sum(size.logical_bytes for size in self.sizes)

    @property
    def stored_bytes(self) -> int:
        """Bytes the store holds for this checkpoint, counting what it shares."""
        return sum(size.stored_bytes for size in self.sizes)

    @property
    def new_bytes(self) -> int:
        """Bytes this checkpoint added to the store."""
        return sum(size.new_bytes for size in self.sizes)


class LifeEnd(msgspec.Struct, frozen=True):
    """How a life ended. `completed` is true when the workload ended by itself, well or badly: then it is never resumed."""

    at_ns: int
    completed: bool
    status: int | None
    """Exit status of the workload, 128+n for a signal; None when it was lost or given up."""
    reason: str


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One start or restore of a workload, numbered by a growing epoch that the store hands out."""

    workload: str
    epoch: int
    started_ns: int
    restored_from: CheckpointId | None
    hostname: str
    boot_id: str
    supervisor_pid: int
    supervisor_start_ticks: int
    """Start time of the supervisor in clock ticks after boot: with `boot_id` it tells a recycled PID."""
    end: LifeEnd | None = None
