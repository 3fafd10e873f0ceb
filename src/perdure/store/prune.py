"""Removing checkpoints by the rules of `retention`. Called by the saver after each commit, and by `perdure store prune`.

A checkpoint is gone when its manifest is; the packs that only it named are deleted by `gc`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import layout, lock_records, pins, retention
from perdure.store.owners import Surroundings
from perdure.store.repository import Repository
from perdure.store.retention import Candidate, Decision, Rules


class Plan(msgspec.Struct, frozen=True):
    """What the rules come to, before anything is removed."""

    decisions: tuple[Decision, ...]
    damaged: tuple[CheckpointId, ...]
    """Those that cannot be restored, kept or not."""
    kept_bytes: int
    """Bytes of the packs that the kept ones name: of all workloads when `max_bytes` was asked for, else of those decided on."""

    @property
    def removed(self) -> tuple[CheckpointId, ...]:
        """The checkpoints to remove."""
        return tuple(one.id for one in self.decisions if not one.keep)


def plan(
    repository: Repository,
    rules: Rules,
    *,
    workloads: Sequence[str] | None = None,
    in_use: frozenset[CheckpointId] = frozenset(),
    surroundings: Surroundings,
) -> Plan:
    """Decide on every checkpoint of `workloads` (None: of all) by `rules`; nothing is removed.

    `in_use` adds to what other processes say that they use. With `max_bytes` the packs of all workloads count, and checkpoints of
    `workloads` alone are removed to fit them.

    Raises `errors.UsageError` for a rule out of range.
    """
    retention.check(rules)
    chosen = repository.workloads() if workloads is None else tuple(workloads)
    looked_at = repository.workloads() if rules.max_bytes is not None else chosen
    sizes = {info.key: info.size_bytes for info in repository.backend.list(layout.PACKS)}
    found = (candidate(repository, one, sizes) for name in looked_at for one in repository.checkpoints(name))
    candidates = [one for one in found if one is not None]
    others = frozenset(one.id for one in candidates if one.id.workload not in chosen)
    decisions = retention.choose(
        candidates,
        rules,
        in_use=in_use | lock_records.in_use(repository, surroundings) | others,
        pinned=frozenset[CheckpointId]().union(*(pins.pinned(repository, name) for name in chosen)),
        now_ns=surroundings.wall_ns(),
        pack_bytes=sizes,
    )
    kept = {one.id for one in decisions if one.keep}
    return Plan(
        decisions=tuple(one for one in decisions if one.id not in others),
        damaged=tuple(one.id for one in candidates if one.damaged is not None and one.id not in others),
        kept_bytes=retention.kept_bytes((one for one in candidates if one.id in kept), sizes),
    )


def apply(
    repository: Repository,
    planned: Plan,
    *,
    surroundings: Surroundings,
    removing: Callable[[CheckpointId], None] = lambda _one: None,
) -> tuple[CheckpointId, ...]:
    """Remove what `planned` says, and return what was removed; `removing` is told before each.

    What was pinned or came into use since is left alone.
    """
    removed = []
    for one in planned.removed:
        if one in pins.pinned(repository, one.workload) or one in lock_records.in_use(repository, surroundings):
            continue
        removing(one)
        remove(repository, one)
        removed.append(one)
    return tuple(removed)


def remove(repository: Repository, checkpoint: CheckpointId) -> None:
    """Remove one checkpoint, and its pin. Nothing happens when it is not there."""
    repository.backend.delete(layout.manifest_key(checkpoint))
    repository.backend.delete(layout.pin_key(checkpoint))


def candidate(repository: Repository, checkpoint: CheckpointId, pack_bytes: Mapping[str, int]) -> Candidate | None:
    """Look at one checkpoint: whether it can be read, and whether its packs are there. None: it has just been removed by somebody else."""
    try:
        head = repository.head(checkpoint)
        packs = repository.packs_of(checkpoint)
    except errors.StoreCorrupt as error:
        return Candidate(checkpoint, created_ns=0, damaged=str(error))
    except errors.StoreFormat:
        return Candidate(checkpoint, created_ns=0, foreign=True)
    except errors.WorkloadMissing:
        return None
    missing = len(packs - pack_bytes.keys())
    damaged = f"{missing} of its packs are missing" if missing else None
    return Candidate(checkpoint, head.created_ns, packs, damaged=damaged, stood_still=bool(head.stood_still))
