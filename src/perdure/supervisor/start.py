"""From what a person asked for to a workload that runs and is kept: new, or gone on with. Called by `run` and `restore`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import acting, units
from perdure.base.proc import process
from perdure.checkpoint import namespaces
from perdure.checkpoint.criu import locate
from perdure.model import checkpoint as model
from perdure.supervisor import background, interval, lock, naming, place, rated, register, repair, signals, state, wire
from perdure.supervisor.background import Started, Starter
from perdure.supervisor.beginning import Beginning
from perdure.supervisor.console import Console
from perdure.supervisor.early import Early, Left, Surroundings, take_leave
from perdure.supervisor.keeper import Keeper
from perdure.supervisor.life import Life
from perdure.supervisor.messages import Event
from perdure.supervisor.metrics import Metrics
from perdure.supervisor.origin import Origin
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.record import Options, Workload
from perdure.supervisor.resume import Source
from perdure.supervisor.scheduler import Begun, Scheduler
from perdure.supervisor.signals import Inbox
from perdure.supervisor.succession import Completed, Succession
from perdure.supervisor.task import Task
from perdure.supervisor.voice import Voice
from perdure.supervisor.wanted import Setup, Wanted

_PATIENCE_S = 900.0
"""A scheduler that lost sight of a copy asks it to leave within minutes of seeing it again."""
_AGAIN_S = 3.0


def run(wanted: Wanted, setup: Setup, *, detach: bool, voice: Voice) -> int:
    """Do what is wanted and keep the workload until it ends; returns what the command ends with.

    With `detach` it returns 0 as soon as the workload runs. Raises what forbids it; nothing runs then.
    """
    name = name_of(wanted)
    if wanted.owner is not None:
        _prepare_for_owner(wanted)
    setup.folders.make(name)
    if not detach:
        return _start(name, wanted, setup, voice, None)
    answer = background.split(setup.folders.messages(name))
    if isinstance(answer, Started):
        if answer.ended:
            voice.say(answer.ended)
            return answer.status
        came = f" from {answer.restored_from}" if answer.restored_from else ""
        voice.say(f"{answer.name} runs in the background{came}; see perdure logs -f {answer.name}")
        return 0
    try:
        return _start(name, wanted, setup, voice, answer)
    except errors.PerdureError as error:
        answer.tell(Started(error=wire.document(error)))
        raise


def _prepare_for_owner(wanted: Wanted) -> None:
    """See that this process is fit to keep another user's workload. Raises `errors.Unsupported` for what root alone may ask."""
    if wanted.adopt is not None:
        raise errors.Unsupported("a process that runs already can be taken over by root alone", hint="start the command with perdure run")
    # Root's keys are not for what is started here, or brought back.
    acting.leave_keyring()


def name_of(wanted: Wanted) -> str:
    """Return the name of the workload that is wanted. Raises for one that is none."""
    if wanted.name is not None:
        return model.check_name(wanted.name)  # it becomes part of paths, and may be a user's word
    return naming.derive(wanted.command or process.command_line(wanted.adopt or 0), wanted.working_directory)


def _start(name: str, wanted: Wanted, setup: Setup, voice: Voice, starter: Starter | None) -> int:
    """Begin a life of the workload `name`, and keep it until it ends."""
    of_the_job = signals.OF_THE_JOB if setup.scheduler is not None and wanted.line is not None else frozenset()
    with contextlib.closing(Reactor()) as reactor, signals.delivered(reactor, wanted.line, passed_over=of_the_job) as inbox:
        early = Early(reactor, inbox, voice, name, scheduler=setup.scheduler)
        try:
            early.begin()
            with lock.held(setup.folders.lock(name), name), state.opened(setup.folders.database) as database:
                task = Task(name, wanted, setup, voice, reactor, early, database, in_background=starter is not None)
                return _Start(task, inbox, starter).keep()
        except Left as left:
            return _leave(left, name, voice, starter, setup.scheduler)
        finally:
            early.close()
            voice.clear()


def _leave(left: Left, name: str, voice: Voice, starter: Starter | None, scheduler: Scheduler | None) -> int:
    """Somebody asked for the end before there was anything to end."""
    told = take_leave(scheduler, left, f"{left.name}: nothing of {name} was started")
    voice.say(told)
    if starter is not None:
        starter.tell(Started(name, ended=told, status=left.status))
    return left.status


