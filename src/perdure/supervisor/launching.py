"""The beginning of a life that is not brought back: a workload is started, or taken over. Called by `beginning`; see `restoring`.

Everything here works on one life and decides nothing; where something fails, nothing of the workload runs.
"""

from __future__ import annotations

import os
import stat

from perdure.base.proc import process
from perdure.checkpoint import adopt
from perdure.checkpoint import launch as launcher
from perdure.checkpoint.criu.locate import Init
from perdure.supervisor import engine, environment
from perdure.supervisor.life import Life


def launch(
    life: Life, argv: tuple[str, ...], variables: dict[str, str], init: Init, streams: tuple[int, int, int], *, is_terminal: bool
) -> None:
    """Start the workload with `streams` as its descriptors 0, 1 and 2. Raises what `launch.launch` does."""
    give(life, streams)
    spec = launcher.LaunchSpec(
        argv=argv,
        environment=variables | {environment.EPOCH_FILE: str(life.epoch_file), environment.WORKLOAD: life.name},
        working_directory=life.record.working_directory,
        init=launcher.install_init(init, life.folders.state / engine.INITS),
        stdin=streams[0],
        stdout=streams[1],
        stderr=streams[2],
        terminal=is_terminal,
        first_pid=launcher.first_pid(life.name),
        umask=_umask() if life.umask is None else life.umask,
        limits=life.limits,
        owner=life.owner,
        folder=str(life.epoch_file.parent),
    )
    life.tree = launcher.launch(spec)
    life.reopened.watch(life.tree.pid)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def give(life: Life, streams: tuple[int, int, int]) -> None:
    """Make pipes and terminals among `streams`, which we made, the owner's: programs open /dev/stdout and /dev/tty anew."""
    if life.owner is None:
        return
    for descriptor in streams:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.fchown(descriptor, life.owner.uid, life.owner.gid)
        elif os.isatty(descriptor):
            os.fchown(descriptor, life.owner.uid, -1)  # the group is that of terminals


def take_over(life: Life, pid: int) -> None:
    """Keep the process `pid`, which runs already, with all it started. Raises what `adopt.find` does."""
    life.tree = adopt.find(pid)
    life.own_namespace = process.status(pid).inner_pid == 1
