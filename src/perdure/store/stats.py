"""What takes how much room in a store. Called by `perdure store stats`."""

from __future__ import annotations

from collections import Counter

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, CheckpointId, Part
from perdure.store import layout
from perdure.store.layout import Kind
from perdure.store.repository import Repository


class OfWorkload(msgspec.Struct, frozen=True):
    """One workload's share."""

    workload: str
    checkpoints: int
    logical_bytes: int
    """Of all its checkpoints, as they were in the workload."""
    logical_bytes_by_part: dict[Part, int]
    own_bytes: int
    """Of the packs that only this workload's checkpoints need: removing them all and collecting garbage frees this."""
    shared_bytes: int
    """Of the packs that others need too."""


class Stats(msgspec.Struct, frozen=True):
    """A store as a whole. Ratios are None where there is nothing to divide by."""

    workloads: tuple[OfWorkload, ...]
    checkpoints: int
    unreadable: tuple[CheckpointId, ...]
    """Checkpoints whose manifest cannot be read: not counted, and what only they need counts as orphaned."""
    logical_bytes: int
    needed_bytes: int
    """Of the packs that some checkpoint needs."""
    orphan_packs: int
    orphan_bytes: int
    """Of packs that none needs: a checkpoint being written, or garbage."""
    manifest_bytes: int
    other_bytes: int
    dedup_ratio: float | None
    """Bytes of all checkpoints as they were over the bytes of all blocks in the packs they need: what holes and sharing save."""
    compression_ratio: float | None
    """Bytes of those blocks over the bytes of those packs."""


def measure(repository: Repository) -> Stats:
    """Add up the whole store, from its listing and its manifests. Content is not read."""
    sizes: Counter[Kind | None] = Counter()
    packs: dict[str, int] = {}
    for info in repository.backend.list(""):
        kind = layout.kind_of(info.key)
        sizes[kind] += info.size_bytes
        if kind is Kind.PACK:
            packs[info.key] = info.size_bytes
    users: dict[str, set[str]] = {}
    blocks: dict[str, int] = {}
    heads: dict[str, list[Counter[Part]]] = {}
    unreadable = []
    for workload in repository.workloads():
        heads[workload] = []
        for checkpoint in repository.checkpoints(workload):
            try:
                parts = Counter({size.part: size.logical_bytes for size in repository.head(checkpoint).sizes})
                named = repository.pack_blocks_of(checkpoint)
            except (errors.StoreCorrupt, errors.StoreFormat):
                unreadable.append(checkpoint)
                continue
            except errors.WorkloadMissing:
                continue
            heads[workload].append(parts)
            blocks |= named
            for pack in named:
                users.setdefault(pack, set()).add(workload)
    workloads = tuple(_of(workload, parts, users, packs) for workload, parts in heads.items())
    plain_bytes = BLOCK_BYTES * sum(count for pack, count in blocks.items() if pack in packs)
    needed_bytes = sum(size for pack, size in packs.items() if pack in users)
    logical_bytes = sum(one.logical_bytes for one in workloads)
    return Stats(
        workloads=workloads,
        checkpoints=sum(one.checkpoints for one in workloads),
        unreadable=tuple(unreadable),
        logical_bytes=logical_bytes,
        needed_bytes=needed_bytes,
        orphan_packs=sum(pack not in users for pack in packs),
        orphan_bytes=sum(packs.values()) - needed_bytes,
        manifest_bytes=sizes[Kind.MANIFEST],
        other_bytes=sum(size for kind, size in sizes.items() if kind not in (Kind.PACK, Kind.MANIFEST)),
        dedup_ratio=logical_bytes / plain_bytes if plain_bytes else None,
        compression_ratio=plain_bytes / needed_bytes if needed_bytes else None,
    )


def _of(workload: str, checkpoints: list[Counter[Part]], users: dict[str, set[str]], packs: dict[str, int]) -> OfWorkload:
    parts: Counter[Part] = Counter()
    for one in checkpoints:
        parts.update(one)
    mine = {pack: names for pack, names in users.items() if workload in names}
    return OfWorkload(
        workload=workload,
        checkpoints=len(checkpoints),
        logical_bytes=parts.total(),
        logical_bytes_by_part=dict(parts),
        own_bytes=sum(packs.get(pack, 0) for pack, names in mine.items() if len(names) == 1),
        shared_bytes=sum(packs.get(pack, 0) for pack, names in mine.items() if len(names) > 1),
    )
