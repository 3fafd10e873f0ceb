"""The process that stores a dumped checkpoint, apart from the supervisor: slow, polite, and killable at any time.

Started by `saving` as ``python -m perdure.supervisor.saver REQUEST``. It says what it does on stdout, one JSON document a line, and ends
with 0 once the checkpoint is durable. Nothing of a checkpoint is visible before, whenever this process is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint import images
from perdure.checkpoint.cuda.contract import HELD
from perdure.checkpoint.outputs import copying
from perdure.model.checkpoint import CheckpointId, Manifest, Part, PartSize, StoredFile
from perdure.store import gc, locks, prune
from perdure.store.owners import Linux
from perdure.store.repository import Repository
from perdure.supervisor import log, place, wire

LOG = "console/log"
LOG_STREAMS = "console/log.streams"

REQUEST = "request.json"
_LOG_ASIDE = "console.log"
_STREAMS_ASIDE = "console.log.streams"
LEAVES = (REQUEST, _LOG_ASIDE, _STREAMS_ASIDE)
"""What a run of the saver needs in the staging folder, and must not find there."""

_NICENESS = 10
"""A tenth of a busy processor's time. At 19, a seventieth, a checkpoint of a workload that leaves no processor idle would take for ever."""
_COLLECTED_EVERY = 10
"""In a store in the network, listing everything costs time and money: packs that nobody needs are deleted after this many checkpoints."""
_HELPER_S = 10.0
"""So long the helper that stored GPU memory may take to let go of the store: some tenths of a second, as a rule."""
_LOOK_S = 0.02
_EVERY_S = 0.2
"""Progress is told this often at most."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "riscv64": 30, "s390x": 282}
_IOPRIO_LEAST = 2 << 13 | 7
"""Behind all others but never idle: on a disk that is always busy that is never."""
_IOPRIO_WHO_PROCESS = 1
_OOM_SCORE = "500"
"""Under memory pressure this process goes before any workload: it can be done again."""
_PR_SET_PDEATHSIG = 1


class Item(msgspec.Struct, frozen=True):
    """One file that goes into the checkpoint."""

    name: str
    """In the checkpoint."""
    path: str
    """Where it lies now, absolute."""
    part: Part
    mode: int = 0o600
    is_placed: bool = False
    """Its content is in the store already: the file is the record of where (`store.placed`)."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be stored."""

    place: place.Place
    manifest: Manifest
    """Complete but for sizes, files and the durations of storing."""
    images: str
    """Folder of the process images, absolute."""
    items: tuple[Item, ...]
    """Everything but the log, the images too."""
    log: str
    """The console's log, absolute. It goes on growing: only the manifest's `log_bytes` are stored."""
    staging: str
    """A folder of our own, on the disk or in the memory that holds the images."""
    keep: int
    """Checkpoints of the workload to keep afterwards."""
    avoid: tuple[str, ...] = ()
    """Keys of objects that are known to be damaged."""
    parent: int
    is_waited_for: bool = False
    """The workload stands still, or has ended, until this is done."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """How far it is. `phase`: open, store, commit, prune."""

    phase: str
    done_bytes: int
    total_bytes: int


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """The checkpoint is durable."""

    manifest: Manifest


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It was not stored; or, after `Committed`, older ones could not be removed."""

    error: wire.ErrorDocument


class Pruned(msgspec.Struct, frozen=True, tag="pruned"):
    """Older checkpoints were looked through."""

    checkpoints: int
    """As many of the workload there are now."""


Said = Progress | Committed | Failed | Pruned


def main(arguments: list[str]) -> int:
    """Store what the request file `arguments[0]` says. Returns the exit status."""
    request = wire.decode(Path(arguments[0]).read_bytes(), Request)
    _end_with(request.parent)
    if not request.is_waited_for:
        _be_polite()
    try:
        _store(request)
    except errors.PerdureError as error:
        _say(Failed(wire.document(error)))
        return error.exit_status
    except OSError as error:
        _say(Failed(wire.document(errors.CheckpointFailed(f"cannot read what was dumped: {error}"))))
        return 20
    return 0


def _store(request: Request) -> None:
    report = _Report(sum(os.stat(item.path).st_size for item in request.items) + request.manifest.log_bytes)
    report.tell("open", 0)
    with place.opened(request.place) as repository:
        previous = _previous(repository, request.manifest.id)
        using = () if previous is None else (previous.id,)
        try:
            with locks.shared(repository, purpose=f"checkpoint {request.manifest.id}", surroundings=Linux(), using=using) as lock:
                committed = _write(request, repository, previous, lock, report)
        except errors.StoreFull:
            # What was written of it is of no use, and may be what the next one lacks.
            with contextlib.suppress(errors.StoreError):
                gc.collect(repository, surroundings=Linux(), wait_s=0.0)
            raise
        _say(Committed(committed))
        _take_over([Path(item.path) for item in request.items if item.is_placed])
        report.tell("prune", report.total_bytes)
        _prune(repository, request)


