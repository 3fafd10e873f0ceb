"""What a job on Slurm has written to its output so far, read as it grows, and what Perdure says in it. Called by `slurm_run`.

The file is appended to by every attempt. Perdure, bringing a job back, cuts off what was written after the checkpoint: the file gets
shorter, and what follows is new.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure.evaluation.probes import Lines

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


class Keeping:
    """Whether Perdure keeps the lives of a job, as their output says. `is_wanted`: it is to keep them."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self.lives = 0
        """How many lives it keeps."""
        self._trouble = ""
        self._lines = Lines()

    def feed(self, content: bytes) -> Iterator[str]:
        """Hear what was written; yields the checkpoint that a life goes on from, of each that does."""
        for line in self._lines.feed(content):
            told = said(line)
            if told is None:
                continue
            if not told.is_kept:
                self._trouble = self._trouble or f"Perdure did not keep it: {told.why}"
            elif not self._is_wanted:
                self._trouble = "Perdure kept the unmanaged job: the site's policy opts it in"
            else:
                self.lives += 1
                if told.origin:
                    yield told.origin

    def trouble(self) -> str:
        """Say why the run is none of its arm: it was kept where it should not be, or not where it should; '' when it is one."""
        return self._trouble or ("Perdure did not say that it kept the job" if self._is_wanted and not self.lives else "")


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
