"""Slurm as a supervisor hears of it: one attempt of one job. Called by `supervisor.allotment` through `supervisor.scheduler`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import msgspec

from perdure import errors
from perdure.model.checkpoint import Owner
from perdure.slurm import commands, job
from perdure.slurm.job import Seen
from perdure.supervisor.scheduler import Begun, Outlook, Standing

_POLL_S = 60.0
"""Between two looks at a job that is not preempted with a notice: its time limit changes rarely."""
_LEAST_POLL_S = 2.0
_SHARE_OF_GRACE = 0.2
_HEARD_S = 1.0
"""So long somebody has to write down why a job is held."""
_LATE_S = 120.0
"""A preemption strikes when Slurm's scheduler next looks, not at the second."""
_REQUEUES_ENDED = (24, 11)
"""First version that was seen to put a preempted job that ended within its grace into the queue again."""
_GOES_ON = (Standing.RUNNING, Standing.SUSPENDED)
_KILL_WAIT_S = 30.0
"""Slurm's default between SIGTERM and SIGKILL."""

_PAIR = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while a job runs."""

    cluster: str
    kill_wait_s: float
    grace_s: float | None
    """Between a preemption's announcement and its strike, for this job's partition; None: it is not preempted with a notice."""
    cancels: bool = False
    """Preempted jobs are cancelled there, rather than put into the queue again."""
    requeues_ended: bool = False
    """A preempted job that ends within its grace is put into the queue again."""


class SlurmJob:
    """The attempt of job `job` that is its `restarts`-th restart, run for `owner`."""

    def __init__(self, number: int, restarts: int, owner: Owner, site: Site) -> None:
        self._number = number
        self._restarts = restarts
        self._owner = owner
        self._site = site
        self._absence = commands.Absence()

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self._site.cluster

    @property
    def poll_s(self) -> float:
        """Seconds between two looks: so that a notice is seen early in its grace."""
        grace_s = self._site.grace_s
        return _POLL_S if not grace_s else min(max(grace_s * _SHARE_OF_GRACE, _LEAST_POLL_S), _POLL_S)

    @property
    def mercy_s(self) -> float:
        """Slurm's KillWait."""
        return self._site.kill_wait_s

    def look(self) -> Outlook:
        """Ask squeue. Raises `errors.SchedulerUnavailable`, also when the controller does not know the job (any more)."""
        return self._judged(see(self._number, self._owner))

    def _judged(self, seen: Seen) -> Outlook:
        return job.judge(seen, restarts=self._restarts, grace_s=self._site.grace_s)

    def saved(self, reason: str) -> str:
        """Requeue the job as its user, unless Slurm is ending this attempt already: a later one must not be hit.

        A job that is preempted is Slurm's to requeue. In 24.11 it has to end within its grace: requeued by anybody, at the end of the grace
        by Slurm itself too, it stays marked, and is run once more when it is done. In 22.05 one that ends within its grace has failed.

        Commands that have not been there for minutes are not waited for.
        """
        try:
            return self._saved(reason)
        except errors.SchedulerUnavailable as error:
            if not self._absence.lasts(error):
                raise
            raise errors.Unsupported(
                f"{reason}; the job is saved, but cannot be put into the queue again from here: {error}",
                hint=f"where Slurm's client is: scontrol requeue {self._number}",
            ) from error

    def _saved(self, reason: str) -> str:
        if not self._site.cancels:
            if self._site.requeues_ended and self.look().notice is not None:
                return f"{reason}; Slurm puts the job into the queue again, and it goes on from its checkpoint"
            self._await_strike()
        seen = see(self._number, self._owner)
        if self._judged(seen).standing not in _GOES_ON:
            return f"{reason}; the job is being ended, and goes on from its checkpoint when it runs again"
        try:
            commands.run("scontrol", "requeue", seen.address, owner=self._owner)
        except commands.Refused as error:
            raise errors.Unsupported(
                f"{reason}; the job is saved, but Slurm does not put it into the queue again: {error}",
                hint=f"once that is possible: scontrol requeue {seen.address}",
            ) from error
        return f"{reason}; the job was put into the queue again and goes on from its checkpoint"

    def hold(self, reason: str, say: Callable[[str], None]) -> None:
        """Put the job into the queue again, but held, as its user: it cannot go on, and must not start over.

        What is done is told by `say` before, since Slurm ends the attempt then, and who writes it down with it.

        Raises `errors.SchedulerUnavailable`, `errors.Unsupported`.
        """
        seen = see(self._number, self._owner)
        if self._judged(seen).standing not in _GOES_ON:
            say(f"{reason}; the job is being ended")
            return
        say(f"{reason}; the job is held, so that it does not start over: scontrol release {seen.address} tries again")
        time.sleep(_HEARD_S)
        try:
            commands.run("scontrol", "requeuehold", seen.address, owner=self._owner)
        except commands.Refused as error:
            raise errors.Unsupported(f"Slurm does not do that: {error}") from error

    def _await_strike(self) -> None:
        """Wait until Slurm ends the attempt, where it has announced that; not longer than a while after it was to be."""
        while True:
            outlook = self.look()
            if outlook.standing not in _GOES_ON or outlook.notice is None:
                return
            if time.time_ns() > outlook.notice.end_ns + int(_LATE_S * 1e9):
                return
            time.sleep(_LEAST_POLL_S)

    def lines(self, begun: Begun) -> tuple[str, ...]:
        """Return one line: which life this is, where, and what it goes on from."""
        restarts = f", restart {self._restarts}" if self._restarts else ""
        came = f"goes on from {begun.restored_from}" if begun.restored_from else "starts anew"
        return (f"{begun.workload}, life {begun.epoch} on {begun.hostname}{restarts}: {came}",)


