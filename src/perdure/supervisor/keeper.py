"""Keep one life going until it ends: what happens comes in here, what is to be done is decided here. Called by `start`.

One thread, one loop. Between checkpoints it sleeps until a descriptor, a signal or a deadline wakes it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

import msgspec

from perdure import errors
from perdure.base import text, units
from perdure.model.checkpoint import Manifest, Trigger
from perdure.supervisor import ending, engine, messages
from perdure.supervisor.allotment import Allotment
from perdure.supervisor.checkpointing import Checkpointing, Done
from perdure.supervisor.console import Console
from perdure.supervisor.control import Client, Server
from perdure.supervisor.ending import Outcome
from perdure.supervisor.foreground import Foreground
from perdure.supervisor.leases import Lease
from perdure.supervisor.life import Life
from perdure.supervisor.line import Line
from perdure.supervisor.messages import Answer, Event
from perdure.supervisor.reactor import READ, Reactor, Timer, now_s
from perdure.supervisor.record import LastCheckpoint, State
from perdure.supervisor.scheduler import Notice, Outlook, Scheduler, Standing
from perdure.supervisor.suspending import Suspending
from perdure.supervisor.triggers import Due, Triggers
from perdure.supervisor.voice import Voice

_RETRY_END_S = 10.0
"""Near the end of the allotted time a checkpoint that failed is tried again after this pause: a longer one may be too long."""
_LONGEST_LOOK_S = 30.0
"""The end of the allotted time is a time of day, which may be set: it is looked at again at least this often."""
_KILLED_S = 30.0
_MERCY_USED = 0.8
"""So much of the time between a scheduler's SIGTERM and its SIGKILL is used for saving; the rest is for ending the life in the store."""


