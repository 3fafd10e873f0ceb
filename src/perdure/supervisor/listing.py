"""How the workloads of this machine are now, as far as it can be seen. Called by `perdure ps`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from perdure import errors
from perdure.supervisor import lock
from perdure.supervisor import place as places
from perdure.supervisor.folders import Folders
from perdure.supervisor.record import LIVE, LastCheckpoint, State, Workload


class Listed(msgspec.Struct, frozen=True):
    """One workload."""

    name: str
    state: State
    epoch: int
    pid: int | None
    checkpoints: int
    last_checkpoint: LastCheckpoint | None


def look(
    known: Iterable[Workload],
    folders: Folders,
    *,
    place: Callable[[Workload], places.Place],
    doubt: Callable[[Workload, errors.PerdureError], None],
) -> tuple[Listed, ...]:
    """Return what there is of each workload of `known`.

    Their stores are asked; where one does not answer, `doubt` is told and what was known last is returned.
    """
    return tuple(_look(one, folders, place, doubt) for one in known)


def state_of(one: Workload, folders: Folders) -> State:
    """Return the state of `one`: lost when it should have a supervisor and has none."""
    return State.LOST if one.state in LIVE and not lock.is_held(folders.lock(one.name)) else one.state


def _look(
    one: Workload,
    folders: Folders,
    where: Callable[[Workload], places.Place],
    doubt: Callable[[Workload, errors.PerdureError], None],
) -> Listed:
    seen = state_of(one, folders)
    count, last = one.checkpoints, one.last_checkpoint
    try:
        with places.opened(where(one)) as repository:
            there = repository.checkpoints(one.name)
            count = len(there)
            if not there:
                last = None
            elif last is None or last.id != there[-1]:
                last = LastCheckpoint.of(repository.head(there[-1]))
    except errors.StoreMissing:
        count, last = 0, None
    except (errors.StoreError, errors.InputError) as error:
        doubt(one, error)
    return Listed(one.name, seen, one.epoch, one.pid if seen in LIVE else None, count, last)
