"""What `run` and `restore` are asked for, and what there is on this machine to do it with. Called by the command line and `start`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.checkpoint.criu import locate
from perdure.checkpoint.preflight import cpu
from perdure.model.checkpoint import CheckpointId, Owner
from perdure.supervisor import place, quantities
from perdure.supervisor.folders import Folders
from perdure.supervisor.line import Line
from perdure.supervisor.record import Options, Workload
from perdure.supervisor.scheduler import Scheduler


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    name: str | None
    command: tuple[str, ...]
    """Empty: what is known of the name."""
    working_directory: str
    environment: dict[str, str]
    options: Options | None
    """None: as it was kept before."""
    fresh: bool = False
    origin: CheckpointId | None = None
    """Go on from this checkpoint; None: from the best one."""
    must_resume: bool = False
    """It is an error when there is nothing to go on from."""
    adopt: int | None = None
    end_ns: int | None = None
    metrics: str | None = None
    """File for Prometheus' node exporter."""
    umask: int | None = None
    """What the command starts with; None: this process's."""
    limits: tuple[tuple[int, int, int], ...] = ()
    """The same for an owner's command: resource, soft and hard limit."""
    rewritten: tuple[str, ...] = ()
    """Files that a scheduler writes anew before each life, with the same content: their time says nothing."""
    owner: Owner | None = None
    """The ordinary user that the workload runs as, from whoever the kernel says is asking; None: as this process. Everything else here
    may then be that user's words."""
    line: Line | None = None
    """To the process that waits for the workload, where that is another one; None: whoever waits, waits for this process."""


class Setup(msgspec.Struct, frozen=True):
    """What there is on this machine."""

    folders: Folders
    place: Callable[[Workload | None], place.Place]
    criu: Callable[[], locate.Places]
    staging: str | None
    cpu_check: cpu.Check = "features"
    gpu_lock_s: float = quantities.LOCK_S
    """The setting: how long work on GPUs may take to come to rest."""
    rates: str | None = None
    """The setting: path of the file that says how often workloads of each size are interrupted."""
    scheduler: Scheduler | None = None
    """Who allots the time, and can put the job into its queue again; None: nobody, or nobody who can be asked."""
