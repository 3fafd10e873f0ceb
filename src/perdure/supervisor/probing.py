"""The user's own command that tells whether the workload works. Called by `restoring`."""

from __future__ import annotations

import os
import shlex

from perdure import errors
from perdure.checkpoint import alive
from perdure.supervisor import environment
from perdure.supervisor.life import Life

_BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
"""Beside the owner's own variables; of ours a user's program gets none."""


def probe(life: Life) -> alive.Probe | None:
    """Return the probe of `life`; None: it has none. Raises `errors.RestoreFailed` for one that cannot be read."""
    if life.options.probe is None:
        return None
    try:
        argv = tuple(shlex.split(life.options.probe))
    except ValueError as error:
        raise errors.RestoreFailed(f"the probe cannot be read: {error}", hint="see --probe") from error
    if not argv:
        return None
    before = os.environ if life.owner is None else {**_BARE, **life.variables}
    return alive.Probe(
        argv=argv,
        environment={**before, environment.WORKLOAD: life.name, environment.EPOCH_FILE: str(life.epoch_file)},
        working_directory=life.record.working_directory,
        owner=life.owner,
        folder=str(life.epoch_file.parent),
        limits=life.limits,
    )
