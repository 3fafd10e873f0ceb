"""What a job's workload is called: in each of its attempts, on whichever node. Pure. Called by `seat` and `perdure slurm status`."""

from __future__ import annotations

import re

BATCH = "batch"
"""The step that runs the job's script."""

_OTHERS = re.compile(r"[^A-Za-z0-9._-]+")
_NAME = re.compile(r"slurm-(?P<cluster>[A-Za-z0-9._-]+)-(?P<job>[1-9][0-9]*)(?:\.(?P<step>[0-9]+))?")
_MOST_CLUSTER = 36
"""What the job's number and the step's leave of a name's 64 characters."""


def name(cluster: str, job: int, step: str) -> str:
    """Return the name for the step `step` (`BATCH`, or its number) of job `job` on `cluster`."""
    cleaned = _OTHERS.sub("-", cluster)[:_MOST_CLUSTER].strip(".-_") or "cluster"
    return f"slurm-{cleaned}-{job}" + ("" if step == BATCH else f".{step}")


def read(workload: str) -> tuple[str, int, str] | None:
    """Return cluster, job and step of a workload that `name` named; None for any other."""
    found = _NAME.fullmatch(workload)
    return (found["cluster"], int(found["job"]), found["step"] or BATCH) if found else None
