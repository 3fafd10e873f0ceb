"""The mean time to failure that a site's history knows for a workload of this size, for ``--every auto``. Called by `start`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from perdure import errors
from perdure.model import rates
from perdure.model.rates import Rates

_NONE = ("", "-1", "NoDevFiles", "none", "void")
"""What ``CUDA_VISIBLE_DEVICES`` says where there are none."""

_MOST_DIGITS = 6
"""A longer number of GPUs is none: the environment is the user's."""


def read(path: str) -> Rates:
    """Read the file of rates at `path`. Raises `errors.InputFormat`, `errors.InputError`."""
    try:
        with Path(path).open("rb") as handle:
            content = handle.read(rates.MOST_BYTES + 1)
    except OSError as error:
        raise errors.InputError(f"cannot read {path}: {error.strerror}", hint=rates.HINT) from error
    if len(content) > rates.MOST_BYTES:
        raise errors.InputFormat(f"{path} is too large for a file of rates", hint=rates.HINT)
    try:
        return rates.decode_rates(content)
    except errors.InputFormat as error:
        raise errors.InputFormat(f"{path}: {error}", hint=error.hint) from error


def size_of(environment: Mapping[str, str]) -> tuple[Literal["gpu", "node"], int]:
    """Return the size of a workload with this environment: the GPUs that Slurm or its user gave it, else one node."""
    told = environment.get("SLURM_GPUS_ON_NODE", "")
    if told.isascii() and told.isdigit() and len(told) <= _MOST_DIGITS and int(told) > 0:
        return "gpu", int(told)
    for variable in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"):
        listed = environment.get(variable, "")
        if listed.strip() not in _NONE:
            return "gpu", len(listed.split(","))
    return "node", 1


def mttf_s(found: Rates, environment: Mapping[str, str]) -> tuple[float, str] | None:
    """Return the mean time to failure in seconds, and for what size it is, in words; None: the history has nothing of that kind."""
    unit, size = size_of(environment)
    minutes = found.mttf_minutes(unit, size)
    if minutes is None:
        return None
    return minutes * 60.0, f"{size} GPU{'s' if size > 1 else ''}" if unit == "gpu" else "one node"