def see(number: int, owner: Owner) -> Seen:
    """Ask squeue how job `number` stands. Raises `errors.SchedulerUnavailable`, also when the controller does not know it (any more)."""
    try:
        return job.parse(commands.run("squeue", "-h", "-j", str(number), "-O", job.FIELDS, owner=owner), number)
    except (commands.Refused, ValueError) as error:
        raise errors.SchedulerUnavailable(f"squeue does not tell of job {number}: {error}", hint="see scontrol ping") from error


def site(owner: Owner, partition: str) -> Site:
    """Ask Slurm for what concerns jobs in `partition` (empty: not known). Raises `errors.SchedulerUnavailable`."""
    try:
        settings = _pairs(commands.run("scontrol", "show", "config", owner=owner))
    except commands.Refused as error:
        raise errors.SchedulerUnavailable(f"scontrol does not show its configuration: {error}", hint="see scontrol ping") from error
    kind = settings.get("PreemptType", "").rpartition("/")[2]
    fields = _partition(owner, partition) if kind not in ("", "none") else {}
    mode = fields.get("PreemptMode", "OFF").partition(",")[0]
    return Site(
        cluster=settings.get("ClusterName", ""),
        kill_wait_s=_seconds(settings.get("KillWait", ""), _KILL_WAIT_S),
        grace_s=None if mode == "OFF" else _seconds(fields.get("GraceTime", ""), 0.0),
        cancels=kind == "partition_prio" and mode == "CANCEL",
        requeues_ended=mode == "REQUEUE" and _version(settings.get("SLURM_VERSION", "")) >= _REQUEUES_ENDED,
    )


def _partition(owner: Owner, partition: str) -> dict[str, str]:
    """Return the fields of `partition`; none when nobody says."""
    if not partition:
        return {}
    try:
        shown = commands.run("scontrol", "-o", "show", "partition", partition, owner=owner)
    except commands.Refused:
        return {}
    return dict(word.partition("=")[::2] for word in shown.split())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", text)[:2])


def _pairs(text: str) -> dict[str, str]:
    return dict(_PAIR.findall(text))


def _seconds(text: str, otherwise: float) -> float:
    """Read Slurm's ``30 sec`` or ``30``."""
    found = re.match(r"[0-9]+", text)
    return float(found[0]) if found else otherwise
