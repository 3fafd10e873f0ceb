"""How a workload's life ends, and what that means for the next run. Called by `keeper`."""

from __future__ import annotations

import os
import signal
import time

import msgspec

from perdure import errors
from perdure.model.checkpoint import LifeEnd
from perdure.supervisor.life import Life
from perdure.supervisor.record import ENDED, State
from perdure.supervisor.voice import Voice

TRY_AGAIN = 75
"""What `run` ends with when the workload was saved and given up: a scheduler puts it into its queue again."""

_FROM_OUTSIDE = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""A workload that one of these ended did not end by itself: somebody, or a lack of memory, ended it. It can be gone on with."""


class Outcome(msgspec.Struct, frozen=True):
    """How a life ended."""

    status: int
    """What `run` ends with."""
    state: State
    reason: str
    workload_status: int | None = None
    """What the workload ended with, 128+n for a signal; None: it was given up."""


def reap(pid: int) -> int | None:
    """Collect the ended process `pid` and return its status, 128+n for a signal; None when it is no child of ours."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def of(status: int | None, *, stopping: str, has_checkpoint: bool, interrupted: bool = False) -> Outcome:
    """Return what it means that the workload ended with `status`, while it was being ended because of `stopping` (empty: it was not).

    With `interrupted`, its scheduler was ending it, all its processes at once: whatever it ended with, it did not end by itself.
    """
    code = 0 if status is None else status
    if stopping:
        return Outcome(TRY_AGAIN if has_checkpoint else code, State.STOPPED, stopping, status)
    if interrupted:
        return Outcome(code, State.STOPPED, "its scheduler ended it", status)
    if status is None:
        return Outcome(code, State.COMPLETED, "it ended; how is told only to who started it", status)
    if status == 0:
        return Outcome(0, State.COMPLETED, "it ended with 0", 0)
    if status > 128 and status - 128 in _FROM_OUTSIDE:
        return Outcome(code, State.LOST, f"ended from outside by {signal.Signals(status - 128).name}", status)
    return Outcome(code, State.FAILED, f"it ended with {status}", status)


def record(life: Life, outcome: Outcome, voice: Voice, *, in_store: bool, by_hand: bool) -> None:
    """Write down how the life ended: in the file of state and, with `in_store`, in the store, as far as they take it.

    `by_hand`: it is for a person to go on with it, and that person is told how.
    """
    now_ns = time.time_ns()
    completed = outcome.state in ENDED
    life.remember(
        state=outcome.state,
        pid=None,
        start_ticks=None,
        supervisor_pid=None,
        supervisor_ticks=None,
        exit_status=outcome.workload_status,
        reason=outcome.reason,
        changed_ns=now_ns,
    )
    if not in_store:
        return
    try:
        life.held.end(LifeEnd(now_ns, completed, outcome.workload_status, outcome.reason))
    except errors.StoreError as error:
        voice.warn_of(life.name, error, about=life.name, words=f"the store could not be told that this life ended: {error}")
    last = life.record.last_checkpoint
    if not by_hand:
        return
    if not completed and last is not None:
        how = f"perdure restore {life.name}" if life.record.adopted else "the same command"
        voice.say(f"{life.name} was ended: {outcome.reason}; {how} goes on from {last.id}")
    elif not completed:
        voice.say(f"{life.name} was ended: {outcome.reason}; there is no checkpoint")


def explain(error: errors.PerdureError, pause: str, *, asked: bool) -> str:
    """Return what to say of a checkpoint that was not made."""
    said = f"no checkpoint: {error.in_words}"
    if isinstance(error, errors.CheckpointLater):
        return said if asked else f"{said}; tried again every {pause}"
    return f"{said}; the workload goes on" + ("" if asked else f"; next try in {pause}")
