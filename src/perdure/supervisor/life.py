"""All that belongs to one life of one workload while its supervisor keeps it. Made by `start`, used by `keeper` and `checkpointing`."""

from __future__ import annotations

import dataclasses

import msgspec

from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Stream
from perdure.store.lives import HeldLife
from perdure.store.repository import Repository
from perdure.supervisor.folders import Folders
from perdure.supervisor.place import Place
from perdure.supervisor.record import Options, Workload
from perdure.supervisor.state import Database


@dataclasses.dataclass
class Life:
    """One life. `record` is replaced as it goes on; everything else stays."""

    folders: Folders
    database: Database
    record: Workload
    place: Place
    repository: Repository
    held: HeldLife
    tree: Tree
    streams: tuple[Stream, ...]
    criu: Criu
    staging: str | None
    """The setting: where images wait to be stored."""
    own_namespace: bool = True

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
        self.database.put(self.record)