def _write(request: Request, repository: Repository, previous: Manifest | None, lock: locks.Lock, report: _Report) -> Manifest:
    began_s = time.monotonic()
    runs = images.runs_of(Path(request.images))
    with repository.writer(previous=previous, progress=report.store, avoid=request.avoid) as writer:
        for item in (*request.items, *_log_items(request)):
            if item.is_placed:
                writer.add_placed(item.name, repository.placements.decode(Path(item.path).read_bytes()), part=item.part, mode=item.mode)
                continue
            of_memory = runs.get(os.path.basename(item.name)) if item.part is Part.MEMORY else None
            writer.add(item.name, Path(item.path), part=item.part, runs=of_memory, mode=item.mode)
        stored_s = time.monotonic() - began_s
        report.tell("commit", report.total_bytes)

        def describe(sizes: tuple[PartSize, ...], files: tuple[StoredFile, ...]) -> Manifest:
            durations = request.manifest.durations_s | {"store": stored_s, "commit": time.monotonic() - began_s - stored_s}
            return msgspec.structs.replace(request.manifest, sizes=sizes, files=files, durations_s=durations)

        return writer.commit(describe, require=lock.require)


def _take_over(records: list[Path]) -> None:
    """Say that what was stored before belongs to a checkpoint now, and wait until the helper has let go of the store.

    Its lock would keep the checkpoint before from being pruned.
    """
    for path in records:
        path.unlink(missing_ok=True)
    end_s = time.monotonic() + _HELPER_S
    while any((path.parent / HELD).exists() for path in records) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)


def _log_items(request: Request) -> Iterator[Item]:
    """Set the log aside as it was at the freeze: what is stored must not change meanwhile."""
    log_bytes = request.manifest.log_bytes
    aside = Path(request.staging) / _LOG_ASIDE
    with open(request.log, "rb") as source, open(aside, "xb", opener=_private) as target:
        if os.fstat(source.fileno()).st_size < log_bytes:
            raise errors.CheckpointFailed(f"{request.log} is shorter than it was when the checkpoint was made")
        copying.copy(source.fileno(), target.fileno(), log_bytes)
    yield Item(LOG, str(aside), Part.FILES)
    told = log.encode(log.stretches(Path(request.log), log_bytes))
    streams = Path(request.staging) / _STREAMS_ASIDE
    with open(streams, "xb", opener=_private) as target:
        target.write(told)
    yield Item(LOG_STREAMS, str(streams), Part.FILES)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _prune(repository: Repository, request: Request) -> None:
    """Remove checkpoints that are not to be kept, and what only they needed. Somebody else at work in the store is not waited for."""
    name, surroundings = request.manifest.id.workload, Linux()
    removed = prune.keep_last(repository, name, request.keep, surroundings=surroundings)
    every = 1 if request.place.is_here else _COLLECTED_EVERY
    if removed and request.manifest.id.sequence % every == 0:
        with contextlib.suppress(errors.StoreLocked):
            gc.collect(repository, surroundings=surroundings, wait_s=0.0)
    _say(Pruned(len(repository.checkpoints(name))))


def _previous(repository: Repository, checkpoint: CheckpointId) -> Manifest | None:
    """Return the workload's newest checkpoint that can be read: what this one most likely resembles."""
    for older in reversed(repository.checkpoints(checkpoint.workload)):
        if older < checkpoint:
            try:
                return repository.head(older)
            except (errors.StoreCorrupt, errors.StoreFormat, errors.WorkloadMissing):
                continue
    return None


class _Report:
    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._last_s = 0.0

    def store(self, done_bytes: int) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= _EVERY_S:
            self._last_s = now_s
            self.tell("store", done_bytes)

    def tell(self, phase: str, done_bytes: int) -> None:
        _say(Progress(phase, done_bytes, self.total_bytes))


def _say(said: Said) -> None:
    content = wire.encode(said) + b"\n"
    while content:
        content = content[os.write(1, content) :]


def _be_polite() -> None:
    """Take little of what others want, too."""
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None, use_errno=True).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_LEAST)


def _end_with(parent: int) -> None:
    """End with the supervisor, and before anybody else where memory runs out; leave none of it behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # memory of the workload must not end up in a core file
    Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, "ascii")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
