"""GPU memory between devices and the packs of a store, without a file in between. Runs in the helper; called by `direct`.

What is stored belongs to no checkpoint yet: for each stretch a record of where it lies is left in the staging folder, and the saver
makes it part of the checkpoint. Until then a lock keeps garbage collection away: it is held as long as a record is there.

Everything that takes time and needs no GPU memory, such as opening the store and looking at the checkpoint before, is done before anybody
is locked (`prepare`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perdure import errors
from perdure.base import files
from perdure.checkpoint.cuda import stretches
from perdure.checkpoint.cuda.contract import HELD, Kept, Region, Request, Store, Trouble
from perdure.checkpoint.cuda.stretches import Api, Reading, Refused, Stretch
from perdure.model.checkpoint import CheckpointId, Manifest
from perdure.store import locks, opening
from perdure.store.locks import Lock
from perdure.store.owners import Linux
from perdure.store.repository import Repository
from perdure.store.streaming import Streams
from perdure.store.writer import Writer

ENDING = ".placed"
"""How the names of records end."""
_LOCK_WAIT_S = 10.0
_LOOK_S = 0.2
"""Between two looks whether the records are still there."""


class Vault:
    """The store that GPU memory is written into, for one checkpoint at a time. Everything happens in one thread of its own."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="vault")
        self._open: contextlib.ExitStack | None = None
        self._repository: Repository | None = None
        self._writer: Writer | None = None
        self._lock: Lock | None = None
        self._folder = Path()
        self._has_left = False
        """There are records in the folder, or were."""

    def prepare(self, store: Store, folder: str) -> None:
        """Open `store` for the checkpoint that it names, with records in `folder`. Raises `Refused`."""
        self._thread.submit(self._prepare, store, Path(folder)).result()

    def put(self, cuda: Api, request: Request, found: tuple[Stretch, ...]) -> tuple[Region, ...]:
        """Store what `found` holds; it is durable then. Raises `Refused`: nothing was stored, and nothing can be any more."""
        try:
            return self._thread.submit(self._put, cuda, request, found).result()
        except Refused:
            raise
        except Exception as error:  # the driver has handed it out: a fault of ours must leave the way into files open
            raise Refused(Trouble.STORE, f"a fault in Perdure: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Let go of the store."""
        self._thread.submit(self._close).result()

    def _prepare(self, store: Store, folder: Path) -> None:
        self._close()
        with contextlib.ExitStack() as stack, as_refusal():
            repository = stack.enter_context(_opened(store))
            previous = _previous(repository, store.checkpoint)
            using = () if previous is None else (previous.id,)
            purpose = f"checkpoint {store.checkpoint}"
            self._lock = stack.enter_context(
                locks.shared(repository, purpose=purpose, surroundings=Linux(), using=using, wait_s=_LOCK_WAIT_S)
            )
            writing = repository.writer(previous=previous, progress=lambda _: None, avoid=store.avoid)
            self._repository, self._writer, self._folder = repository, stack.enter_context(writing), folder
            self._has_left = False
            (folder / HELD).touch(mode=0o600)
            self._open = stack.pop_all()
        threading.Thread(target=self._watch, args=(self._open,), name="vault-watch", daemon=True).start()

    def _put(self, cuda: Api, request: Request, found: tuple[Stretch, ...]) -> tuple[Region, ...]:
        if self._repository is None or self._writer is None or self._lock is None:
            raise Refused(Trouble.STORE, "the store was given up")
        regions: list[Region] = []
        try:
            with as_refusal(), contextlib.ExitStack() as stack:
                # All devices are read ahead at the same time; what is done with it, once for all of them.
                readings = {one.uuid: stack.enter_context(Reading(cuda, one)) for one in found}
                placed = self._writer.place({f"{request.name}{one.uuid}": (readings[one.uuid], one.size_bytes) for one in found})
                self._lock.require()
                for one in found:
                    path = self._folder / f"{request.pid}-{one.uuid}{ENDING}"
                    files.write_bytes(path, self._repository.placements.encode(placed[f"{request.name}{one.uuid}"]))
                    self._has_left = True
                    took_s = readings[one.uuid].elapsed_s
                    regions.append(Region(uuid=one.uuid, path=str(path), size_bytes=one.size_bytes, kept=Kept.PLACED, elapsed_s=took_s))
                return tuple(regions)
        except BaseException:
            for region in regions:
                os.unlink(region.path)  # what is written into files instead must not be found twice
            self._close()
            raise

    def _close(self) -> None:
        held, self._open = self._open, None
        self._repository = self._writer = self._lock = None
        if held is not None:
            with contextlib.suppress(errors.PerdureError, OSError):
                held.close()
            with contextlib.suppress(OSError):
                (self._folder / HELD).unlink()

    def _watch(self, held: contextlib.ExitStack | None) -> None:
        """Let go of the store when the folder, or all that was left in it, is gone: the checkpoint was stored, or given up."""
        pause = threading.Event()
        while self._open is held:
            had_left = self._has_left
            try:
                is_left = any(name.endswith(ENDING) for name in os.listdir(self._folder))
            except OSError:
                break
            if had_left and not is_left:
                break
            pause.wait(_LOOK_S)
        self._thread.submit(lambda: self._close() if self._open is held else None)


def restore(cuda: Api, request: Request, found: tuple[Stretch, ...], onto: dict[str, Region]) -> None:
    """Fill the stretches `found` with what the store holds of the regions `onto`, by UUID. Raises `Refused`."""
    with as_refusal(), reading(request) as streams:
        stretches.each(found, lambda one: stretches.write(cuda, one, _parts(streams, onto[one.uuid])))


@contextlib.contextmanager
def reading(request: Request) -> Iterator[Streams]:
    """Open what holds the regions of `request`; a record, or a checkpoint, that cannot be used shows before anything is read."""
    store = request.store
    if store is None:
        raise Refused(Trouble.STORE, "nobody says which store holds GPU memory")
    with _opened(store) as repository:
        if all(region.kept is Kept.STORED for region in request.regions):
            using = (store.checkpoint,)
            with (
                locks.shared(repository, purpose=f"restore {store.checkpoint}", surroundings=Linux(), using=using),
                repository.stream(store.checkpoint) as streams,
            ):
                yield streams
            return
        opened = repository.placements
        placed = {region.path: opened.decode(Path(region.path).read_bytes()) for region in request.regions}
        with opened.stream(placed) as streams:
            yield streams


def _parts(streams: Streams, region: Region) -> Iterator[memoryview]:
    for parts in streams.read(region.path):
        yield from parts


@contextlib.contextmanager
def _opened(store: Store) -> Iterator[Repository]:
    with opening.opened(store.url, key_file=store.key_file, cache=store.cache, threads=store.threads) as repository:
        yield repository


def _previous(repository: Repository, checkpoint: CheckpointId) -> Manifest | None:
    """Return the newest checkpoint before `checkpoint` of its workload that can be read."""
    for older in reversed(repository.checkpoints(checkpoint.workload)):
        if older < checkpoint:
            with contextlib.suppress(errors.StoreCorrupt, errors.StoreFormat, errors.WorkloadMissing):
                return repository.head(older)
    return None


@contextlib.contextmanager
def as_refusal() -> Iterator[None]:
    """Raise what a store raises as `Refused`."""
    try:
        yield
    except errors.StoreCorrupt as error:
        raise Refused(Trouble.DAMAGED, str(error), object_key=error.object_key or "") from error
    except (errors.PerdureError, OSError, ValueError) as error:
        raise Refused(Trouble.STORE, f"the store cannot be used: {error}") from error
