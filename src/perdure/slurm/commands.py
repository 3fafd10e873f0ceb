"""Slurm's own commands, run as the job's user: what that user may not see or do, we do not either. Called by `scheduler` and `seat`."""

from __future__ import annotations

import os
import subprocess
import time

from perdure import errors
from perdure.model.checkpoint import Owner

_LONGEST_S = 20.0
"""Longer than Slurm's own patience with a controller (MessageTimeout, 10 s)."""
_MOST_BYTES = 1 << 20
_HINT = "see scontrol ping"
_ABSENT_S = 300.0
"""So long a command that is not there is waited for: a folder that nodes share, or an upgrade that is under way."""


class Refused(Exception):
    """Slurm answered, and did not do it. The text is Slurm's."""


class Absence:
    """Since when Slurm's commands have not been on this node, by what was told each time that they were wanted."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def lasts(self, error: errors.SchedulerUnavailable) -> bool:
        """Take note of `error`, and tell whether there is nothing to wait for any more: a controller comes back, a command may not."""
        if not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError | PermissionError):
            self._since_s = None
            return False
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= _ABSENT_S


def run(program: str, *arguments: str, owner: Owner) -> str:
    """Run Slurm's `program` as `owner` and return what it prints.

    Times in its output are seconds since 1970. Raises `Refused` with Slurm's words when it ends with a fault of the request, and
    `errors.SchedulerUnavailable` when the program is not there, does not end, or does not reach its controller.
    """
    environment = {key: os.environ[key] for key in ("PATH", "SLURM_CONF") if key in os.environ}
    environment |= {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
    identity = {} if owner.uid == os.geteuid() else {"user": owner.uid, "group": owner.gid, "extra_groups": owner.groups}
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            cwd="/",
            timeout=_LONGEST_S,
            check=False,
            **identity,  # type: ignore[call-overload]
        )
    except subprocess.TimeoutExpired as error:
        raise errors.SchedulerUnavailable(f"{program} did not answer within {_LONGEST_S:g} s", hint=_HINT) from error
    except OSError as error:
        raise errors.SchedulerUnavailable(f"{program} cannot be run: {error.strerror}", hint="is Slurm's client installed?") from error
    said = done.stderr[:_MOST_BYTES].decode("utf-8", "replace").strip()
    if done.returncode == 0:
        return str(done.stdout[:_MOST_BYTES].decode("utf-8", "replace"))
    if done.returncode < 0 or _is_away(said):
        raise errors.SchedulerUnavailable(f"{program}: {_last_line(said) or f'ended by signal {-done.returncode}'}", hint=_HINT)
    raise Refused(_last_line(said) or f"{program} ended with {done.returncode}")


def _is_away(said: str) -> bool:
    """Tell whether Slurm's words mean that its controller did not answer, or not now."""
    words = said.lower()
    return any(
        part in words
        for part in (
            "unable to contact",
            "connection refused",
            "timed out",
            "connection timeout",
            "communication",
            "zero bytes",
            "munge",
            "try again",
        )
    )


def _last_line(said: str) -> str:
    return said.rpartition("\n")[2].strip()
