"""Slurm as a supervisor hears of it: one attempt of one job. Called by `supervisor.allotment` through `supervisor.scheduler`."""

from __future__ import annotations

import re

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
_KILL_WAIT_S = 30.0
"""Slurm's default between SIGTERM and SIGKILL."""

_PAIR = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$", re.MULTILINE)


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while a job runs."""

    cluster: str
    kill_wait_s: float
    grace_s: float | None
    """Between a preemption's announcement and its strike, for this job's partition; None: it is not preempted with a notice."""
    comes_back_preempted: bool = False
    """A job that ends in that time is put into the queue again by Slurm itself."""


class SlurmJob:
    """The attempt of job `job` that is its `restarts`-th restart, run for `owner`."""

    def __init__(self, number: int, restarts: int, owner: Owner, site: Site) -> None:
        self._number = number
        self._restarts = restarts
        self._owner = owner
        self._site = site

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
        return job.judge(see(self._number, self._owner), restarts=self._restarts, grace_s=self._site.grace_s)

    def saved(self, reason: str) -> str:
        """Requeue the job as its user, unless Slurm is ending this attempt already: a later one must not be hit."""
        outlook = self.look()
        if outlook.standing not in (Standing.RUNNING, Standing.SUSPENDED):
            return f"{reason}; the job is being ended already"
        if outlook.notice is not None and self._site.comes_back_preempted:
            # Requeued by us, it would stay marked as preempted, and Slurm would run it once more when it is done (24.11.5).
            return f"{reason}; Slurm puts the job into the queue again, and it goes on from its checkpoint"
        try:
            commands.run("scontrol", "requeue", str(self._number), owner=self._owner)
        except commands.Refused as error:
            raise errors.Unsupported(
                f"{reason}; the job is saved, but Slurm does not put it into the queue again: {error}",
                hint=f"once that is possible: scontrol requeue {self._number}",
            ) from error
        return f"{reason}; the job was put into the queue again and goes on from its checkpoint"

    def lines(self, begun: Begun) -> tuple[str, ...]:
        """Return one line: which life this is, where, and what it goes on from."""
        restarts = f", restart {self._restarts}" if self._restarts else ""
        came = f"goes on from {begun.restored_from}" if begun.restored_from else "starts anew"
        return (f"{begun.workload}, life {begun.epoch} on {begun.hostname}{restarts}: {came}",)


def see(number: int, owner: Owner) -> Seen:
    """Ask squeue how job `number` stands. Raises `errors.SchedulerUnavailable`, also when the controller does not know it (any more)."""
    try:
        return job.parse(commands.run("squeue", "-h", "-j", str(number), "-O", job.FIELDS, owner=owner))
    except (commands.Refused, ValueError) as error:
        raise errors.SchedulerUnavailable(f"squeue does not tell of job {number}: {error}", hint="see scontrol ping") from error


def site(owner: Owner, partition: str) -> Site:
    """Ask Slurm for what concerns jobs in `partition` (empty: not known). Raises `errors.SchedulerUnavailable`."""
    try:
        settings = _pairs(commands.run("scontrol", "show", "config", owner=owner))
    except commands.Refused as error:
        raise errors.SchedulerUnavailable(f"scontrol does not show its configuration: {error}", hint="see scontrol ping") from error
    type_ = settings.get("PreemptType", "").rpartition("/")[2]
    mode, grace_s = _preemption(owner, partition) if type_ not in ("", "none") else ("", None)
    return Site(
        cluster=settings.get("ClusterName", ""),
        kill_wait_s=_seconds(settings.get("KillWait", ""), _KILL_WAIT_S),
        grace_s=grace_s,
        comes_back_preempted=mode == "REQUEUE",
    )


def _preemption(owner: Owner, partition: str) -> tuple[str, float | None]:
    """Return how jobs in `partition` are preempted, and after which grace; None: they are not, or nobody says."""
    if not partition:
        return "", None
    try:
        shown = commands.run("scontrol", "-o", "show", "partition", partition, owner=owner)
    except commands.Refused:
        return "", None
    fields = dict(word.partition("=")[::2] for word in shown.split())
    mode = fields.get("PreemptMode", "").partition(",")[0]
    return mode, None if mode == "OFF" else _seconds(fields.get("GraceTime", ""), 0.0)


def _pairs(text: str) -> dict[str, str]:
    return dict(_PAIR.findall(text))


def _seconds(text: str, otherwise: float) -> float:
    """Read Slurm's ``30 sec`` or ``30``."""
    found = re.match(r"[0-9]+", text)
    return float(found[0]) if found else otherwise
