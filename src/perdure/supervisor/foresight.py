"""What a restore would refuse, and warn of, without beginning one. Called by ``perdure check --restore``, root's and the agent's.

`restoring` asks the same of a checkpoint that is laid down; here it lies in the store, and little of it is read: the list of what was
included, and the copies of such files as others write to, since what would be done to these depends on what they hold now.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.outputs import listing
from perdure.checkpoint.preflight import restore as preflight
from perdure.checkpoint.preflight import writers
from perdure.checkpoint.preflight.restore import RestorePlan
from perdure.model.checkpoint import CheckpointId
from perdure.model.finding import Finding
from perdure.store.repository import Repository


def check(repository: Repository, chosen: CheckpointId, plan: RestorePlan) -> tuple[Finding, ...]:
    """Return what would prevent restoring `chosen` here, or make it other than expected; what is included is read from the checkpoint.

    Raises a store's errors, and `errors.OutputError` where there is no room for the copies of files that others write to.
    """
    manifest = repository.head(chosen)
    stored = {file.name for file in manifest.files}
    with tempfile.TemporaryDirectory(prefix="perdure-check-", dir=_disk(plan)) as folder:
        contents = Path(folder)

        def fetch(names: Collection[str]) -> None:
            wanted = [name for name in names if name in stored and not (contents / name).exists()]
            if wanted:
                repository.extract(chosen, contents, names=wanted, progress=lambda _done: None)

        fetch([listing.INDEX])
        plan = msgspec.structs.replace(plan, included=frozenset(entry.path for entry in listing.read(contents)))
        try:
            strangers = writers.check(manifest.outputs, contents, plan.owner, fetch=fetch)
        except OSError as error:
            raise errors.OutputError(f"cannot look at files of {chosen} in {folder}: {error.strerror}", hint="make room there") from error
    return (*preflight.check(manifest, plan), *strangers)


def _disk(plan: RestorePlan) -> str | None:
    """Return the folder to read files into: a disk, where there is one."""
    return next((folder for folder in (plan.staging, *reversed(plan.disks)) if folder and os.access(folder, os.W_OK | os.X_OK)), None)
