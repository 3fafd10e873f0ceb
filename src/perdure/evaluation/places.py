"""Where the files of a run lie. Called by `arms`, `local`, `conduct` and `recover`."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

SCRATCH = "{scratch}"
"""In the plan's command and paths it stands for a folder of the run's own, where two runs at once must not meet."""


class Places(msgspec.Struct, frozen=True):
    """Where the files of a run lie."""

    raw: Path
    """Its folder of raw logs."""
    run_dir: Path
    """Perdure's folder for sockets, on a file system in memory."""

    @property
    def state(self) -> Path:
        """Perdure's state folder, with the store; removed when the run is recorded."""
        return self.raw / "state"

    @property
    def scratch(self) -> Path:
        """The folder that `SCRATCH` stands for."""
        return self.raw / "scratch"

    @property
    def events(self) -> Path:
        """What ``perdure run --events`` writes."""
        return self.raw / "perdure-events.jsonl"

    def expand(self, text: str) -> str:
        """Return `text` of the plan with the run's own folder in place of `SCRATCH`."""
        return text.replace(SCRATCH, str(self.scratch))


def of(raw: Path, run_id: str) -> Places:
    """Return the places of a run."""
    above = "/run" if os.geteuid() == 0 and os.path.isdir("/run") else os.environ.get("XDG_RUNTIME_DIR") or "/tmp"  # noqa: S108
    return Places(raw=raw.absolute(), run_dir=Path(above) / f"perdure-eval-{run_id}")
