"""What a scheduler gave a life, told to the workload in a file: a process that was brought back still has its old environment.

Beside the epoch file lies ``allocation.env``: lines ``NAME='VALUE'`` for a shell, and for whoever reads them by itself. Called by `start`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from perdure.base import files
from perdure.model.checkpoint import Owner

FILE = "allocation.env"

_PREFIXES = ("SLURM_", "SLURMD_")
_NAMES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "TMPDIR", "ZE_AFFINITY_MASK"}
)
_MODE = 0o400


def render(environment: Mapping[str, str]) -> str:
    """Return the file's text: the variables of `environment` that describe an allocation, in order of their names."""
    told = {name: value for name, value in environment.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(told.items()) if name.isidentifier())


def write(epoch_file: Path, environment: Mapping[str, str], owner: Owner | None) -> None:
    """Write the file beside `epoch_file`, for `owner` alone to read (None: for this process's user). Raises `errors.OutputError`."""
    path = epoch_file.with_name(FILE)
    files.write_text(path, render(environment), mode=_MODE)
    if owner is not None:
        # Nobody but root can write to its folder: it is the file that was just written.
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
