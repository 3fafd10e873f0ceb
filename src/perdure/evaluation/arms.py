"""The two sides of an evaluation: which command each gives, in which environment, and what Perdure tells of the managed one.

Called by `conduct`. The one thing that differs is that the managed arm's command stands behind ``perdure run``, with the plan's options and
with folders of the run's own, so that every run begins without a checkpoint and without what an earlier one left in caches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from perdure.evaluation import local
from perdure.evaluation.places import Places
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Arm

WORKLOAD = "w"
"""Name of the workload under Perdure: short, since the path of a socket is."""


def command(plan: Plan, arm: Arm, there: Places) -> tuple[str, ...]:
    """Return the command that starts a life of `arm`, the first one and every later one."""
    own = tuple(there.expand(word) for word in plan.workload.command)
    if arm is Arm.UNMANAGED:
        return own
    perdure = (sys.executable, "-P", "-m", "perdure", "run", "--name", WORKLOAD)
    options = tuple(there.expand(word) for word in plan.arms.managed_options)
    return (*perdure, *options, "--events", str(there.events), "--", *own)


def environment(arm: Arm, there: Places, run_id: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every life of a run: what is `given`, the run's mark, and Perdure's folders in the managed arm."""
    found = dict(given) | {local.MARK: run_id}
    # A batch job around the harness is not the job that is evaluated.
    found.pop("SLURM_JOB_END_TIME", None)
    if arm is Arm.MANAGED:
        found |= {"PERDURE_STATE": str(there.state), "PERDURE_RUN_DIR": str(there.run_dir)}
    return found


class Size(msgspec.Struct, frozen=True):
    """What Perdure tells of a checkpoint."""

    id: dict[str, Any]
    logical_bytes: int
    stored_bytes: int
    new_bytes: int
    stopped_s: float
    cost_s: float = 0.0


class Said(msgspec.Struct, frozen=True):
    """One event of ``perdure run``."""

    phase: str
    at_ns: int
    text: str = ""
    done_bytes: int | None = None
    checkpoint: Size | None = None
    durations_s: dict[str, float] = {}


class Listener:
    """Reads what ``perdure run`` adds to its file of events. There is nothing to read in the unmanaged arm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def poll(self) -> Iterator[Said]:
        """Yield the events that were added since the last look."""
        try:
            with open(self._path, "rb") as handle:
                handle.seek(self._offset)
                content = handle.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                yield msgspec.json.decode(line, type=Said)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # a line that a killed supervisor tore
