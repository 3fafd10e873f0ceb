"""From what a person asked for to a workload that runs and is kept: new, or gone on with. Called by `run` and `restore`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import acting, files, units
from perdure.base.proc import machine, process
from perdure.checkpoint import namespaces
from perdure.checkpoint.criu import locate
from perdure.checkpoint.tree import Tree
from perdure.model import checkpoint as model
from perdure.model.checkpoint import LifeEnd
from perdure.store.lives import HeldLife
from perdure.store.owners import Linux
from perdure.supervisor import (
    allocation,
    background,
    beginning,
    gate,
    handback,
    interval,
    leases,
    lock,
    naming,
    place,
    repair,
    resume,
    signals,
    state,
    terminal,
    wire,
    wiring,
)
from perdure.supervisor.background import Started, Starter
from perdure.supervisor.console import Console
from perdure.supervisor.keeper import Keeper
from perdure.supervisor.life import Life
from perdure.supervisor.log import Log
from perdure.supervisor.messages import Event
from perdure.supervisor.metrics import Metrics
from perdure.supervisor.origin import Origin
from perdure.supervisor.reactor import Reactor
from perdure.supervisor.record import ENDED, LastCheckpoint, Options, State, Workload
from perdure.supervisor.restoring import Restoring
from perdure.supervisor.resume import Source
from perdure.supervisor.scheduler import Begun
from perdure.supervisor.state import Database
from perdure.supervisor.succession import Completed, Succession
from perdure.supervisor.voice import Voice
from perdure.supervisor.wanted import Setup, Wanted

_PATIENCE_S = 900.0
"""A scheduler that lost sight of a copy asks it to leave within minutes of seeing it again."""
_AGAIN_S = 3.0


def run(wanted: Wanted, setup: Setup, *, detach: bool, voice: Voice) -> int:
    """Do what is wanted and keep the workload until it ends; returns what the command ends with.

    With `detach` it returns 0 as soon as the workload runs. Raises what forbids it; nothing runs then.
    """
    name = _name(wanted)
    if wanted.owner is not None:
        _prepare_for_owner(wanted)
    setup.folders.make(name)
    if not detach:
        return _Beginning(name, wanted, setup, voice, None).keep()
    answer = background.split(setup.folders.messages(name))
    if isinstance(answer, Started):
        if answer.ended:
            voice.say(answer.ended)
            return answer.status
        came = f" from {answer.restored_from}" if answer.restored_from else ""
        voice.say(f"{answer.name} runs in the background{came}; see perdure logs -f {answer.name}")
        return 0
    try:
        return _Beginning(name, wanted, setup, voice, answer).keep()
    except errors.PerdureError as error:
        answer.tell(Started(error=wire.document(error)))
        raise


def _prepare_for_owner(wanted: Wanted) -> None:
    """See that this process is fit to keep another user's workload. Raises `errors.Unsupported` for what root alone may ask."""
    if wanted.adopt is not None:
        raise errors.Unsupported("a process that runs already can be taken over by root alone", hint="start the command with perdure run")
    # Root's keys are not for what is started here, or brought back.
    acting.leave_keyring()


def _name(wanted: Wanted) -> str:
    if wanted.name is not None:
        return model.check_name(wanted.name)  # it becomes part of paths, and may be a user's word
    return naming.derive(wanted.command or process.command_line(wanted.adopt or 0), wanted.working_directory)


def _options(wanted: Wanted, known: Workload | None) -> Options:
    """Return how the workload is to be kept. Which key its store has is remembered."""
    if wanted.options is None:
        return known.options if known else Options()
    return msgspec.structs.replace(wanted.options, key_file=known.options.key_file) if known else wanted.options


