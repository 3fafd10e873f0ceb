"""One job on Slurm in the harness's hands: looked at, queued again, accounted for, ended. Called by `slurm_run` and `recover`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from perdure import errors
from perdure.evaluation import accounting, slurm_programs
from perdure.evaluation.accounting import Attempt, Look

ACCOUNTS = "accounting.txt"
_AWAY_S = 900.0
"""So long a controller may be away, as while it is restarted: jobs go on without it."""
_ACCOUNTED_S = 60.0
"""So long the accounting may take until it knows the end of a job."""
_ENDED_S = 300.0
_PAUSE_S = 1.0


class Job:
    """Job `number`; `clock` gives seconds."""

    def __init__(self, number: int, clock: Callable[[], float]) -> None:
        self.number = number
        self._clock = clock
        self._away_s: float | None = None
        """Since when the controller does not answer."""
        self._seen: Look | None = None
        self._to_requeue: int | None = None
        """The count of restarts of the life that was to be put into the queue again when the controller did not answer."""

    def look(self) -> Look | None:
        """Return how the job stands; None while the controller does not show it yet, or is away.

        A job that the controller has forgotten is over. Raises `errors.SchedulerUnavailable` when the controller stays away.
        """
        try:
            line = slurm_programs.look(self.number)
        except errors.SchedulerUnavailable:
            now_s = self._clock()
            self._away_s = now_s if self._away_s is None else self._away_s
            if now_s - self._away_s >= _AWAY_S:
                raise
            return None
        self._away_s = None
        seen = accounting.look(line)
        if seen is None:
            return None if self._seen is None else Look(state="UNKNOWN", phase="over", restarts=self._seen.restarts, node="")
        self._seen = seen
        if self._to_requeue == seen.restarts and seen.phase == "runs":
            self.requeue()
        return seen

    def requeue(self) -> str:
        """Put the job into the queue again; returns why Slurm refuses that, else ''. While the controller is away, a later look does it."""
        self._to_requeue = None
        try:
            slurm_programs.requeue(self.number)
        except slurm_programs.Refused as error:
            return f"Slurm does not put the job into the queue again: {error}"
        except errors.SchedulerUnavailable:
            self._to_requeue = None if self._seen is None else self._seen.restarts
        return ""

    def attempts(self, lives: int, since_unix_s: float, raw: Path) -> tuple[Attempt, ...]:
        """Return what the accounting says of the job, once it knows the end of each of `lives`; what it said is kept in the folder `raw`.

        None where nobody keeps accounts, or not now.
        """
        end_s = time.monotonic() + _ACCOUNTED_S
        told = ""
        while True:
            try:
                told = slurm_programs.account(self.number, accounting.FIELDS, since_unix_s)
            except (slurm_programs.Refused, errors.SchedulerUnavailable):
                break
            found = accounting.ran(accounting.attempts(told))
            if (len(found) >= lives and all(one.end_s is not None for one in found)) or time.monotonic() >= end_s:
                break
            time.sleep(_PAUSE_S)
        (raw / ACCOUNTS).write_text(told, "utf-8")
        return accounting.attempts(told)


def leave(run_id: str) -> None:
    """End the jobs of a run, which carry its name, and wait until Slurm has.

    Raises `errors.EnvironmentUnfit` when one does not end, and `errors.SchedulerUnavailable`.
    """
    end_s = time.monotonic() + _ENDED_S
    slurm_programs.cancel(f"--name={run_id}")
    while left := slurm_programs.run("squeue", "--noheader", f"--name={run_id}", "-O", "JobID:|").strip():
        if time.monotonic() >= end_s:
            raise errors.EnvironmentUnfit(f"job {left.strip('|')} of run {run_id} does not end", hint="see squeue")
        time.sleep(_PAUSE_S)
        slurm_programs.cancel(f"--name={run_id}")
