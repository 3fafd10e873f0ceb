"""How a workload comes to its end: asked to leave, ended by its scheduler, lost, or by itself; and what its life has been then.

Called by `keeper`, which makes the checkpoints that a departure asks for, and winds up when there is an outcome.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

from perdure import errors
from perdure.base import units
from perdure.checkpoint import launch, tree
from perdure.model.checkpoint import Trigger
from perdure.supervisor import ending, engine
from perdure.supervisor.allotment import Allotment
from perdure.supervisor.ending import Outcome
from perdure.supervisor.life import Life
from perdure.supervisor.reactor import Reactor, Timer, now_s
from perdure.supervisor.record import State
from perdure.supervisor.scheduler import Outlook, Standing
from perdure.supervisor.triggers import Due
from perdure.supervisor.voice import Voice

_MERCY_USED = 0.8
"""So much of the time between a scheduler's SIGTERM and its SIGKILL is used for saving; the rest is for ending the life in the store."""


class Departure:
    """Ends the workload of `life` in one way or another. `save` asks for a checkpoint, `cancel` ends the one that is being made."""

    def __init__(
        self,
        life: Life,
        reactor: Reactor,
        voice: Voice,
        allotment: Allotment,
        *,
        save: Callable[[Due], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._life = life
        self._reactor = reactor
        self._voice = voice
        self._allotment = allotment
        self._save = save
        self._cancel = cancel
        self._grace: Timer | None = None
        self._planned: Outcome | None = None
        """What it will have been, once the workload is gone, because it is saved."""
        self._terminating = False
        """SIGTERM came."""
        self._terminated_s = 0.0
        """When it did: the scheduler counts from there."""
        self._is_cancelled = False
        """The scheduler ends the job for good: nobody tries again."""
        self.reason = ""
        """Why the workload is being ended; empty: it is not."""
        self.is_gone = False
        """The workload has ended; why may still have to be asked."""
        self.to_scheduler = ""
        """Why the scheduler is to be told that the workload is saved; empty: it need not."""
        self.outcome: Outcome | None = None
        """How it ended; None: it has not, or that is not known yet."""
        self.error: errors.PerdureError | None = None
        """Why this life must not act any more."""

    @property
    def is_asked_for(self) -> bool:
        """Tell whether somebody asked for the end, and time runs for it."""
        return self._grace is not None

    def terminated(self) -> None:
        """SIGTERM came where a scheduler knows why."""
        if not self._terminating:
            self._terminating, self._terminated_s = True, now_s()
            self._allotment.look(self._judged)

    def _judged(self, outlook: Outlook | None) -> None:
        """Do what SIGTERM asks for when the scheduler sees the job as `outlook` says."""
        standing = outlook.standing if outlook is not None else Standing.LEAVING
        if self.is_gone or self.reason:
            return
        if standing in (Standing.RUNNING, Standing.SUSPENDED):
            # The scheduler goes on with the job: somebody meant the workload, unless it is how a preemption is announced, which we act on.
            self._terminating = False
            if outlook is None or outlook.notice is None or not outlook.returns:
                self.pass_on(signal.SIGTERM)
            return
        # What is not over then is cut off, and the next life would wait for this one's lease.
        left_s = self._allotment.mercy_s * _MERCY_USED - (now_s() - self._terminated_s)
        grace_s = min(max(left_s, 0.0), self._life.options.grace_s)
        if standing is Standing.CANCELLED:
            self._is_cancelled = True
            self._cancel("the job was cancelled")
            self.end("the job was cancelled", grace_s)
            return
        self._voice.say(f"the job is being ended and may run again: saving {self._life.name}")
        self._grace = self._reactor.after(grace_s, lambda: self.give_up("the scheduler ends it now"))
        self._save(Due(Trigger.STOP, "SIGTERM from the scheduler", stop=True))

    def asked(self, name: str) -> None:
        """SIGTERM or its like, `name`: save and stop; the second time, stop."""
        if self._grace is not None or self.reason:
            self.give_up(f"{name} came again")
            return
        grace_s = self._life.options.grace_s
        self._voice.say(f"{name}: saving {self._life.name}, then ending it; again ends it at once")
        self._grace = self._reactor.after(grace_s, lambda: self.give_up(f"saving took longer than {units.format_duration(grace_s)}"))
        self._save(Due(Trigger.STOP, name, stop=True))

    def give_up(self, reason: str) -> None:
        """End it at once, and what is being saved of it."""
        self._cancel(reason)
        self.end(reason, 0.0)

    def end(self, reason: str, grace_s: float) -> None:
        """Ask the workload to end, and make it after `grace_s`."""
        self.reason = self.reason or reason
        if self._grace is not None:
            self._grace.cancel()
        if grace_s > 0:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
            self._grace = self._reactor.after(grace_s, self._kill)
        else:
            self._kill()

    def signal(self, number: int) -> None:
        """Send a signal to the workload."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._life.tree.pid, number)

    def pass_on(self, number: int) -> None:
        """Send a signal to the command, and to nothing that it started: that is who a scheduler, and its users, mean by a job's script."""
        tree.send_to_child(self._life.tree, launch.first_pid(self._life.name), number)

    def saved(self, outcome: Outcome) -> None:
        """The workload is saved: end it, and with it the life. It may have been ended already, by somebody who did not wait."""
        self._planned = outcome
        if self.outcome is not None:
            self.outcome = outcome
        self.reason = outcome.reason
        self._kill()

    def lost(self, error: errors.WorkloadLost) -> None:
        """What is left of the workload cannot be trusted, however it ended or goes on."""
        self.saved(Outcome(ending.TRY_AGAIN, State.LOST, str(error)))

    def replaced(self, error: errors.PerdureError) -> None:
        """Another life took over, or may have: this one must not act any more."""
        self.error = error
        if isinstance(error.__cause__, errors.StoreError):
            # Nobody is known to have taken over: the next life goes on from the newest checkpoint once the store is there again.
            self.to_scheduler = str(error)
        self._cancel(str(error))
        self.reason = str(error)
        self._kill()

    def reap(self) -> int | None:
        """The workload's init has ended, and with it its whole PID namespace. Returns its status, if it was our child."""
        self.is_gone = True
        return ending.reap(self._life.tree.pid)

    def judge(self, status: int | None) -> None:
        """Find out what it means that the workload ended with `status`: `outcome` is there soon."""
        if self._planned is not None or self.reason or not self._allotment.is_asked:
            self._end_with(status, interrupted=False)
        else:
            self._allotment.look(lambda outlook: self._end_with(status, interrupted=self._was_interrupted(outlook)))

    def _was_interrupted(self, outlook: Outlook | None) -> bool:
        """Tell whether the workload, which ended, did so because its job was being ended."""
        if outlook is None:
            return self._terminating
        return outlook.standing in (Standing.LEAVING, Standing.CANCELLED)

    def _end_with(self, status: int | None, *, interrupted: bool) -> None:
        has_checkpoint = self._life.record.last_checkpoint is not None and not self._is_cancelled
        self.outcome = self._planned or ending.of(status, stopping=self.reason, has_checkpoint=has_checkpoint, interrupted=interrupted)

    def _kill(self) -> None:
        try:
            engine.end(self._life)
        except errors.WorkloadBusy as error:
            self._voice.say(str(error))
