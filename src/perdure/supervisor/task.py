"""What one `run` or `restore` is about: who asks for what, and what it is done with. Made by `start`, for all that begins a life."""

from __future__ import annotations

import dataclasses

from perdure.supervisor.early import Early
from perdure.supervisor.folders import Folders
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.resume import Damage
from perdure.supervisor.state import Database
from perdure.supervisor.voice import Voice
from perdure.supervisor.wanted import Setup, Wanted


@dataclasses.dataclass(frozen=True)
class Task:
    """One command, from its beginning to its end. `damage` grows."""

    name: str
    """The workload's."""
    wanted: Wanted
    setup: Setup
    voice: Voice
    reactor: Reactor
    early: Early
    database: Database
    in_background: bool
    damage: Damage = dataclasses.field(default_factory=Damage)

    @property
    def folders(self) -> Folders:
        """Where this machine keeps workloads."""
        return self.setup.folders
