"""Slurm's own programs, asked for what is said and told what to do: sbatch, scancel, scontrol, squeue, sacct. Called by `slurm_run`.

Nothing of Slurm is linked or imported: whoever may use these programs may evaluate. Times in their answers are seconds since 1970.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping

from perdure import errors

NEEDED = ("sbatch", "scancel", "scontrol", "squeue", "sacct")
LOOK = "State:|,RestartCnt:|,NodeList:|,PriorityLong:|"
"""What squeue is asked for (``-O``): no text that a user can choose."""
_LONGEST_S = 120.0
"""A busy controller answers late; Slurm's own patience is 10 s a message, and its programs try again."""
_MOST_BYTES = 8 << 20
_AWAY = ("unable to contact", "connection refused", "timed out", "connection timeout", "communication", "zero bytes", "try again")
_CONFIGURED_AT = re.compile(r"Configuration data as of (\d+)")
_OURS = ("PERDURE", "SBATCH_COMMENT", "SBATCH_OPEN_MODE", "SBATCH_NO_REQUEUE", "SLURM_")
"""Beginnings of variables that would make the two arms differ, or a job take itself for the one around the harness."""


class Refused(Exception):
    """Slurm answered, and did not do it. The text is Slurm's."""


def missing() -> tuple[str, ...]:
    """Return which of the programs are not here."""
    return tuple(name for name in NEEDED if shutil.which(name) is None)


def submit(script: str, options: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Give `script`, the path of a batch script, to sbatch and return the job's number.

    The job gets `environment`, less what would tell the two arms apart. Raises `Refused` and `errors.SchedulerUnavailable`.
    """
    given = {key: value for key, value in environment.items() if not key.startswith(_OURS)}
    answer = run("sbatch", "--parsable", *options, script, environment=given)
    number = answer.strip().partition(";")[0]
    if not number.isdigit():
        raise Refused(f"sbatch does not tell the job's number: {answer.strip()[:200]!r}")
    return int(number)


def look(job: int) -> str:
    """Return squeue's line of `LOOK` for a job, empty when the controller has forgotten it. Raises `errors.SchedulerUnavailable`."""
    try:
        return run("squeue", "--noheader", "--states=all", f"--jobs={job}", "-O", LOOK).strip()
    except Refused:
        return ""  # "Invalid job id specified": it ended long ago


def account(job: int, fields: str, since_unix_s: float) -> str:
    """Return sacct's lines of `fields` for every attempt of a job that began after `since_unix_s`, steps included.

    Raises `Refused` where nobody keeps accounts, and `errors.SchedulerUnavailable`.
    """
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since_unix_s - 86400))
    return run("sacct", "--duplicates", "--noheader", "--parsable2", f"--jobs={job}", f"--starttime={since}", f"--format={fields}")


def requeue(job: int) -> None:
    """Put a job into the queue again, running or not. Raises `Refused` and `errors.SchedulerUnavailable`."""
    run("scontrol", "requeue", str(job))


def cancel(*options: str) -> None:
    """Run scancel. A job that is over already is none to end. Raises `errors.SchedulerUnavailable`."""
    with contextlib.suppress(Refused):
        run("scancel", *options)


def clock_offset_s() -> float:
    """Return how far the controller's clock is ahead of this host's, to a second; 0 when it does not say. Raises what `run` raises."""
    before_s = time.time()
    found = _CONFIGURED_AT.search(run("scontrol", "show", "config"))
    if found is None:
        return 0.0
    middle_s = (before_s + time.time()) / 2
    apart_s = int(found[1]) + 0.5 - middle_s
    # It tells whole seconds: what is within one says that there is no difference that could be seen.
    return apart_s if abs(apart_s) > 1.0 else 0.0


def run(program: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run one of Slurm's programs and return what it prints.

    Raises `Refused` with Slurm's words when it ends with a fault of the request, and `errors.SchedulerUnavailable` when the program is not
    there, does not end, or does not reach its controller.
    """
    given = dict(os.environ if environment is None else environment) | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, env=given, timeout=_LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise errors.SchedulerUnavailable(f"{program} did not answer within {_LONGEST_S:g} s", hint="see scontrol ping") from error
    except OSError as error:
        raise errors.SchedulerUnavailable(f"{program} cannot be run: {error.strerror}", hint="is Slurm's client installed here?") from error
    if done.returncode == 0:
        return done.stdout[:_MOST_BYTES].decode("utf-8", "replace")
    said = done.stderr[:_MOST_BYTES].decode("utf-8", "replace").strip()
    last = said.rpartition("\n")[2].strip()
    if done.returncode < 0 or any(part in said.lower() for part in _AWAY):
        raise errors.SchedulerUnavailable(f"{program}: {last or f'ended by signal {-done.returncode}'}", hint="see scontrol ping")
    raise Refused(last or f"{program} ended with {done.returncode}")
