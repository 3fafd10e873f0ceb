"""Forget a workload. Called by `perdure rm`."""

from __future__ import annotations

import contextlib
import shutil

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import gc, prune
from perdure.store.owners import Linux
from perdure.supervisor import lock, place, repair
from perdure.supervisor.folders import Folders
from perdure.supervisor.state import Database
from perdure.supervisor.voice import Voice


def remove(name: str, database: Database, folders: Folders, where: place.Place | None) -> tuple[CheckpointId, ...]:
    """Forget the workload `name`, and remove its checkpoints from the store `where` (None: they stay). Returns those removed.

    What only they needed is deleted when nobody else is at work in the store; else the next collection does it.

    Raises `errors.WorkloadBusy` while it runs, and a store's errors; the workload is then still known.
    """
    removed: tuple[CheckpointId, ...] = ()
    folders.make(name)
    with lock.held(folders.lock(name), name):
        if where is not None:
            removed = _remove_checkpoints(name, where)
        repair.clear(name, database, Voice(quiet=True, as_json=False))
        database.forget(name)
        shutil.rmtree(folders.live(name), ignore_errors=True)
        # Last the lock, inside the folder: from then on somebody else may begin a workload of this name.
        shutil.rmtree(folders.workload(name), ignore_errors=True)
    return removed


def _remove_checkpoints(name: str, where: place.Place) -> tuple[CheckpointId, ...]:
    try:
        with place.opened(where) as repository:
            there = repository.checkpoints(name)
            for one in there:
                prune.remove(repository, one)
            if there:
                with contextlib.suppress(errors.StoreLocked):
                    gc.collect(repository, surroundings=Linux(), wait_s=0.0)
            return there
    except errors.StoreMissing:
        return ()
