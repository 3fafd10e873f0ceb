"""A job as Slurm's controller shows it, read and judged. Pure. Called by `scheduler`.

A line of ``squeue``, of fields that hold no text of the user's. The number of an array's last task is that of the array too: asked for it,
squeue tells of all tasks, and ``scontrol requeue`` would requeue them all, so that a task is called by its ``JobArrayID``. Measured with
22.05 and 24.11: while a job is being ended its state is COMPLETING whatever the cause, but one that will run again has its count of
restarts raised already, and one that is not has not.
"""

from __future__ import annotations

import msgspec

from perdure.supervisor.scheduler import Notice, Outlook, Standing

FIELDS = "JobID:|,JobArrayID:|,State:|,Partition:|,StartTime:|,EndTime:|,PreemptTime:|,RestartCnt:|,Requeue:|,Reason:|"
"""What squeue is asked for (``-O``)."""

_COLUMNS = 10
_RUNS = frozenset({"RUNNING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "RESIZING"})
_STANDS_STILL = frozenset({"SUSPENDED", "STOPPED"})
_COMES_BACK = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "PREEMPTED", "NODE_FAIL", "SPECIAL_EXIT", "TIMEOUT", "DEADLINE"})
_OUT_OF_TIME = "timelimit"


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The job at one moment. Times are UTC, in nanoseconds; None: there is none."""

    address: str
    """What it is called when it alone is meant: ``7``, or ``7_2`` for a task of an array."""
    state: str
    partition: str
    start_ns: int | None
    end_ns: int | None
    preempted_ns: int | None
    restarts: int
    may_requeue: bool
    reason: str


def parse(text: str, number: int) -> Seen:
    """Read what squeue answers to `FIELDS` of job `number`. Raises ValueError for anything else."""
    lines = [[column.strip() for column in line.split("|")] for line in text.splitlines()]
    columns = next((one for one in lines if one[0] == str(number)), [])
    if len(columns) < _COLUMNS or not columns[2]:
        raise ValueError(f"not squeue's line: {text!r}")
    _, address, state, partition, start, end, preempted, restarts, requeue, reason = columns[:_COLUMNS]
    return Seen(
        address=address,
        state=state.upper(),
        partition=partition,
        start_ns=_time(start),
        end_ns=_time(end),
        preempted_ns=_time(preempted),
        restarts=int(restarts),
        may_requeue=requeue not in {"0", "no", "NO"},
        reason=reason,
    )


def _time(text: str) -> int | None:
    return int(text) * 10**9 if text.isascii() and text.isdigit() and int(text) > 0 else None


def judge(seen: Seen, *, restarts: int, grace_s: float | None) -> Outlook:
    """Return what `seen` means for the attempt that is the job's `restarts`-th restart."""
    standing = _standing(seen, restarts)
    notice = None
    started = seen.start_ns or 0
    # The time of an earlier preemption stays in the record when the job runs again.
    if standing is Standing.RUNNING and seen.preempted_ns is not None and seen.preempted_ns >= started and seen.end_ns is not None:
        notice = Notice(seen.end_ns, "preempted")
    return Outlook(standing=standing, end_ns=seen.end_ns, notice=notice, returns=seen.may_requeue, grace_s=grace_s)


def _standing(seen: Seen, restarts: int) -> Standing:
    if seen.restarts != restarts:
        return Standing.LEAVING  # it has moved on: this attempt is over for Slurm
    if seen.state in _RUNS:
        return Standing.RUNNING
    if seen.state in _STANDS_STILL:
        return Standing.SUSPENDED
    if seen.state in _COMES_BACK or seen.reason.replace(" ", "").lower() == _OUT_OF_TIME:
        return Standing.LEAVING
    return Standing.CANCELLED
