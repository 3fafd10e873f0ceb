"""Keep one life going until it ends: what happens comes in here, what is to be done is decided here. Called by `start`.

One thread, one loop. Between checkpoints it sleeps until a descriptor, a signal or a deadline wakes it.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable

import msgspec

from perdure import errors
from perdure.base import text, units
from perdure.checkpoint import aftermath
from perdure.checkpoint.preflight import codes
from perdure.model.checkpoint import Manifest, Trigger
from perdure.model.finding import Finding
from perdure.supervisor import cautions, ending, messages, signals
from perdure.supervisor.allotment import Allotment
from perdure.supervisor.askers import Askers
from perdure.supervisor.checkpointing import Checkpointing, Done
from perdure.supervisor.console import Console
from perdure.supervisor.control import Client, Server
from perdure.supervisor.departure import Departure
from perdure.supervisor.ending import Outcome
from perdure.supervisor.foreground import Foreground
from perdure.supervisor.leases import Lease
from perdure.supervisor.life import Life
from perdure.supervisor.line import Line
from perdure.supervisor.messages import Answer, Event
from perdure.supervisor.reactor import READ, Reactor, Timer, now_s
from perdure.supervisor.record import LastCheckpoint, State
from perdure.supervisor.scheduler import Notice, Scheduler
from perdure.supervisor.suspending import Suspending
from perdure.supervisor.triggers import Due, Triggers
from perdure.supervisor.voice import Voice

_RETRY_END_S = 10.0
"""Near the end of the allotted time a checkpoint that failed is tried again after this pause: a longer one may be too long."""
_LONGEST_LOOK_S = 30.0
"""The end of the allotted time is a time of day, which may be set: it is looked at again at least this often."""
_KILLED_S = 30.0


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
            scheduler,
            reactor,
            voice,
            workload=life.name,
            end_ns=end_ns,
            changed=self._arm,
            noticed=self._announced,
            over=self._overdue,
        )
        self._triggers = Triggers(life.options, now_s=now_s())
        self._checkpoints = Checkpointing(life, reactor, console, tell=self._tell, ended=self._checkpoint_ended)
        self._departure = Departure(life, reactor, voice, self._allotment, save=self._ask, cancel=self._checkpoints.cancel)
        self._suspending = Suspending(life, reactor, changed=self._moved, lost=self._departure.lost)
        self._foreground = Foreground(reactor, console, life.tree.pid, before_going_on=self._before_going_on, line=line)
        self._lease = Lease(life, reactor, voice, lost=self._departure.replaced)
        self._timer: Timer | None = None
        self._askers = Askers()
        self._is_resting = False
        """At the last checkpoint it had not run since the one before."""
        self._warnings: tuple[Finding, ...] = ()
        """Those of the last checkpoint."""
        self._said_of_delay = ""
        """Why it was not the moment for the last one, as it was said; empty: it was."""

    def run(self, begun: Callable[[], None]) -> Outcome:
        """Keep the workload until it ends or is given up. Raises `errors.StaleLife` when another life took over.

        `begun` is called as soon as others can ask for things to be done to it.
        """
        pidfd = os.pidfd_open(self._life.tree.pid)
        server = Server(self._reactor, self._life.folders.socket(self._life.name), self._asked)
        self._reactor.watch(pidfd, READ, lambda: self._gone(pidfd))
        self._voice.is_raw = lambda: self._foreground.is_raw
        try:
            begun()
            with self._foreground.entered():
                self._console.start()
                self._lease.start()
                self._allotment.start()
                self._arm()
                while self._departure.outcome is None:
                    self._reactor.turn()
                # What was written last needs the terminal as it was when it was written.
                self._console.finish()
            server.hold()
            self._wind_up()
        finally:
            self._reactor.forget(pidfd)
            os.close(pidfd)
            server.close()
        if self._departure.error is not None:
            raise self._departure.error
        return self._departure.outcome

    def receive(self, number: int) -> None:
        """A signal came."""
        match number:
            case signal.SIGTERM if self._allotment.is_asked:
                self._departure.terminated()
            case number if self._allotment.is_asked and number in signals.OF_THE_JOB:
                self._departure.pass_on(number)
            case signal.SIGTERM | signal.SIGHUP:
                self._departure.asked(signal.Signals(number).name)
            case signal.SIGKILL:  # `line.GONE`
                self._departure.give_up("the process that waited for it is gone")
            case signal.SIGUSR1:
                self._ask(Due(Trigger.SIGNAL, "SIGUSR1"))
            case signal.SIGWINCH:
                self._foreground.resized()
            case signal.SIGTSTP:
                self._foreground.asked_to_stop()
            case signal.SIGCONT:
                self._foreground.continued()
            case _:
                self._departure.signal(number)

    def _arm(self) -> None:
        """Begin what is due; else wait for it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._departure.is_gone or self._departure.reason or self._checkpoints.phase is not None or self._suspending.goes_on():
            return
        now = now_s()
        end_ns = self._allotment.end_ns
        self._triggers.ends(now + (end_ns - time.time_ns()) / 1e9 if end_ns is not None else None, now_s=now)
        due = self._triggers.due(now)
        if due is not None:
            self._askers.begin()
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
        self._checkpoints.make_way()
        self._arm()

    def _asked(self, request: messages.Request, client: Client) -> None:
        """Somebody asks over the socket."""
        match request:
            case messages.Status():
                client.tell(self._answer())
            case messages.Checkpoint(stop):
                self._require_staying()
                self._askers.add(client)
                self._ask(Due(Trigger.STOP if stop else Trigger.REQUEST, "perdure checkpoint" + (" --stop" if stop else ""), stop=stop))
            case messages.Suspend() | messages.Resume():
                self._require_staying()
                self._checkpoints.make_way()
                self._suspending.ask(request, client)
                self._arm()
            case messages.Stop(grace_s):
                self._askers.add(client)
                self._checkpoints.cancel("perdure stop")
                self._departure.end("perdure stop", grace_s)

    def _require_staying(self) -> None:
        if self._departure.reason:
            raise errors.WorkloadMissing(f"{self._life.name} is being ended: {self._departure.reason}", hint="see perdure ps")

    def _answer(self, checkpoint: LastCheckpoint | None = None) -> Answer:
        pause_s = self._triggers.next_s() - now_s()
        return Answer(
            state=self._life.record.state.value,
            epoch=self._life.epoch,
            pid=self._life.tree.pid,
            phase=self._checkpoints.phase,
            next_s=max(pause_s, 0.0) if math.isfinite(pause_s) else None,
            checkpoint=checkpoint or self._life.record.last_checkpoint,
            warnings=cautions.fitting(self._warnings),
            warnings_in_all=len(self._warnings),
        )

    def _tell(self, event: Event) -> None:
        self._voice.event(event)
        self._askers.tell(event)

    def _announced(self, notice: Notice) -> None:
        """The scheduler will end the job before its time: save it while it can be."""
        left_s = max((notice.end_ns - time.time_ns()) / 1e9, 0.0)
        reason = f"{notice.reason}: it will be ended in {units.format_duration(left_s)}"
        self._voice.say(f"{self._life.name}: {reason}; saving it")
        self._ask(Due(Trigger.END, reason, stop=True))

    def _overdue(self) -> None:
        """The scheduler has ended the job, and its SIGTERM did not come this way."""
        self._departure.terminated()

    def _checkpoint_ended(self, due: Due, ended: Done | errors.PerdureError | None) -> None:
        match ended:
            case Done():
                self._committed(ended)
            case errors.PerdureError():
                self._failed(due, ended)
        if not (due.stop and isinstance(ended, Done)):
            self._askers.release()
        self._arm()

    def _committed(self, done: Done) -> None:
        manifest = done.manifest
        last = LastCheckpoint.of(manifest, cost_s=done.whole_s)
        count = done.checkpoints if done.checkpoints is not None else self._life.record.checkpoints + 1
        self._life.remember(last_checkpoint=last, checkpoints=count, changed_ns=time.time_ns())
        self._said_of_delay = ""
        self._warnings = done.warnings
        self._triggers.committed(now_s(), stopped_s=last.stopped_s, whole_s=done.whole_s)
        self._allotment.warn_of_grace(done.whole_s)
        self._tell(Event("committed", self._life.name, time.time_ns(), checkpoint=last, durations_s=manifest.durations_s))
        self._tell_of_rest(manifest)
        if done.problem is not None:
            words = f"{manifest.id} is saved, but older ones could not be removed: {done.problem}"
            self._voice.warn_of(self._life.name, done.problem, about=str(manifest.id), words=words)
        if done.due.stop:
            self._departure.to_scheduler = done.due.reason if done.due.trigger is Trigger.END else ""
            self._departure.saved(Outcome(ending.TRY_AGAIN, State.STOPPED, done.due.reason))
            return
        self._askers.tell(self._answer(last))

    def _tell_of_rest(self, manifest: Manifest) -> None:
        """Say once that the workload stands still: whether it waits or hangs, a person knows."""
        if manifest.stood_still and not self._is_resting:
            stopped = [f"{fact.command} ({fact.host_pid})" for fact in manifest.processes if fact.stopped]
            why = f"{', '.join(stopped)} stopped (kill -CONT lets it go on)" if stopped else "it waits for something, or hangs"
            message = (
                f"{self._life.name} has not run since the checkpoint before {manifest.id}: {why}; "
                "what was saved before that is kept beside the newest"
            )
            self._voice.warn(self._life.name, codes.finding("process-still", self._life.name, message), words=message)
        self._is_resting = bool(manifest.stood_still)

    def _failed(self, due: Due, error: errors.PerdureError) -> None:
        said, remedy = text.printable(str(error)), text.printable(error.hint)
        self._tell(Event("failed", self._life.name, time.time_ns(), text=said, code=error.code, remedy=remedy))
        self._askers.refuse(error)
        if isinstance(error, errors.WorkloadLost):
            self._lost(error)
        if self._departure.is_gone or self._departure.reason or isinstance(error, errors.ProcessGone):
            return
        if due.stop and due.trigger is not Trigger.END:
            if self._askers.are_there and not self._departure.is_asked_for:
                return  # who asked for it has been told, and the workload goes on
            self._voice.say(f"no checkpoint: {error}; passing SIGTERM on")  # programs have heard that it failed
            self._departure.end("SIGTERM, and no checkpoint could be made", self._life.options.grace_s)
            return
        is_put_off = isinstance(error, errors.CheckpointLater)
        pause_s = self._triggers.put_off(now_s()) if is_put_off else self._triggers.failed(now_s())
        if due.trigger is Trigger.END:
            pause_s = _RETRY_END_S
            self._reactor.after(pause_s, lambda: self._ask(due))
        words = ending.explain(error, units.format_duration(pause_s), asked=due.trigger is not Trigger.INTERVAL)
        # A workload may be stopped for days.
        if words != self._said_of_delay:
            self._voice.say(words)
        self._said_of_delay = words if is_put_off else ""

    def _lost(self, error: errors.WorkloadLost) -> None:
        self._departure.to_scheduler = str(error)
        self._departure.lost(error)

    def _gone(self, pidfd: int) -> None:
        """The workload's init has ended, and with it its whole PID namespace."""
        self._reactor.forget(pidfd)
        status = self._departure.reap()
        self._checkpoints.tree_ended()
        ran_out = self._lease.close()
        if ran_out is not None and self._departure.error is None:
            self._departure.replaced(ran_out)
        if status == 128 + aftermath.BROKEN and self._checkpoints.may_have_broken_it:
            # Where the kernel tells it, the dump knows for each process; of the first one we know in any case.
            self._lost(errors.WorkloadLost("CRIU lost hold of the workload while it dumped, and it died of that"))
        self._departure.judge(status)

    def _before_going_on(self) -> None:
        self._lease.renew_now()

    def _wind_up(self) -> None:
        """Let what is going on come to its end, and tell who waits."""
        end_s = now_s() + _KILLED_S
        while self._checkpoints.outlives_the_tree or ((self._checkpoints.phase is not None or self._lease.is_busy) and now_s() < end_s):
            self._reactor.turn()
        outcome, error = self._departure.outcome, self._departure.error
        if outcome is None:
            return
        if error is not None:
            outcome = Outcome(error.exit_status, State.LOST, str(error))
        ending.record(self._life, outcome, self._voice, in_store=error is None, by_hand=not self._allotment.is_asked)
        self._leave()
        self._suspending.refuse(errors.WorkloadMissing(f"{self._life.name} has ended: {outcome.reason}", hint="see perdure ps"))
        self._tell(Event("ended", self._life.name, time.time_ns(), text=outcome.reason))
        self._askers.tell_all(msgspec.structs.replace(self._answer(), pid=None))

    def _leave(self) -> None:
        """Let the scheduler put the job into its queue again, now that a new life need not wait for this one."""
        if not self._departure.to_scheduler:
            self._allotment.close()
            return
        gone = [False]
        self._allotment.leave(self._departure.to_scheduler, lambda: gone.__setitem__(0, True))
        while not gone[0]:
            self._reactor.turn()
