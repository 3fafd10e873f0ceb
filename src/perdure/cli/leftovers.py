"""What supervisors left behind that were killed, cleared away by commands that people use to look after a machine."""

from __future__ import annotations

import contextlib

from perdure import errors
from perdure.cli import console
from perdure.supervisor import repair, state
from perdure.supervisor.folders import Folders
from perdure.supervisor.voice import Voice


def clear(folders: Folders, common: console.Common) -> None:
    """Clear away what workloads of `folders` have left that have no supervisor any more. It never fails: what cannot be cleared stays."""
    if folders.database.exists():
        with contextlib.suppress(errors.PerdureError, OSError), state.opened(folders.database) as database:
            repair.sweep(database, folders, Voice(quiet=common.quiet, as_json=common.json))
