"""The user's own command that tells whether the workload works. Called by `restoring` and `readiness`."""

from __future__ import annotations

import os

from perdure.checkpoint import probes
from perdure.supervisor import environment
from perdure.supervisor.life import Life

_BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
"""Beside the owner's own variables; of ours a user's program gets none."""


def probe(life: Life) -> probes.Probe | None:
    """Return the probe of `life`; None: it has none."""
    command = (life.options.probe or "").strip()
    if not command:
        return None
    before = os.environ if life.owner is None else {**_BARE, **life.variables}
    return probes.Probe(
        # By a shell: split into words alone, "a | b" and "a; exit 1" would end as `a` does with strange arguments.
        argv=("/bin/sh", "-c", command),
        environment={**before, environment.WORKLOAD: life.name, environment.EPOCH_FILE: str(life.epoch_file)},
        working_directory=life.record.working_directory,
        owner=life.owner,
        folder=str(life.epoch_file.parent),
        limits=life.limits,
    )
