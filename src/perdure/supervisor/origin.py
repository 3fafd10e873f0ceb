"""The checkpoint that a life goes on from: the best one that is whole, taken out of the store. Called by `start`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from perdure import errors
from perdure.checkpoint import serving
from perdure.model.checkpoint import CheckpointId, Manifest
from perdure.store import lives
from perdure.store.repository import Repository
from perdure.supervisor import naming, resume
from perdure.supervisor.record import ENDED
from perdure.supervisor.restoring import Restoring
from perdure.supervisor.task import Task


class Origin:
    """Finds in `repository` where the workload goes on from."""

    def __init__(self, task: Task, repository: Repository) -> None:
        self._task = task
        self._name = task.name
        self._wanted = task.wanted
        self._setup = task.setup
        self._database = task.database
        self._repository = repository
        self._voice = task.voice
        self._damage = task.damage

    @contextlib.contextmanager
    def taken_out(self) -> Iterator[Restoring | None]:
        """Yield the restore of the checkpoint to go on from, which is taken out of the store; None: the workload starts anew.

        A restore that has not brought the workload back by the end of the block is given up.
        """
        found = self._candidates()
        if not found:
            if self._wanted.must_resume:
                raise errors.WorkloadMissing(
                    f"{self._name} has no checkpoint to go on from", hint="perdure store ls shows all; give one with --from"
                )
            yield None
            return
        for checkpoint in found:
            if checkpoint in self._damage.checkpoints or checkpoint in self._damage.outlived:
                continue
            self._tell_outlived()
            manifest = resume.head(self._repository, checkpoint, self._voice)
            if manifest is None:
                self._damage.checkpoints.add(checkpoint)
                continue
            self._require_same(manifest)
            self._require_owner(manifest)
            late = resume.late(self._repository, manifest)
            folder = self._folder(manifest, late_bytes=sum(late.values()))
            with Restoring(manifest, folder, self._task) as restoring:
                besides = late if serving.fits(folder / manifest.images_directory) else ()
                try:
                    is_there = restoring.fetch(self._repository, besides=besides)
                except errors.CheckpointDamaged as error:
                    self._voice.warn_of(self._name, error, about=str(checkpoint), words=str(error))
                    self._damage.add(checkpoint, error)
                    continue
                if is_there:
                    yield restoring
                    return
                self._damage.checkpoints.add(checkpoint)
        for refused in self._damage.outlived.values():
            raise errors.RestoreRefused(str(refused), hint=refused.hint, findings=refused.findings)
        raise errors.StoreCorrupt(
            f"no checkpoint of {self._name} can be used",
            hint=f"see perdure store verify; start over with: perdure run --fresh --name {self._name}",
        )

    def _tell_outlived(self) -> None:
        """Say why an older checkpoint is tried."""
        while self._damage.untold:
            checkpoint = self._damage.untold.pop()
            error = self._damage.outlived[checkpoint]
            self._voice.warn_of(
                self._name, error, about=str(checkpoint), words=f"{checkpoint} cannot be restored: {error}; trying an older one"
            )

    def _candidates(self) -> tuple[CheckpointId, ...]:
        wanted, known = self._wanted, self._database.get(self._name)
        if wanted.fresh or wanted.adopt is not None:
            return ()
        if wanted.origin is None and known is not None and known.state in ENDED:
            newest = lives.latest(self._repository, self._name)
            if newest is None or newest.epoch <= known.epoch:
                # The store may not have been told: it was away when the workload ended.
                if wanted.must_resume:
                    raise errors.WorkloadMissing(
                        f"{self._name} {known.state.value} before ({known.reason}), and has no newer checkpoint to go on from",
                        hint=f"go on from one of before: perdure restore {self._name} --from ID (see perdure store ls); "
                        f"or start it over: perdure run --fresh --name {self._name} -- COMMAND",
                    )
                self._voice.say(f"{self._name} {known.state.value} before ({known.reason}): starting it anew")
                return ()
        return resume.candidates(self._repository, self._name, wanted.origin)

    def _require_same(self, manifest: Manifest) -> None:
        if self._wanted.command:
            naming.require_same(
                self._name, manifest.command, manifest.working_directory, self._wanted.command, self._wanted.working_directory
            )

    def _require_owner(self, manifest: Manifest) -> None:
        """A checkpoint is brought back as whom it was made of, and for nobody else."""
        asking = self._wanted.owner.uid if self._wanted.owner else None
        made_of = manifest.owner.uid if manifest.owner else None
        if asking != made_of:
            whose = "root" if made_of is None else f"user {made_of}"
            raise errors.RestoreRefused(f"{manifest.id} is {whose}'s", hint=f"it is brought back as {whose}, by a run of {whose}'s")

    def _folder(self, manifest: Manifest, *, late_bytes: int) -> Path:
        """Return the path of a new folder that has room for the files of `manifest`."""
        folders, setting = self._setup.folders, self._setup.staging
        chosen = folders.choose_staging(manifest.logical_bytes - late_bytes, setting)
        if late_bytes and not serving.fits(chosen / manifest.images_directory):
            return folders.choose_staging(manifest.logical_bytes, setting)
        return chosen
