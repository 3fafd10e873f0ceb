"""Pins: checkpoints that somebody wants kept whatever the rules say. Called by `prune`, `stats` and the command line."""

from __future__ import annotations

import msgspec

from perdure import errors
from perdure.base import text
from perdure.model.checkpoint import CheckpointId
from perdure.store import documents, layout
from perdure.store.owners import Surroundings
from perdure.store.repository import Repository


class Pin(msgspec.Struct, frozen=True):
    """The object ``pins/EPOCH.SEQUENCE``. That it is there is what counts; what it says is for people."""

    at_ns: int
    host: str
    note: str


def pin(repository: Repository, checkpoint: CheckpointId, *, note: str, surroundings: Surroundings) -> None:
    """Keep `checkpoint` until it is unpinned. Pinning twice replaces the note.

    Raises `errors.WorkloadMissing` when there is no such checkpoint; `errors.StoreCorrupt` when its manifest is damaged.
    """
    key = layout.pin_key(checkpoint)
    # The pin comes first: a `prune` that runs now looks for it before each removal, and whoever looks after it has seen it remain.
    said = Pin(surroundings.wall_ns(), surroundings.owner("pin").host, text.visible(note))
    documents.write(repository, key, said, replace=True)
    try:
        repository.head(checkpoint)
    except (errors.WorkloadMissing, errors.StoreCorrupt):
        repository.backend.delete(key)
        raise


def unpin(repository: Repository, checkpoint: CheckpointId) -> None:
    """Let the rules decide on `checkpoint` again. Nothing happens when it is not pinned."""
    repository.backend.delete(layout.pin_key(checkpoint))


def pinned(repository: Repository, workload: str) -> frozenset[CheckpointId]:
    """Return the workload's pinned checkpoints, from keys alone: a damaged pin still pins."""
    found = (layout.checkpoint_of(info.key) for info in repository.backend.list(layout.pins(workload)))
    return frozenset(one for one in found if one is not None)