class _Start:
    """Begins a life, however many tries that takes, and has it kept."""

    def __init__(self, task: Task, inbox: Inbox, starter: Starter | None) -> None:
        self._task = task
        self._inbox = inbox
        self._name = task.name
        self._wanted = task.wanted
        self._setup = task.setup
        self._voice = task.voice
        self._starter = starter
        self._patient_until_s = time.monotonic() + _PATIENCE_S
        self._has_waited = False
        self._rated_for = ""
        """For what size the site's history told the mean time to failure, in words."""

    def keep(self) -> int:
        """Begin, and keep the workload until it ends."""
        task, wanted = self._task, self._wanted
        repair.repair(self._name, task.database, task.folders, self._voice, adopting=wanted.adopt)
        repair.sweep(task.database, task.folders, self._voice)
        record = register.starting(self._name, wanted, task.database.get(self._name), time.time_ns())
        where = self._setup.place(record)
        with place.opened(where, create=not wanted.must_resume) as repository:
            regardless = wanted.fresh or wanted.adopt is not None or wanted.origin is not None
            surroundings = Surroundings(task.early)
            succession = Succession(repository, self._name, regardless=regardless, surroundings=surroundings, voice=self._voice)
            options = msgspec.structs.replace(self._rated(record.options), key_file=where.key_file)
            record = msgspec.structs.replace(record, store=where.url, options=options)
            while True:
                task.early.begin()
                try:
                    ended = self._live(record, where, succession)
                    return ended if isinstance(ended, int) else self._pass_on(record, ended)
                except errors.CheckpointDamaged as error:
                    # Nothing runs, and the damaged one is not taken again: each turn there is one candidate less.
                    self._voice.warn_of(self._name, error, about=self._name, words=str(error))
                except errors.RestoreRefused as error:
                    if not any(error is known for known in task.damage.outlived.values()):
                        raise
                except errors.WorkloadBusy as error:
                    self._wait_for_the_other(error)

    def _rated(self, options: Options) -> Options:
        """Return `options` with what the site's history knows of workloads of this size, where that counts."""
        seconds = None
        if self._setup.rates is not None and options.every == "auto" and options.mttf_s is None:
            try:
                found = rated.mttf_s(rated.read(self._setup.rates), self._wanted.environment)
            except errors.InputError as error:
                # The site's mistake, which keeps nobody from running.
                self._voice.warn_of(self._name, error, about=self._setup.rates, words=f"{error.in_words}; it is passed over")
            else:
                if found is not None:
                    seconds, self._rated_for = found
        return msgspec.structs.replace(options, rated_mttf_s=seconds)

    def _wait_for_the_other(self, error: errors.WorkloadBusy) -> None:
        """Wait a while where a scheduler has given this workload to us: its copy elsewhere hears of that, or loses its lease, and ends.

        Raises `error` where there is no scheduler, or that has taken too long.
        """
        if self._setup.scheduler is None or time.monotonic() > self._patient_until_s:
            raise error
        if not self._has_waited:
            self._has_waited = True
            self._voice.say(f"{error}; waiting for its end")
        self._task.early.pause(_AGAIN_S)

    def _live(self, record: Workload, where: place.Place, succession: Succession) -> int | Completed:
        completed = succession.look()
        if completed is not None:
            return completed
        places = self._setup.criu()
        criu = locate.find(places)
        namespaces.become_subreaper()
        with Origin(self._task, succession.repository).taken_out() as restoring:
            begun = Beginning(self._task, record, where, restoring).begin(succession, places, criu)
            source = restoring.source if restoring is not None else None
        if isinstance(begun, Completed):
            return begun
        return self._keep(*begun, source)

    def _keep(self, life: Life, streams: Console, source: Source | None) -> int:
        if self._wanted.metrics is not None:
            self._voice.listeners.append(self._metrics(self._wanted.metrics, life.epoch))
        self._voice.clear()
        wanted, scheduler = self._wanted, self._setup.scheduler
        keeper = Keeper(life, self._task.reactor, streams, self._voice, end_ns=wanted.end_ns, line=wanted.line, scheduler=scheduler)
        self._inbox.hand_to(keeper.receive)
        try:
            return keeper.run(lambda: self._say_begun(life, source)).status
        finally:
            streams.close()

    def _metrics(self, path: str, epoch: int) -> Callable[[Event], None]:
        """Return who writes figures to `path`, with the owner's rights."""
        metrics, owner = Metrics(Path(path), self._name, epoch), self._wanted.owner

        def see(event: Event) -> None:
            with acting.as_owner(owner):
                metrics.see(event)

        return see

    def _pass_on(self, record: Workload, completed: Completed) -> int:
        """The workload ended by itself elsewhere, meanwhile: return what it ended with."""
        told = f"{self._name} ended meanwhile, in its life {completed.epoch}: {completed.end.reason}; nothing was started"
        self._task.database.put(register.completed(record, completed, time.time_ns()))
        self._voice.say(told)
        self._voice.event(Event("ended", self._name, time.time_ns(), text=completed.end.reason))
        if self._starter is not None:
            self._starter.tell(Started(self._name, completed.epoch, ended=told, status=completed.status))
        return completed.status

    def _say_begun(self, life: Life, source: Source | None) -> None:
        options, scheduler = life.options, self._setup.scheduler
        if scheduler is not None:
            came = source.id if source else None
            begun = Begun(workload=self._name, epoch=life.epoch, restored_from=came, hostname=life.held.life.hostname)
            for line in scheduler.lines(begun):
                self._voice.say(line)
        elif source is not None:
            self._voice.say(f"{self._name} goes on from {source.id}, life {life.epoch}")
        if life.record.adopted:
            self._voice.say(f"{self._name}: process {life.tree.pid} is kept from now on; what it writes goes where it went before")
        if options.every == "auto":
            mttf_s = interval.mttf_s(options.mttf_s, options.rated_mttf_s)
            told = f" (the history's, of {self._rated_for})" if options.rated_mttf_s else " (assumed; say better with --mttf)"
            self._voice.say(
                f"{self._name}: a checkpoint every {units.format_duration(interval.best_s(mttf_s, interval.ASSUMED_COST_S))} at first, "
                f"then as its cost asks for at a mean time to failure of {units.format_duration(mttf_s)}{'' if options.mttf_s else told}"
            )
        self._voice.event(Event("running", self._name, time.time_ns(), text=str(source.id) if source else ""))
        if self._starter is not None:
            self._starter.tell(Started(self._name, life.epoch, str(source.id) if source else None))
