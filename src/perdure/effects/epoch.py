"""Which life of its workload a process is: read at every use from where the one who starts lives keeps it.

Called by the ledger. A restored process still has its old memory and environment, so the number itself must lie outside
both: in a file whose *content* the supervisor replaces before a new life begins.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping

from perdure import errors

EPOCH_FILE = "PERDURE_EPOCH_FILE"
"""Names the file that `perdure run` keeps: the epoch in decimal on the first line, the workload's name on the second."""


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """One life of one workload; a larger epoch is a newer life."""

    workload: str
    epoch: int


EpochSource = int | str | os.PathLike[str] | Callable[[], int] | None
"""An epoch given by the caller: a number, the path of a file that holds it, or a function that is called at every use."""


def reader(epoch: EpochSource, workload: str | None, environ: Mapping[str, str] = os.environ) -> Callable[[], Life | None]:
    """Return the function that reads the current life.

    Strongest first: `epoch` as the caller gives it; the file named by ``PERDURE_EPOCH_FILE``; Slurm's
    ``SLURM_RESTART_COUNT`` with the job's id as workload; none, then nothing is fenced and the function returns None.

    Raises `errors.UsageError` for an epoch without the name of a workload.
    """
    if epoch is not None:
        if isinstance(epoch, str | os.PathLike):
            path = os.fspath(epoch)
            return lambda: _from_file(path, workload)
        if not workload:
            raise errors.UsageError(
                "an epoch was given without a workload", hint="give workload= too: epochs are compared within one workload only"
            )
        return _from_caller(epoch, workload)
    if environ.get(EPOCH_FILE):
        return lambda: _from_file(environ[EPOCH_FILE], workload)
    if environ.get("SLURM_JOB_ID"):
        return lambda: _from_slurm(environ, workload)
    return lambda: None


def _from_caller(epoch: int | Callable[[], int], workload: str) -> Callable[[], Life]:
    return lambda: Life(workload, _checked(epoch() if callable(epoch) else epoch, "epoch="))


def _from_file(path: str, workload: str | None) -> Life:
    hint = "it holds the epoch in decimal, and on a second line the workload's name"
    try:
        with open(path, encoding="utf-8") as handle:
            lines = handle.read(4096).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise errors.InputMissing(f"cannot read the epoch from {path}: {reason}", hint=hint) from error
    name = workload or (lines[1].strip() if len(lines) > 1 else "")
    if not name:
        raise errors.UsageError(f"{path} names no workload", hint=f"give workload=, or write the file: {hint}")
    return Life(name, _checked(lines[0].strip(), path))


def _from_slurm(environ: Mapping[str, str], workload: str | None) -> Life:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array and task else environ["SLURM_JOB_ID"]
    cluster = environ.get("SLURM_CLUSTER_NAME", "slurm")
    # Slurm sets the count from the first requeue on.
    return Life(workload or f"{cluster}:{job}", _checked(environ.get("SLURM_RESTART_COUNT", "0"), "SLURM_RESTART_COUNT"))


def _checked(value: object, origin: str) -> int:
    """Return a whole number from 0 to 2⁶³ − 1."""
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
        raise errors.UsageError(
            f"{origin}: {text[:40]!r} is not an epoch", hint="an epoch is a whole number, 0 or larger, that grows with every life"
        )
    return int(text)
