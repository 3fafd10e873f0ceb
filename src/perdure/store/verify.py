"""Verification: read every object of a store again, and say of each damage what it means. Called by `perdure store verify`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import layout
from perdure.store.backends.contract import ObjectInfo
from perdure.store.layout import Kind
from perdure.store.locks import Lock
from perdure.store.repository import Repository


class Damage(msgspec.Struct, frozen=True):
    """One object that is not as it should be."""

    key: str
    kind: Kind
    message: str
    lost: tuple[CheckpointId, ...]
    """Checkpoints that cannot be restored because of it."""
    remedy: str
    newer: bool = False
    """It is of a newer Perdure's format: not damaged, but nothing that this one can check, and never deleted."""


class Verified(msgspec.Struct, frozen=True):
    """The result of a verification."""

    objects: int
    size_bytes: int
    damages: tuple[Damage, ...]
    unknown: tuple[str, ...]
    """Objects that are none of ours. They are left alone, and never read."""
    lost: tuple[CheckpointId, ...]
    good: tuple[CheckpointId, ...]
    orphan_packs: int
    """Packs that no checkpoint needs: `gc` deletes them."""
    orphan_bytes: int

    def newest_good(self, workload: str) -> CheckpointId | None:
        """Return the newest checkpoint of `workload` that nothing is wrong with, or None."""
        return max((one for one in self.good if one.workload == workload), default=None)


class Progress(msgspec.Struct, frozen=True):
    """How far a verification is."""

    objects: int
    all_objects: int
    done_bytes: int
    all_bytes: int


def verify(
    repository: Repository,
    *,
    threads: int,
    found: Callable[[Damage], None] = lambda _damage: None,
    progress: Callable[[Progress], None] = lambda _progress: None,
) -> Verified:
    """Read every object, check all hashes and seals, and check that every pack that a manifest needs is there.

    Hold a shared lock meanwhile, so that nothing is deleted. `found` is told each damage as soon as it is seen, `progress` how far it is,
    both from the calling thread; `threads`, at least 1, bounds how many objects are read at once.
    """
    there = list(repository.backend.list(""))
    kinds = {info.key: kind for info in there if (kind := layout.kind_of(info.key)) is not None}
    known = [info for info in there if info.key in kinds]
    needs = _Needs(repository, known)
    damages = []
    for key, error in _check_all(repository, known, threads, progress):
        if not _has_moved_on(repository, key, error):
            damages.append(_damage(key, kinds[key], error, needs))
            found(damages[-1])
    for key in needs.missing({info.key for info in there}):
        damages.append(_of_pack(key, f"{key} is missing", needs))
        found(damages[-1])
    lost = frozenset(one for damage in damages for one in damage.lost)
    newer = {damage.key for damage in damages if damage.newer}
    orphans = [info for info in known if kinds[info.key] is Kind.PACK and info.key not in needs.by_pack and info.key not in newer]
    return Verified(
        objects=len(known),
        size_bytes=sum(info.size_bytes for info in known),
        damages=tuple(damages),
        unknown=tuple(info.key for info in there if info.key not in kinds),
        lost=tuple(sorted(lost)),
        good=tuple(sorted(one for one in needs.readable if one not in lost)),
        orphan_packs=len(orphans),
        orphan_bytes=sum(info.size_bytes for info in orphans),
    )


def drop_damaged(repository: Repository, damages: Iterable[Damage], *, lock: Lock) -> tuple[str, ...]:
    """Delete the packs among `damages` that are damaged still, and return their keys. Hold the exclusive `lock`.

    Each is read again: it may have been brought back from a copy since it was found. The checkpoints that need them are lost already;
    without the packs, new checkpoints store those blocks anew instead of sharing them.

    Raises `errors.StoreLocked` when the lock is lost.
    """
    removed = []
    for damage in damages:
        if damage.kind is Kind.PACK and not damage.newer and _is_damaged(repository, damage.key):
            lock.require()
            lock.delete(damage.key)
            removed.append(damage.key)
    return tuple(removed)


def _is_damaged(repository: Repository, key: str) -> bool:
    try:
        repository.check_object(key)
    except errors.StoreCorrupt:
        return True
    except (errors.StoreFormat, errors.ObjectMissing):
        return False
    return False


