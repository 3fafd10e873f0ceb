"""Find the checkpoint to go on from, and bring everything but the processes back to it. Called by `start`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId, Manifest, Part
from perdure.store import lives, locks
from perdure.store.owners import Linux
from perdure.store.repository import Repository
from perdure.supervisor import lineage, log, place, saver
from perdure.supervisor.voice import Voice

_MEMORY = re.compile(r"pages-\d+\.img")


class Source(msgspec.Struct, frozen=True):
    """A checkpoint, taken out of the store; what has been is verified to the last byte."""

    manifest: Manifest
    folder: str
    """Where its files lie, absolute."""
    late: tuple[str, ...] = ()
    """Files that do not lie there: they are read, and verified, while the workload is brought back."""

    @property
    def id(self) -> CheckpointId:
        """Its name."""
        return self.manifest.id


def candidates(repository: Repository, name: str, origin: CheckpointId | None) -> tuple[CheckpointId, ...]:
    """Return what the workload `name` may go on from, best first; just `origin` when that is given. Empty: it starts anew.

    Raises `errors.WorkloadMissing` when there is no `origin`.
    """
    there = repository.checkpoints(name)
    if origin is None:
        return lineage.candidates({life.epoch: life for life in lives.every(repository, name)}, there)
    if origin not in there:
        raise errors.WorkloadMissing(f"there is no checkpoint {origin}", hint="perdure store ls shows which there are")
    return (origin,)


def head(repository: Repository, checkpoint: CheckpointId, voice: Voice) -> Manifest | None:
    """Return what `checkpoint` says of itself; None, after it was told, when that cannot be read."""
    try:
        return repository.head(checkpoint)
    except (errors.StoreCorrupt, errors.WorkloadMissing) as error:
        voice.warn_of(checkpoint.workload, error, about=str(checkpoint), words=f"{checkpoint} cannot be used: {error}")
        return None


def late(repository: Repository, manifest: Manifest) -> dict[str, int]:
    """Return the sizes in bytes of the files that need not lie in a folder for a restore: memory of a whole tree and of GPUs, at hand.

    A store in the network, also one in a folder, is read before anything is touched: it may be slow, or go away in the middle.
    """
    is_whole = any(file.name == f"{manifest.images_directory}/core-1.img" for file in manifest.files)
    if not is_whole or not place.is_on_this_machine(repository.backend.url):
        return {}
    return {
        file.name: file.size_bytes
        for file in manifest.files
        if file.part is Part.GPU or _MEMORY.fullmatch(file.name.removeprefix(f"{manifest.images_directory}/"))
    }


@dataclasses.dataclass
class Damage:
    """What was found to be damaged in the store, and what can otherwise never be gone on from: it grows."""

    checkpoints: set[CheckpointId] = dataclasses.field(default_factory=set)
    objects: set[str] = dataclasses.field(default_factory=set)
    """Keys: what lies in them is to be stored anew, or the next checkpoint inherits the damage."""
    outlived: dict[CheckpointId, errors.RestoreRefused] = dataclasses.field(default_factory=dict)
    """Why a whole checkpoint cannot be gone on from, best first: its output files went on without it."""

    untold: list[CheckpointId] = dataclasses.field(default_factory=list)
    """Those of them that nobody was told of."""

    def outlive(self, checkpoint: CheckpointId, error: errors.RestoreRefused) -> None:
        """Take down that `checkpoint` cannot be gone on from because of `error`."""
        self.outlived[checkpoint] = error
        self.untold.append(checkpoint)

    def add(self, checkpoint: CheckpointId, error: errors.StoreCorrupt) -> None:
        """Take down that `checkpoint` cannot be used because of `error`."""
        self.checkpoints.add(checkpoint)
        if error.object_key:
            self.objects.add(error.object_key)


def take_out(
    repository: Repository, manifest: Manifest, folder: Path, voice: Voice, *, besides: Collection[str], reached: Callable[[int], None]
) -> Source | None:
    """Write the checkpoint's files below `folder`, which is empty, but those `besides`; None, after it was told, when it is gone.

    `reached` is told, several times a second, how many bytes are done. Raises `errors.CheckpointDamaged`, and what `reached` raises.
    """
    names = [file.name for file in manifest.files if file.name not in besides]
    with locks.shared(repository, purpose=f"restore {manifest.id}", surroundings=Linux(), using=(manifest.id,)):
        try:
            return Source(repository.extract(manifest.id, folder, names=names, progress=reached), str(folder), tuple(besides))
        except errors.StoreCorrupt as error:
            raise damaged(manifest.id, error) from error
        except errors.WorkloadMissing as error:
            voice.warn_of(manifest.id.workload, error, about=str(manifest.id), words=f"{manifest.id} was removed meanwhile")
    return None


def damaged(checkpoint: CheckpointId, error: errors.StoreCorrupt) -> errors.CheckpointDamaged:
    """Return the error for a checkpoint of which `error` was found."""
    return errors.CheckpointDamaged(f"{checkpoint} is damaged: {error}", hint=error.hint, object_key=error.object_key)


def bring_log_back(path: Path, source: Source, *, epoch: int) -> int:
    """Bring the console's log at `path` to what it was at the checkpoint. Returns the bytes cut off, which are kept beside it."""
    wanted = source.manifest.log_bytes
    aside = path.with_name(f"{path.name}.perdure-tail-{epoch}")
    saved = Path(source.folder) / saver.LOG
    if _begins_with(path, saved):
        return log.cut(path, wanted, aside=aside)
    with contextlib.suppress(FileNotFoundError):
        os.replace(path, aside)
    shutil.copyfile(saved, path)
    shutil.copyfile(Path(source.folder) / saver.LOG_STREAMS, log.streams_path(path))
    for copied in (path, log.streams_path(path)):
        copied.chmod(0o600)
    return 0


def put_log_away(path: Path) -> None:
    """Make room for the log of a run that starts anew; the one before is kept, until the next."""
    for one in (path, log.streams_path(path)):
        with contextlib.suppress(FileNotFoundError):
            os.replace(one, one.with_name(one.name + ".previous"))


def _begins_with(path: Path, saved: Path) -> bool:
    """Tell whether the file at `path` begins with all that is in `saved`."""
    try:
        with open(path, "rb") as ours, open(saved, "rb") as theirs:
            if os.fstat(ours.fileno()).st_size < os.fstat(theirs.fileno()).st_size:
                return False
            while content := theirs.read(1 << 20):
                if ours.read(len(content)) != content:
                    return False
    except FileNotFoundError:
        return False
    return True
