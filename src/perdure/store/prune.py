"""Removing checkpoints by the rules of `retention`. Called by the saver after each commit, and by `perdure store prune`.

A checkpoint is gone when its manifest is; the packs that only it named are deleted by `gc`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import layout, lock_records, pins, retention
from perdure.store.owners import Surroundings
from perdure.store.repository import Repository
from perdure.store.retention import Candidate, Decision, Rules

ASKED_BY_NAME = 4096
"""So many packs are asked for one by one, some seconds of an object store's time; for more, all packs of the store are listed."""


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
    return _plan(repository, _candidates(repository, looked_at), rules, chosen, in_use=in_use, surroundings=surroundings)


def keep_last(repository: Repository, workload: str, count: int, *, surroundings: Surroundings) -> tuple[CheckpointId, ...]:
    """Remove all but the last `count` good checkpoints of `workload`, as `plan` and `apply` do, and return what was removed.

    Packs are looked at only where some checkpoint would go if none were damaged: a damaged one never makes another go.
    """
    rules = Rules(keep_last=count)
    candidates = _candidates(repository, [workload])
    if all(one.keep for one in retention.choose(candidates, rules, now_ns=surroundings.wall_ns(), pack_bytes={})):
        return ()
    planned = _plan(repository, candidates, rules, [workload], in_use=frozenset(), surroundings=surroundings)
    return apply(repository, planned, surroundings=surroundings)


def _plan(
    repository: Repository,
    candidates: Sequence[Candidate],
    rules: Rules,
    chosen: Collection[str],
    *,
    in_use: frozenset[CheckpointId],
    surroundings: Surroundings,
) -> Plan:
    sizes = _pack_bytes(repository, candidates)
    candidates = [_with_packs(one, sizes) for one in candidates]
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

    What was pinned or came into use since is left alone, and a damaged one that turns out to be whole.
    """
    removed = []
    for one in planned.removed:
        if one in pins.pinned(repository, one.workload) or one in lock_records.in_use(repository, surroundings):
            continue
        if one in planned.damaged and not _is_damaged(repository, one):
            continue
        removing(one)
        remove(repository, one)
        removed.append(one)
    return tuple(removed)


def remove(repository: Repository, checkpoint: CheckpointId) -> None:
    """Remove one checkpoint, and its pin. Nothing happens when it is not there."""
    repository.backend.delete(layout.manifest_key(checkpoint))
    repository.backend.delete(layout.pin_key(checkpoint))


def _candidates(repository: Repository, workloads: Iterable[str]) -> list[Candidate]:
    """Read the manifests of all checkpoints of `workloads`. Of their packs nothing is known yet: they must be looked at later.

    A checkpoint's packs are there before its manifest is. Were they listed first, one that is committed meanwhile would seem to lack them.
    """
    found = (_candidate(repository, one) for name in workloads for one in repository.checkpoints(name))
    return [one for one in found if one is not None]


def _candidate(repository: Repository, checkpoint: CheckpointId) -> Candidate | None:
    """Look at the manifest of one checkpoint. None: it has just been removed by somebody else."""
    try:
        head = repository.head(checkpoint)
        packs = repository.packs_of(checkpoint)
    except errors.StoreCorrupt as error:
        return Candidate(checkpoint, created_ns=0, damaged=str(error))
    except errors.StoreFormat:
        return Candidate(checkpoint, created_ns=0, foreign=True)
    except errors.WorkloadMissing:
        return None
    return Candidate(checkpoint, head.created_ns, packs, stood_still=bool(head.stood_still))


def _pack_bytes(repository: Repository, candidates: Iterable[Candidate]) -> dict[str, int]:
    """Return the sizes of those packs of `candidates` that are there. None is called missing because a listing is late."""
    named = frozenset[str]().union(*(one.packs for one in candidates))
    sizes = {}
    if len(named) > ASKED_BY_NAME:
        sizes = {info.key: info.size_bytes for info in repository.backend.list(layout.PACKS) if info.key in named}
    return sizes | repository.sizes(sorted(named - sizes.keys()))


def _with_packs(one: Candidate, pack_bytes: Mapping[str, int]) -> Candidate:
    missing = len(one.packs - pack_bytes.keys())
    return msgspec.structs.replace(one, damaged=f"{missing} of its packs are missing") if missing else one


def _is_damaged(repository: Repository, checkpoint: CheckpointId) -> bool:
    """Tell whether a checkpoint cannot be restored, by another look at it; false for one that is gone."""
    found = _candidate(repository, checkpoint)
    return found is not None and _with_packs(found, _pack_bytes(repository, [found])).damaged is not None