class Keeper:
    """Keeps `life`. `end_ns` is when the allotted time ends, UTC; None: nobody says. `line` leads to whoever waits in another process.

    With a `scheduler`, which alone knows why it ends a job, that is asked before a SIGTERM and the end of the workload are judged.
    """

    def __init__(
        self,
        life: Life,
        reactor: Reactor,
        console: Console,
        voice: Voice,
        *,
        end_ns: int | None,
        line: Line | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._life = life
        self._reactor = reactor
        self._console = console
        self._voice = voice
        self._allotment = Allotment(
            scheduler, reactor, voice, end_ns=end_ns, changed=self._arm, noticed=self._announced, over=self._terminated
        )
        self._triggers = Triggers(life.options, now_s=now_s())
        self._checkpoints = Checkpointing(life, reactor, console, tell=self._tell, ended=self._checkpoint_ended)
        self._suspending = Suspending(life, reactor, changed=self._moved, lost=self._lost_by_driver)
        self._foreground = Foreground(reactor, console, life.tree.pid, before_going_on=self._before_going_on, line=line)
        self._lease = Lease(life, reactor, voice, lost=self._lost)
        self._timer: Timer | None = None
        self._grace: Timer | None = None
        self._clients: list[Client] = []
        self._next_clients: list[Client] = []
        self._current: Due | None = None
        self._stopping = ""
        """Why the workload is being ended; empty: it is not."""
        self._planned: Outcome | None = None
        """What it will have been, once the workload is gone, because it is saved."""
        self._is_gone = False
        """The workload has ended; why may still have to be asked."""
        self._terminating = False
        """SIGTERM came."""
        self._is_cancelled = False
        """The scheduler ends the job for good: nobody tries again."""
        self._is_resting = False
        """At the last checkpoint it had not run since the one before."""
        self._leaving = ""
        """Why the scheduler is to be told that the workload is saved; empty: it need not."""
        self._outcome: Outcome | None = None
        self._error: errors.PerdureError | None = None

    def run(self) -> Outcome:
        """Keep the workload until it ends or is given up. Raises `errors.StaleLife` when another life took over."""
        pidfd = os.pidfd_open(self._life.tree.pid)
        server = Server(self._reactor, self._life.folders.socket(self._life.name), self._asked)
        self._reactor.watch(pidfd, READ, lambda: self._gone(pidfd))
        self._voice.is_raw = lambda: self._foreground.is_raw
        try:
            with self._foreground.entered():
                self._console.start()
                self._lease.start()
                self._allotment.start()
                self._arm()
                while self._outcome is None:
                    self._reactor.turn()
            self._console.finish()
            self._wind_up()
        finally:
            self._reactor.forget(pidfd)
            os.close(pidfd)
            server.close()
        if self._error is not None:
            raise self._error
        return self._outcome

    def receive(self, number: int) -> None:
        """A signal came."""
        match number:
            case signal.SIGTERM if self._allotment.is_asked:
                self._terminated()
            case signal.SIGTERM | signal.SIGHUP:
                self._asked_to_leave(signal.Signals(number).name)
            case signal.SIGKILL:  # `line.GONE`
                self._give_up("the process that waited for it is gone")
            case signal.SIGUSR1:
                self._ask(Due(Trigger.SIGNAL, "SIGUSR1"))
            case signal.SIGWINCH:
                self._foreground.resized()
            case signal.SIGTSTP:
                self._foreground.asked_to_stop()
            case signal.SIGCONT:
                self._foreground.continued()
            case _:
                self._signal(signal.Signals(number))

    def _arm(self) -> None:
        """Begin what is due; else wait for it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_gone or self._stopping or self._checkpoints.phase is not None or self._suspending.goes_on():
            return
        now = now_s()
        end_ns = self._allotment.end_ns
        self._triggers.ends(now + (end_ns - time.time_ns()) / 1e9 if end_ns is not None else None, now_s=now)
        due = self._triggers.due(now)
        if due is not None:
            self._current = due
            self._clients, self._next_clients = self._next_clients, []
            self._checkpoints.begin(due)
            return
        pause_s = self._triggers.next_s() - now
        if end_ns is not None:
            pause_s = min(pause_s, _LONGEST_LOOK_S)
        if math.isfinite(pause_s):
            self._timer = self._reactor.after(max(pause_s, 0.0), self._arm)

    def _moved(self) -> None:
        """GPU memory was moved away or back, or was not."""
        if self._life.record.state is State.SUSPENDED:
            self._triggers.pause()
        else:
            self._triggers.go_on(now_s())
        self._arm()

    def _ask(self, due: Due) -> None:
        self._triggers.ask(due)
        self._arm()

    def _asked(self, request: messages.Request, client: Client) -> None:
        """Somebody asks over the socket."""
        match request:
            case messages.Status():
                client.tell(self._answer())
            case messages.Checkpoint(stop):
                if self._stopping:
                    raise errors.WorkloadMissing(f"{self._life.name} is being ended: {self._stopping}", hint="see perdure ps")
                self._next_clients.append(client)
                self._ask(Due(Trigger.STOP if stop else Trigger.REQUEST, "perdure checkpoint" + (" --stop" if stop else ""), stop=stop))
            case messages.Suspend() | messages.Resume():
                if self._stopping:
                    raise errors.WorkloadMissing(f"{self._life.name} is being ended: {self._stopping}", hint="see perdure ps")
                self._suspending.ask(request, client)
                self._arm()
            case messages.Stop(grace_s):
                self._next_clients.append(client)
                self._checkpoints.cancel("perdure stop")
                self._end_workload("perdure stop", grace_s)

    def _answer(self, checkpoint: LastCheckpoint | None = None) -> Answer:
        pause_s = self._triggers.next_s() - now_s()
        return Answer(
            state=self._life.record.state.value,
            epoch=self._life.epoch,
            pid=self._life.tree.pid,
            phase=self._checkpoints.phase,
            next_s=max(pause_s, 0.0) if math.isfinite(pause_s) else None,
            checkpoint=checkpoint or self._life.record.last_checkpoint,
        )

    def _tell(self, event: Event) -> None:
        self._voice.event(event)
        for client in self._clients:
            client.tell(event)

    def _announced(self, notice: Notice) -> None:
        """The scheduler will end the job before its time: save it while it can be."""
        left_s = max((notice.end_ns - time.time_ns()) / 1e9, 0.0)
        reason = f"{notice.reason}: it will be ended in {units.format_duration(left_s)}"
        self._voice.say(f"{self._life.name}: {reason}; saving it")
        self._ask(Due(Trigger.END, reason, stop=True))

    def _terminated(self) -> None:
        """SIGTERM came where a scheduler knows why."""
        if not self._terminating:
            self._terminating = True
            self._allotment.look(self._judged)

    def _judged(self, outlook: Outlook | None) -> None:
        """Do what SIGTERM asks for when the scheduler sees the job as `outlook` says."""
        standing = outlook.standing if outlook is not None else Standing.LEAVING
        if self._is_gone or self._stopping:
            return
        if standing in (Standing.RUNNING, Standing.SUSPENDED):
            # The scheduler goes on with the job: somebody meant the workload, unless it is how a preemption is announced, which we act on.
            self._terminating = False
            if outlook is None or outlook.notice is None or not outlook.returns:
                self._signal(signal.SIGTERM)
            return
        # What is not over then is cut off, and the next life would wait for this one's lease.
        grace_s = min(max(self._allotment.mercy_s * _MERCY_USED, 0.0), self._life.options.grace_s)
        if standing is Standing.CANCELLED:
            self._is_cancelled = True
            self._checkpoints.cancel("the job was cancelled")
            self._end_workload("the job was cancelled", grace_s)
            return
        self._voice.say(f"the job is being ended and may run again: saving {self._life.name}")
        self._grace = self._reactor.after(grace_s, lambda: self._give_up("the scheduler ends it now"))
        self._ask(Due(Trigger.STOP, "SIGTERM from the scheduler", stop=True))

    def _asked_to_leave(self, name: str) -> None:
        """SIGTERM or its like: save and stop; the second time, stop."""
        if self._grace is not None or self._stopping:
            self._give_up(f"{name} came again")
            return
        grace_s = self._life.options.grace_s
        self._voice.say(f"{name}: saving {self._life.name}, then ending it; again ends it at once")
        self._grace = self._reactor.after(grace_s, lambda: self._give_up(f"saving took longer than {units.format_duration(grace_s)}"))
        self._ask(Due(Trigger.STOP, name, stop=True))

    def _give_up(self, reason: str) -> None:
        self._checkpoints.cancel(reason)
        self._end_workload(reason, 0.0)

    def _checkpoint_ended(self, due: Due, ended: Done | errors.PerdureError) -> None:
        self._current = None
        match ended:
            case Done():
                self._committed(ended)
            case error:
                self._failed(due, error)
        self._clients = [client for client in self._clients if due.stop and isinstance(ended, Done)]
        self._arm()

    def _committed(self, done: Done) -> None:
        manifest = done.manifest
        last = LastCheckpoint.of(manifest, cost_s=done.whole_s)
        count = done.checkpoints if done.checkpoints is not None else self._life.record.checkpoints + 1
        self._life.remember(last_checkpoint=last, checkpoints=count, changed_ns=time.time_ns())
        self._triggers.committed(now_s(), stopped_s=last.stopped_s, whole_s=done.whole_s)
        self._allotment.warn_of_grace(done.whole_s)
        self._tell(Event("committed", self._life.name, time.time_ns(), checkpoint=last, durations_s=manifest.durations_s))
        self._tell_of_rest(manifest)
        if done.problem is not None:
            self._voice.say(f"{manifest.id} is saved, but older ones could not be removed: {done.problem}")
        if done.due.stop:
            self._leaving = done.due.reason if done.due.trigger is Trigger.END else ""
            self._outcome_after_kill(Outcome(ending.TRY_AGAIN, State.STOPPED, done.due.reason))
            return
        for client in self._clients:
            client.tell(self._answer(last))

    def _tell_of_rest(self, manifest: Manifest) -> None:
        """Say once that the workload stands still: whether it waits or hangs, a person knows."""
        if manifest.stood_still and not self._is_resting:
            self._voice.say(
                f"{self._life.name} has not run since the checkpoint before {manifest.id}: it waits for something, or hangs; "
                "what was saved before that is kept beside the newest"
            )
        self._is_resting = bool(manifest.stood_still)

    def _failed(self, due: Due, error: errors.PerdureError) -> None:
        self._tell(Event("failed", self._life.name, time.time_ns(), text=text.printable(str(error))))
        for client in self._clients:
            client.refuse(error)
        if isinstance(error, errors.WorkloadLost):
            # What is left of it cannot be trusted, however it ended or goes on.
            self._stopping = str(error)
            self._planned = Outcome(ending.TRY_AGAIN, State.LOST, str(error))
            self._leaving = str(error)
            if self._outcome is not None:
                self._outcome = self._planned
            self._kill()
        if self._is_gone or self._stopping or isinstance(error, errors.ProcessGone):
            return
        if due.stop and due.trigger is not Trigger.END:
            if any(client for client in self._clients) and self._grace is None:
                return  # who asked for it has been told, and the workload goes on
            self._voice.say(f"no checkpoint: {error}; passing SIGTERM on")
            self._end_workload("SIGTERM, and no checkpoint could be made", self._life.options.grace_s)
            return
        pause_s = self._triggers.failed(now_s())
        if due.trigger is Trigger.END:
            pause_s = _RETRY_END_S
            self._reactor.after(pause_s, lambda: self._ask(due))
        self._voice.say(ending.explain(error, units.format_duration(pause_s), asked=due.trigger is not Trigger.INTERVAL))

    def _lost_by_driver(self, error: errors.WorkloadLost) -> None:
        """What is left of the workload cannot be trusted, however it ended or goes on."""
        self._stopping = str(error)
        self._planned = Outcome(ending.TRY_AGAIN, State.LOST, str(error))
        if self._outcome is not None:
            self._outcome = self._planned
        self._kill()

    def _end_workload(self, reason: str, grace_s: float) -> None:
        """Ask the workload to end, and make it after `grace_s`."""
        self._stopping = self._stopping or reason
        if self._grace is not None:
            self._grace.cancel()
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            self._grace = self._reactor.after(grace_s, self._kill)
        else:
            self._kill()

    def _kill(self) -> None:
        try:
            engine.end(self._life)
        except errors.WorkloadBusy as error:
            self._voice.say(str(error))

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._life.tree.pid, number)

    def _outcome_after_kill(self, outcome: Outcome) -> None:
        """The workload is saved: end it, and with it the life. It may have been ended already, by somebody who did not wait."""
        self._planned = outcome
        if self._outcome is not None:
            self._outcome = outcome
        self._stopping = outcome.reason
        self._kill()

    def _gone(self, pidfd: int) -> None:
        """The workload's init has ended, and with it its whole PID namespace."""
        self._reactor.forget(pidfd)
        self._is_gone = True
        status = ending.reap(self._life.tree.pid)
        self._checkpoints.tree_ended()
        ran_out = self._lease.close()
        if ran_out is not None and self._error is None:
            self._lost(ran_out)
        if self._planned is not None or self._stopping or not self._allotment.is_asked:
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
        self._outcome = self._planned or ending.of(status, stopping=self._stopping, has_checkpoint=has_checkpoint, interrupted=interrupted)

    def _lost(self, error: errors.PerdureError) -> None:
        """Another life took over, or may have: this one must not act any more."""
        self._error = error
        if isinstance(error.__cause__, errors.StoreError):
            # Nobody is known to have taken over: the next life goes on from the newest checkpoint once the store is there again.
            self._leaving = str(error)
        self._checkpoints.cancel(str(error))
        self._stopping = str(error)
        self._kill()

    def _before_going_on(self) -> None:
        self._lease.renew_now()

    def _wind_up(self) -> None:
        """Let what is going on come to its end, and tell who waits."""
        end_s = now_s() + _KILLED_S
        while self._checkpoints.outlives_the_tree or ((self._checkpoints.phase is not None or self._lease.is_busy) and now_s() < end_s):
            self._reactor.turn()
        outcome = self._outcome
        if outcome is None:
            return
        if self._error is not None:
            outcome = Outcome(self._error.exit_status, State.LOST, str(self._error))
        ending.record(self._life, outcome, self._voice, in_store=self._error is None, by_hand=not self._allotment.is_asked)
        self._leave()
        self._suspending.refuse(errors.WorkloadMissing(f"{self._life.name} has ended: {outcome.reason}", hint="see perdure ps"))
        self._tell(Event("ended", self._life.name, time.time_ns(), text=outcome.reason))
        for client in (*self._clients, *self._next_clients):
            client.tell(msgspec.structs.replace(self._answer(), pid=None))

    def _leave(self) -> None:
        """Let the scheduler put the job into its queue again, now that a new life need not wait for this one."""
        if not self._leaving:
            self._allotment.close()
            return
        gone = [False]
        self._allotment.leave(self._leaving, lambda: gone.__setitem__(0, True))
        while not gone[0]:
            self._reactor.turn()