class _Needs:
    """Which checkpoints need which pack, as far as their manifests can be read."""

    def __init__(self, repository: Repository, known: Iterable[ObjectInfo]) -> None:
        self._repository = repository
        self.by_pack: dict[str, list[CheckpointId]] = {}
        self.readable: list[CheckpointId] = []
        for info in known:
            if layout.kind_of(info.key) is Kind.MANIFEST and (checkpoint := layout.checkpoint_of(info.key)) is not None:
                self._add(checkpoint)

    def _add(self, checkpoint: CheckpointId) -> None:
        try:
            packs = self._repository.packs_of(checkpoint)
        except (errors.StoreCorrupt, errors.StoreFormat, errors.WorkloadMissing):
            return  # the object itself is checked too, and tells
        self.readable.append(checkpoint)
        for pack in packs:
            self.by_pack.setdefault(pack, []).append(checkpoint)

    def of(self, key: str) -> tuple[CheckpointId, ...]:
        """Return the checkpoints that cannot be restored without the pack or manifest `key`."""
        if layout.kind_of(key) is Kind.MANIFEST:
            checkpoint = layout.checkpoint_of(key)
            return () if checkpoint is None else (checkpoint,)
        return tuple(sorted(self.by_pack.get(key, ())))

    def missing(self, there: set[str]) -> list[str]:
        """Return the packs that are needed and not there, asking for each again by its name: a listing may be late."""
        unlisted = [pack for pack in sorted(self.by_pack) if pack not in there]
        late = self._repository.sizes(unlisted)
        return [pack for pack in unlisted if pack not in late]


_AHEAD = 16
"""Objects handed to each thread ahead of those that are done: small ones take no time, and of a million only so many are in memory."""

_Fault = errors.StoreCorrupt | errors.StoreFormat | errors.ObjectMissing


def _check_all(
    repository: Repository, known: Sequence[ObjectInfo], threads: int, progress: Callable[[Progress], None]
) -> Iterable[tuple[str, _Fault]]:
    """Check all objects, from several threads; yield those that are not well."""

    def check(info: ObjectInfo) -> _Fault | None:
        try:
            repository.check_object(info.key)
        except (errors.StoreCorrupt, errors.StoreFormat, errors.ObjectMissing) as error:
            # Not the one that was raised: its traceback would keep the object's content in memory.
            return type(error)(str(error), hint=error.hint)
        return None

    all_bytes = sum(info.size_bytes for info in known)
    done_bytes = 0
    workers = max(1, min(threads, repository.backend.parallel))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        coming = iter(known)
        running = deque(pool.submit(check, info) for info in islice(coming, workers * _AHEAD))
        try:
            for number, info in enumerate(known, start=1):
                error = running.popleft().result()
                running.extend(pool.submit(check, following) for following in islice(coming, 1))
                done_bytes += info.size_bytes
                progress(Progress(number, len(known), done_bytes, all_bytes))
                if error is not None:
                    yield info.key, error
        finally:
            pool.shutdown(cancel_futures=True)


_PASSING = frozenset({Kind.LOCK, Kind.LEASE, Kind.PIN, Kind.MANIFEST})
"""What a store in use deletes or writes anew at any time."""


def _has_moved_on(repository: Repository, key: str, error: _Fault) -> bool:
    """Tell whether the object was deleted rightfully after it was listed."""
    return isinstance(error, errors.ObjectMissing) and layout.kind_of(key) in _PASSING and not repository.sizes([key])


_MEANING: Mapping[Kind, tuple[str, str]] = {
    Kind.CONFIG: ("the store cannot be opened by it", "bring it back from a copy of the store"),
    Kind.PIN: ("the checkpoint stays pinned all the same", "pin it again: perdure store pin"),
    Kind.LIFE: ("nothing is lost while its lease can be read, which says the same", "nothing needs to be done"),
    Kind.LEASE: ("nothing is lost", "nothing needs to be done: a life that goes on writes it anew"),
    Kind.END: (
        "nothing is lost while its lease can be read, which says the same",
        "nothing needs to be done; should both be damaged: perdure run --fresh, or perdure restore --from",
    ),
    Kind.LOCK: ("nothing is lost", "nothing needs to be done: it is removed after a minute of silence"),
}


def _damage(key: str, kind: Kind, error: _Fault, needs: _Needs) -> Damage:
    if isinstance(error, errors.StoreFormat):
        return Damage(key, kind, str(error), needs.of(key), error.hint, newer=True)
    if kind is Kind.PACK:
        return _of_pack(key, str(error), needs)
    if kind is Kind.MANIFEST:
        remedy = "bring it back from a copy of the store, or give that checkpoint up: perdure store prune --damaged"
        return Damage(key, kind, str(error), needs.of(key), remedy)
    meaning, remedy = _MEANING[kind]
    return Damage(key, kind, f"{error}; {meaning}", (), remedy)


def _of_pack(key: str, message: str, needs: _Needs) -> Damage:
    lost = needs.of(key)
    remedy = "bring it back from a copy of the store, or let new checkpoints do without it: perdure store verify --drop-damaged"
    if not lost:
        return Damage(key, Kind.PACK, f"{message}; no checkpoint needs it", (), "delete it: perdure store gc")
    return Damage(key, Kind.PACK, message, lost, remedy)
