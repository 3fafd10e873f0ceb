"""One new checkpoint being written. Called by the saver, through `Repository.writer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from perdure.model.checkpoint import Manifest, Part, PartSize, Run, StoredFile


class Writer:
    """See the module. Used by one thread."""

    def add(self, name: str, source: Path | int, *, part: Part, runs: Sequence[Run] | None = None, mode: int = 0o600) -> None:
        """Add the file `source`, a path or a descriptor, as `name`.

        `runs` says which addresses its blocks belong to and covers the file; None: one run in the space ``file:NAME``. The file must not
        change meanwhile.
        """
        raise NotImplementedError

    def commit(self, describe: Callable[[tuple[PartSize, ...], tuple[StoredFile, ...]], Manifest]) -> Manifest:
        """Make everything durable, then the checkpoint visible, in one step. Returns the manifest with its final `sizes` and `files`."""
        raise NotImplementedError
