"""Checkpoints as users name them. Called by `deeds` and `store_deeds`."""

from __future__ import annotations

from perdure import errors
from perdure.model.checkpoint import NAME, CheckpointId
from perdure.store.repository import Repository


def choose(repository: Repository, text: str) -> CheckpointId:
    """Return the checkpoint that `text` names: one, or a workload's newest. Raises `errors.WorkloadMissing`, `errors.UsageError`."""
    if not NAME.fullmatch(text):
        return CheckpointId.parse(text)
    there = repository.checkpoints(text)
    if not there:
        raise errors.WorkloadMissing(f"the store has no checkpoint of {text}", hint="perdure store ls lists what it has")
    return there[-1]
