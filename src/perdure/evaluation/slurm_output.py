"""What a job on Slurm has written to its output so far, read as it grows, and what Perdure says in it. Called by `slurm_run`.

The file is appended to by every attempt. Perdure, bringing a job back, cuts off what was written after the checkpoint: the file gets
shorter, and what follows is new.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

_LIFE = re.compile(r"^perdure: \S+, life \d+ on \S+?(?:, restart \d+)?: (?:goes on from (?P<origin>\S+)|starts anew)$")
_UNMANAGED = re.compile(r"^perdure: (?P<why>.*it runs unmanaged.*)$")


class Said(msgspec.Struct, frozen=True):
    """A line of Perdure's in a job's output."""

    is_kept: bool
    """The life is kept by Perdure; else it runs unmanaged."""
    origin: str = ""
    """The checkpoint that it goes on from, empty when it starts anew."""
    why: str = ""
    """Why it runs unmanaged."""


def said(line: str) -> Said | None:
    """Return what Perdure says in `line`, None for a line of the workload's own."""
    life = _LIFE.match(line.strip())
    if life is not None:
        return Said(True, life["origin"] or "")
    unmanaged = _UNMANAGED.match(line.strip())
    return None if unmanaged is None else Said(False, why=unmanaged["why"])


class Tail:
    """Reads what is added to the file at `path`, which may not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def grown(self) -> bool:
        """Tell whether the file differs in length from what was read."""
        with contextlib.suppress(OSError):
            return os.stat(self._path).st_size != self._offset
        return False

    def read(self) -> bytes:
        """Return what was added since the last call."""
        try:
            with open(self._path, "rb") as handle:
                size_bytes = os.fstat(handle.fileno()).st_size
                self._offset = min(self._offset, size_bytes)
                handle.seek(self._offset)
                content = handle.read()
        except OSError:
            return b""
        self._offset += len(content)
        return content
