"""What the agent does in a user's own store: list, show, verify, pin, prune, delete. Called by `worker`, through `deeds.meet`."""

from __future__ import annotations

import contextlib

import msgspec

from perdure import errors
from perdure.agent import asked
from perdure.agent.checkpoints import choose
from perdure.agent.deeds import Deed, Document, meet
from perdure.model.checkpoint import CheckpointId, Manifest, check_name
from perdure.store import gc, lock_records, locks, pins, prune, verify
from perdure.store.owners import Linux
from perdure.store.repository import Repository
from perdure.store.retention import Rules
from perdure.supervisor import wire


@meet.register
def _list(what: asked.StoreList, deed: Deed) -> Document:
    try:
        with deed.repository() as repository:
            names = repository.workloads() if what.name is None else (check_name(what.name),)
            found = [_listed(repository, one) for name in names for one in repository.checkpoints(name)]
    except errors.StoreMissing:
        found = []
    if what.name is not None and not found:
        raise errors.WorkloadMissing(f"the store has no checkpoint of {what.name}", hint="perdure store ls lists what it has")
    return {"checkpoints": found}


def _listed(repository: Repository, checkpoint: CheckpointId) -> Document:
    listed: Document = {"id": str(checkpoint), "pinned": checkpoint in pins.pinned(repository, checkpoint.workload)}
    try:
        return listed | {"manifest": _plain(repository.head(checkpoint))}
    except (errors.StoreCorrupt, errors.StoreFormat) as error:
        return listed | {"error": msgspec.to_builtins(wire.document(error))}


def _plain(manifest: Manifest) -> Document:
    found: Document = msgspec.to_builtins(manifest)
    return found


@meet.register
def _show(what: asked.StoreShow, deed: Deed) -> Document:
    with deed.repository() as repository:
        chosen = choose(repository, what.checkpoint)
        return _listed(repository, chosen) | {"packs": len(repository.packs_of(chosen))}


@meet.register
def _verify(_what: asked.StoreVerify, deed: Deed) -> Document:
    with deed.repository() as repository, locks.shared(repository, purpose="verify", surroundings=Linux()):
        result = verify.verify(repository, threads=1, found=lambda _damage: None, progress=lambda _how_far: None)
        return {"result": msgspec.to_builtins(result), "workloads": list(repository.workloads())}


@meet.register
def _pin(what: asked.StorePin, deed: Deed) -> Document:
    with deed.repository() as repository:
        chosen = choose(repository, what.checkpoint)
        if what.unpin:
            pins.unpin(repository, chosen)
        else:
            pins.pin(repository, chosen, note=what.note, surroundings=Linux())
    return {"id": str(chosen), "pinned": not what.unpin}


@meet.register
def _prune(what: asked.StorePrune, deed: Deed) -> Document:
    rules = Rules(what.keep_last, what.keep_for_s, what.max_bytes, what.damaged)
    if rules == Rules():
        raise errors.UsageError("prune needs a rule", hint="give --keep-last, --keep-for, --max-bytes or --damaged")
    surroundings = Linux()
    names = tuple(check_name(name) for name in what.names) or None
    with deed.repository() as repository:
        planned = prune.plan(repository, rules, workloads=names, surroundings=surroundings)
        removed = () if what.dry_run else prune.apply(repository, planned, surroundings=surroundings)
        _collect(repository, removed)
    return {"plan": msgspec.to_builtins(planned), "removed": [str(one) for one in removed]}


@meet.register
def _delete(what: asked.StoreDelete, deed: Deed) -> Document:
    chosen = CheckpointId.parse(what.checkpoint)
    with deed.repository() as repository:
        repository.head(chosen)
        if chosen in lock_records.in_use(repository, Linux()):
            raise errors.StoreLocked(f"{chosen} is in use", hint="try again later")
        prune.remove(repository, chosen)
        _collect(repository, (chosen,))
    return {"id": str(chosen)}


def _collect(repository: Repository, removed: tuple[CheckpointId, ...]) -> None:
    """Free what only those needed; when somebody is at work in the store, the next collection does."""
    if removed:
        with contextlib.suppress(errors.StoreLocked):
            gc.collect(repository, surroundings=Linux(), wait_s=0.0)
