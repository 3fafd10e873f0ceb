"""Garbage collection: deleting the packs that no manifest names. Called by `perdure store gc`.

Nothing is deleted unless every manifest could be read: one that cannot be may name any pack. It works alone in the store, under the
exclusive lock, and asks before each batch whether it still is; each deletion ends before the lock can have run out, where the place bounds
it. A crash anywhere leaves some garbage, which the next run deletes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import layout, locks
from perdure.store.backends.contract import ObjectInfo
from perdure.store.layout import Kind
from perdure.store.locks import Lock
from perdure.store.owners import Surroundings
from perdure.store.repository import Repository

BATCH = 128
"""Packs deleted between two looks at the lock and at the manifests: about 2 GiB, a second or two of an object store's time."""


class Collected(msgspec.Struct, frozen=True):
    """What a collection did, or would do."""

    removed_packs: int
    freed_bytes: int
    kept_packs: int
    kept_bytes: int
    missing_packs: int
    """Named by a manifest and not there: see `verify`."""


def collect(
    repository: Repository,
    *,
    surroundings: Surroundings,
    wait_s: float = locks.PATIENCE_S,
    waiting: locks.Waiting | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Collected:
    """Delete every pack that no manifest names, and temporary files of writers that died.

    Waits at most `wait_s` seconds for running checkpoints and restores. `progress` is told how many of how many packs are deleted.

    Raises `errors.StoreLocked`, also when the lock is lost half-way; `errors.StoreCorrupt` or `errors.StoreFormat` when a manifest cannot
    be read, which `object_key` names: nothing was deleted then. Also `errors.StoreCorrupt` when the lock was lost and a pack that was
    deleted is needed, which `object_key` names; `errors.StoreUnavailable` when the store deletes nothing for now.
    """
    with locks.exclusive(repository, purpose="gc", surroundings=surroundings, wait_s=wait_s, waiting=waiting) as lock:
        there, named = _survey(repository)
        garbage = [info for info in there if info.key not in named.packs]
        removed = _delete(repository, lock, named, garbage, progress)
        repository.backend.create()  # sweeps temporary files that nobody writes any more
    return _result(there, removed, named)


def survey(repository: Repository) -> Collected:
    """Return what `collect` would do, and delete nothing. Without a lock: packs of a checkpoint that is being written count as garbage.

    Raises as `collect`, but for locks.
    """
    there, named = _survey(repository)
    return _result(there, [info for info in there if info.key not in named.packs], named)


class _Named:
    """The packs that manifests name, and which manifests were read."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._read: set[str] = set()
        self.packs: set[str] = set()

    def read_new(self) -> None:
        """Read the manifests that were not there at the last call. Raises `errors.StoreCorrupt` and `errors.StoreFormat`."""
        for info in self._repository.backend.list(layout.WORKLOADS):
            if info.key not in self._read and layout.is_among_manifests(info.key):
                self.packs |= self._packs_of(info.key)
                self._read.add(info.key)

    def _packs_of(self, key: str) -> frozenset[str]:
        checkpoint = layout.checkpoint_of(key)
        if checkpoint is None:
            raise errors.StoreCorrupt(
                f"{key} lies among the manifests and is not one: no pack is deleted while it may name some",
                hint="find out whose it is, and remove it if it is nobody's",
                object_key=key,
            )
        try:
            return self._repository.packs_of(checkpoint)
        except errors.WorkloadMissing:
            return frozenset()  # removed a moment ago
        except errors.StoreCorrupt as error:
            raise _unreadable(checkpoint, key, error) from error


def _unreadable(checkpoint: CheckpointId, key: str, error: errors.StoreCorrupt) -> errors.StoreCorrupt:
    return errors.StoreCorrupt(
        f"the manifest of {checkpoint} cannot be read, so nobody knows which packs it needs, and none is deleted: {error}",
        hint=f"bring {key} back from a copy of the store, or give the checkpoint up: perdure store prune --damaged",
        object_key=error.object_key or key,
    )


def _survey(repository: Repository) -> tuple[list[ObjectInfo], _Named]:
    # Packs first: what is written from now on is not in the list, whatever becomes of the lock.
    there = [info for info in repository.backend.list(layout.PACKS) if layout.kind_of(info.key) is Kind.PACK]
    named = _Named(repository)
    named.read_new()
    return there, named


def _delete(
    repository: Repository, lock: Lock, named: _Named, garbage: Sequence[ObjectInfo], progress: Callable[[int, int], None]
) -> list[ObjectInfo]:
    removed: list[ObjectInfo] = []
    tried: set[str] = set()
    try:
        with ThreadPoolExecutor(max_workers=max(1, repository.backend.parallel)) as pool:
            for batch in _batches(garbage):
                # The lock says that nobody writes. Should a clock have lied to it, a manifest that came meanwhile still saves its packs.
                lock.require()
                named.read_new()
                chosen = [info for info in batch if info.key not in named.packs]
                tried.update(info.key for info in chosen)
                for info, _ in zip(chosen, pool.map(lock.delete, [info.key for info in chosen]), strict=True):
                    removed.append(info)
                    progress(len(removed), len(garbage))
                repository.forget_packs([info.key for info in chosen])
        if tried:
            lock.require()
    except errors.StoreLocked:
        _check_needed(repository, named, tried)
        raise
    return removed


def _check_needed(repository: Repository, named: _Named, tried: set[str]) -> None:
    """Look, after the lock was lost, whether a checkpoint of somebody who was let in needs a pack that was deleted all the same.

    Raises `errors.StoreCorrupt` when one does.
    """
    named.read_new()
    needed = sorted(tried & named.packs)
    there = repository.sizes(needed)
    lost = [key for key in needed if key not in there]
    if lost:
        count = "1 pack" if len(lost) == 1 else f"{len(lost)} packs"
        raise errors.StoreCorrupt(
            f"{count} that this collection deleted, while the store did not answer for longer than its lock lasts, came into use meanwhile",
            hint="see which checkpoints are lost: perdure store verify",
            object_key=lost[0],
        )


def _batches(garbage: Sequence[ObjectInfo]) -> Iterator[Sequence[ObjectInfo]]:
    for start in range(0, len(garbage), BATCH):
        yield garbage[start : start + BATCH]


def _result(there: Sequence[ObjectInfo], removed: Iterable[ObjectInfo], named: _Named) -> Collected:
    gone = {info.key for info in removed}
    kept = [info for info in there if info.key not in gone]
    return Collected(
        removed_packs=len(gone),
        freed_bytes=sum(info.size_bytes for info in there if info.key in gone),
        kept_packs=len(kept),
        kept_bytes=sum(info.size_bytes for info in kept),
        missing_packs=len(named.packs - {info.key for info in there}),
    )