class _Beginning:
    """One beginning of one life, and what was found out on the way."""

    def __init__(self, name: str, wanted: Wanted, setup: Setup, voice: Voice, starter: Starter | None) -> None:
        self._name = name
        self._wanted = wanted
        self._setup = setup
        self._folders = setup.folders
        self._voice = voice
        self._starter = starter
        self._damage = resume.Damage()
        self._patient_until_s = time.monotonic() + _PATIENCE_S
        self._has_waited = False

    def keep(self) -> int:
        """Begin, and keep the workload until it ends."""
        with (
            contextlib.closing(Reactor()) as reactor,
            lock.held(self._folders.lock(self._name), self._name),
            state.opened(self._folders.database) as database,
        ):
            repair.repair(self._name, database, self._folders, self._voice, adopting=self._wanted.adopt)
            record = self._record(database.get(self._name))
            where = self._setup.place(record)
            with contextlib.ExitStack() as stack:
                stack.callback(self._voice.clear)
                repository = stack.enter_context(place.opened(where, create=not self._wanted.must_resume))
                wanted = self._wanted
                regardless = wanted.fresh or wanted.adopt is not None or wanted.origin is not None
                succession = Succession(repository, self._name, regardless=regardless, surroundings=Linux(), voice=self._voice)
                while True:
                    try:
                        ended = self._live(reactor, database, record, where, succession)
                        return ended if isinstance(ended, int) else self._pass_on(database, record, where, ended)
                    except errors.CheckpointDamaged as error:
                        # Nothing runs, and the damaged one is not taken again: each turn there is one candidate less.
                        self._voice.say(str(error))
                    except errors.WorkloadBusy as error:
                        self._wait_for_the_other(reactor, error)

    def _wait_for_the_other(self, reactor: Reactor, error: errors.WorkloadBusy) -> None:
        """Wait a while where a scheduler has given this workload to us: its copy elsewhere hears of that, or loses its lease, and ends.

        Raises `error` where there is no scheduler, or that has taken too long.
        """
        if self._setup.scheduler is None or time.monotonic() > self._patient_until_s:
            raise error
        if not self._has_waited:
            self._has_waited = True
            self._voice.say(f"{error}; waiting for its end")
        with signals.delivered(reactor, self._wanted.line):
            time.sleep(_AGAIN_S)

    def _record(self, known: Workload | None) -> Workload:
        """Return what is to be remembered of the workload, from what is wanted and what is known."""
        wanted, now_ns = self._wanted, time.time_ns()
        asked = wanted.command
        where = wanted.working_directory
        if known is not None and asked and not wanted.fresh and known.state not in ENDED:
            naming.require_same(known.name, known.command, known.working_directory, asked, where)
        if known is not None and not asked and wanted.adopt is None:
            asked, where = known.command, known.working_directory
        elif wanted.adopt is not None:
            asked = process.command_line(wanted.adopt)
        return Workload(
            name=self._name,
            command=asked,
            working_directory=where,
            options=_options(wanted, known),
            store=known.store if known else "",
            created_ns=known.created_ns if known else now_ns,
            changed_ns=now_ns,
            state=State.STARTING,
            adopted=wanted.adopt is not None,
            epoch=known.epoch if known else 0,
            checkpoints=known.checkpoints if known else 0,
            damaged_objects=known.damaged_objects if known else (),
            last_checkpoint=known.last_checkpoint if known else None,
            targets=known.targets if known else (),
            boot_id=machine.boot_id(),
            supervisor_pid=os.getpid(),
            supervisor_ticks=process.stat(os.getpid()).start_ticks,
        )

    def _live(self, reactor: Reactor, database: Database, record: Workload, where: place.Place, succession: Succession) -> int | Completed:
        repository, completed = succession.repository, succession.look()
        if completed is not None:
            return completed
        places = self._setup.criu()
        criu = locate.find(places)
        options = msgspec.structs.replace(record.options, key_file=where.key_file)
        record = msgspec.structs.replace(record, store=where.url, options=options)
        namespaces.become_subreaper()
        origin = Origin(
            self._name, self._wanted, self._setup, database=database, repository=repository, voice=self._voice, damage=self._damage
        )
        with signals.delivered(reactor, self._wanted.line) as inbox:
            with origin.taken_out() as restoring:
                source = restoring.source if restoring is not None else None
                held = self._begin(succession, where, source)
                if isinstance(held, Completed):
                    return held
                record = msgspec.structs.replace(record, damaged_objects=tuple(sorted({*record.damaged_objects, *self._damage.objects})))
                try:
                    record = self._remember(database, record, held, source)
                    log_path = self._folders.log(self._name)
                    self._prepare_log(log_path, held, source)
                    streams = Console(self._plan(source), Log(log_path), reactor, self._voice.say)
                    life = Life(
                        folders=self._folders,
                        database=database,
                        record=record,
                        place=where,
                        repository=repository,
                        held=held,
                        epoch_file=self._epoch_file(source),
                        tree=Tree(0, 0),
                        streams=(),
                        criu=criu,
                        staging=self._setup.staging,
                        cpu_check=self._setup.cpu_check,
                        voice=self._voice,
                        owner=self._wanted.owner,
                        umask=self._wanted.umask,
                        limits=self._wanted.limits,
                        variables=self._wanted.environment,
                    )
                    self._run(life, streams, locate.find_init(places, beside=criu), restoring)
                except errors.PerdureError as error:
                    if source is not None and isinstance(error, errors.CheckpointDamaged):
                        self._damage.add(source.id, error)
                    self._withdraw(database, held, error)
                    raise
                except OSError as error:
                    told = errors.OutputError(f"cannot prepare {self._name}: {error}", hint="see whether the disk is full, or not writable")
                    self._withdraw(database, held, told)
                    raise told from error
            life.remember(state=State.RUNNING, pid=life.tree.pid, start_ticks=life.tree.start_ticks)
            if self._wanted.metrics is not None:
                self._voice.listeners.append(self._metrics(self._wanted.metrics, life.epoch))
            self._voice.clear()
            self._say_begun(life, source)
            keeper = Keeper(
                life, reactor, streams, self._voice, end_ns=self._wanted.end_ns, line=self._wanted.line, scheduler=self._setup.scheduler
            )
            inbox.hand_to(keeper.receive)
            try:
                return keeper.run().status
            finally:
                streams.close()

    def _metrics(self, path: str, epoch: int) -> Callable[[Event], None]:
        """Return who writes figures to `path`, with the owner's rights."""
        metrics, owner = Metrics(Path(path), self._name, epoch), self._wanted.owner

        def see(event: Event) -> None:
            with acting.as_owner(owner):
                metrics.see(event)

        return see

    def _begin(self, succession: Succession, where: place.Place, source: Source | None) -> HeldLife | Completed:
        ttl_s = where.lease_ttl_s or (leases.LOCAL_TTL_S if where.is_here else leases.REMOTE_TTL_S)
        return succession.begin(restored_from=source.id if source else None, ttl_s=ttl_s)

    def _pass_on(self, database: Database, record: Workload, where: place.Place, completed: Completed) -> int:
        """The workload ended by itself elsewhere, meanwhile: return what it ended with."""
        told = f"{self._name} ended meanwhile, in its life {completed.epoch}: {completed.end.reason}; nothing was started"
        database.put(
            msgspec.structs.replace(
                record,
                store=where.url,
                state=completed.state,
                epoch=completed.epoch,
                exit_status=completed.end.status,
                reason=completed.end.reason,
                supervisor_pid=None,
                supervisor_ticks=None,
                changed_ns=time.time_ns(),
            )
        )
        self._voice.say(told)
        self._voice.event(Event("ended", self._name, time.time_ns(), text=completed.end.reason))
        if self._starter is not None:
            self._starter.tell(Started(self._name, completed.epoch, ended=told, status=completed.status))
        return completed.status

    def _remember(self, database: Database, record: Workload, held: HeldLife, source: Source | None) -> Workload:
        last = LastCheckpoint.of(source.manifest) if source else None
        record = msgspec.structs.replace(
            record,
            epoch=held.life.epoch,
            last_checkpoint=last
            if last is None or record.last_checkpoint is None or last.id != record.last_checkpoint.id
            else record.last_checkpoint,
            command=record.command or (source.manifest.command if source else ()),
            working_directory=record.working_directory if record.command or source is None else source.manifest.working_directory,
        )
        database.put(record)
        text = f"{held.life.epoch}\n{self._name}\n"
        for path in {self._folders.epoch_file(self._name), self._epoch_file(source)}:
            # Another one where the workload was started with another folder, perhaps on another machine.
            path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            files.write_text(path, text, mode=0o644)
            gate.make(path)
            if self._setup.scheduler is not None:
                allocation.write(path, self._wanted.environment, self._wanted.owner)
        return record

    def _epoch_file(self, source: Source | None) -> Path:
        """Return the file that the workload reads its epoch from: its environment names the one it was first started with."""
        known = source.manifest.epoch_file if source else None
        return Path(known) if known is not None else self._folders.epoch_file(self._name)

    def _prepare_log(self, path: Path, held: HeldLife, source: Source | None) -> None:
        if source is None:
            resume.put_log_away(path)
            return
        cut_bytes = resume.bring_log_back(path, source, epoch=held.life.epoch)
        if cut_bytes:
            self._voice.say(f"{units.format_size(cut_bytes)} written after the checkpoint cut off the log, and kept beside it")

    def _run(self, life: Life, streams: Console, init: locate.Init, restoring: Restoring | None) -> None:
        """Start the workload, or bring it back, or take it over."""
        if self._wanted.adopt is not None:
            beginning.take_over(life, self._wanted.adopt)
            return
        before: dict[int, int] = {}
        source = restoring.source if restoring is not None else None
        if source is not None and streams.plan.passed_on and not streams.plan.terminal:
            before = handback.lengths(handback.streams(streams.plan))
            self._give_back(life, streams, source)
        elif source is None:
            life.record = msgspec.structs.replace(life.record, targets=handback.targets(streams.plan))
        stdin, stdout, stderr = streams.open()
        if streams.master is not None:
            terminal.Terminal().adopt(stdout)
            terminal.Terminal().fit(streams.master)
        try:
            if restoring is not None:
                self._restore(life, restoring, (stdin, stdout, stderr), before)
            else:
                beginning.launch(
                    life, self._wanted.command, self._wanted.environment, init, (stdin, stdout, stderr), is_terminal=streams.plan.terminal
                )
        finally:
            streams.release()

    def _restore(self, life: Life, restoring: Restoring, streams: tuple[int, int, int], before: dict[int, int]) -> None:
        try:
            restoring.bring_back(life, streams)
        except errors.PerdureError:
            handback.shorten(before)
            raise

    def _plan(self, source: Source | None) -> wiring.Plan:
        background = self._starter is not None
        return wiring.plan_again(source.manifest.streams, background=background) if source else wiring.plan(background=background)

    def _give_back(self, life: Life, streams: Console, source: Source) -> None:
        """Bring the files that our stdout and stderr lead to back to the checkpoint."""
        log_path = self._folders.log(self._name)
        known = {target.descriptor: target for target in life.record.targets}
        targets = []
        for descriptor, numbers in handback.streams(streams.plan).items():
            written = handback.Written(log_path, source.manifest.log_bytes, numbers)
            target, done = handback.give_back(written, descriptor, known.get(descriptor), epoch=life.epoch, owner=life.owner)
            if target is not None:
                targets.append(target)
            if done:
                self._voice.say(f"{'stdout' if descriptor == 1 else 'stderr'}: {done}")
        life.record = msgspec.structs.replace(life.record, targets=tuple(targets))

    def _withdraw(self, database: Database, held: HeldLife, error: errors.PerdureError) -> None:
        """Nothing runs: end the life that was begun."""
        now_ns = time.time_ns()
        record = database.get(self._name)
        if record is not None:
            state_now = State.STOPPED if record.last_checkpoint else State.FAILED
            database.put(
                msgspec.structs.replace(
                    record, state=state_now, reason=str(error), supervisor_pid=None, supervisor_ticks=None, changed_ns=now_ns
                )
            )
        with contextlib.suppress(errors.StoreError):
            held.end(LifeEnd(now_ns, False, None, f"not begun: {error}"))

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
            mttf_s = options.mttf_s or interval.ASSUMED_MTTF_S
            assumed = "" if options.mttf_s else " (assumed; say better with --mttf)"
            self._voice.say(
                f"{self._name}: a checkpoint every {units.format_duration(interval.best_s(mttf_s, interval.ASSUMED_COST_S))} at first, "
                f"then as its cost asks for at a mean time to failure of {units.format_duration(mttf_s)}{assumed}"
            )
        self._voice.event(Event("running", self._name, time.time_ns(), text=str(source.id) if source else ""))
        if self._starter is not None:
            self._starter.tell(Started(self._name, life.epoch, str(source.id) if source else None))
