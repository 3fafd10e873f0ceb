"""All that belongs to one life of one workload while its supervisor keeps it. Made by `start`, used by `keeper` and `checkpointing`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.preflight import cpu
from perdure.checkpoint.reopened import Reopened
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Owner, Stream
from perdure.store.lives import HeldLife
from perdure.store.repository import Repository
from perdure.supervisor.folders import Folders
from perdure.supervisor.gpus import Gpus
from perdure.supervisor.motion import Motion
from perdure.supervisor.place import Place
from perdure.supervisor.record import Operation, Options, Workload
from perdure.supervisor.state import Database
from perdure.supervisor.voice import Voice


@dataclasses.dataclass
class Life:
    """One life. `record` is replaced as it goes on; everything else stays."""

    folders: Folders
    database: Database
    record: Workload
    place: Place
    repository: Repository
    held: HeldLife
    epoch_file: Path
    """The file that the workload reads its epoch from: where it was first started, on whichever machine."""
    tree: Tree
    streams: tuple[Stream, ...]
    criu: Criu
    staging: str | None
    """The setting: where images wait to be stored."""
    voice: Voice
    cpu_check: cpu.Check = "features"
    """The setting: what of a checkpoint's processor has to be here."""
    own_namespace: bool = True
    owner: Owner | None = None
    """The ordinary user that the workload runs as; None: as this process. What that user chose is touched only `acting.as_owner`."""
    umask: int | None = None
    """What a command starts with; None: this process's."""
    limits: tuple[tuple[int, int, int], ...] = ()
    """The same: resource, soft and hard limit of an owner's command."""
    rewritten: tuple[str, ...] = ()
    """Files that a scheduler writes anew before each life, with the same content."""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The owner's environment, for what is started on the owner's behalf."""
    gpus: Gpus = dataclasses.field(default_factory=Gpus)
    """What it has on GPUs."""

    reopened: Reopened = dataclasses.field(default_factory=Reopened)
    """Which files it adds to without keeping them open."""

    motion: Motion = dataclasses.field(default_factory=Motion)
    """Whether it ran since it was last saved."""

    _said: bool = False

    @property
    def name(self) -> str:
        """The workload's name."""
        return self.record.name

    @property
    def options(self) -> Options:
        """How it is kept."""
        return self.record.options

    @property
    def epoch(self) -> int:
        """Number of this life."""
        return self.held.life.epoch

    def remember(self, **changes: object) -> None:
        """Change the workload's record, here and in the file of state."""
        self.record = msgspec.structs.replace(self.record, **changes)
        self._note(lambda: self.database.put(self.record))

    def begin(self, operation: Operation) -> Operation:
        """Note that `operation` begins; it is returned with its number."""
        noted = [operation]

        def write() -> None:
            noted.append(self.database.begin(operation))

        self._note(write)
        return noted[-1]

    def amend(self, operation: Operation) -> None:
        """Note what has become known of `operation`."""
        self._note(lambda: self.database.amend(operation))

    def end(self, operation: Operation) -> None:
        """Note that `operation` is over."""
        self._note(lambda: self.database.end(operation))

    def _note(self, write: Callable[[], None]) -> None:
        """Write to the file of state as far as it takes it: a full disk must not end a workload that runs."""
        try:
            write()
        except errors.OutputError as error:
            if not self._said:
                self.voice.warn_of(self.name, error, about=self.name, words=f"{error}; the workload goes on")
            self._said = True
        else:
            self._said = False
