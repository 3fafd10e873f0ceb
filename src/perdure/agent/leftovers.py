"""Clear away what seats left behind that were killed, also those of users who do not come back. Started by `server`, as a program.

A workload ends with its seat. What stays may be images of a checkpoint that was cut off, in memory or on a disk, and a record that says
it runs. Workloads with a seat are left alone: their lock is held.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from perdure import errors
from perdure.agent import site
from perdure.agent.audit import DEFAULT, Audit
from perdure.agent.site import Site
from perdure.model.checkpoint import Owner
from perdure.supervisor import lock, repair, state
from perdure.supervisor.folders import Folders
from perdure.supervisor.record import LIVE
from perdure.supervisor.voice import Voice


def clear(place: Site, audit: Audit) -> None:
    """Repair every user's workloads that have no seat any more. One that cannot be repaired is noted, and left to its next run."""
    for uid in _users(place):
        folders = place.folders_of(Owner(uid=uid, gid=uid, groups=()))
        try:
            _clear(uid, folders, audit)
        except (errors.PerdureError, OSError) as error:
            audit.note("repair", uid=uid, result=str(error))


def _users(place: Site) -> Iterator[int]:
    folder = place.folders.state / "users"
    if folder.is_dir():
        yield from sorted(int(one.name) for one in folder.iterdir() if one.name.isascii() and one.name.isdigit())


def _clear(uid: int, folders: Folders, audit: Audit) -> None:
    if not folders.database.exists():
        return
    with state.opened(folders.database) as database:
        for known in database.workloads():
            if known.state not in LIVE and not database.unfinished(known.name):
                continue
            with contextlib.suppress(errors.WorkloadBusy), lock.held(folders.lock(known.name), known.name):
                repair.repair(known.name, database, folders, Voice(quiet=True, as_json=False), adopting=None)
                audit.note("repair", uid=uid, result="done", workload=known.name)


def main() -> int:
    """Do it for this machine."""
    place = site.read(os.environ)
    clear(place, Audit(place.values["audit-log"].value or DEFAULT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
