"""One checkpoint after another, never two at once: checked, frozen, dumped, stored, committed. Called by `keeper`.

`machine` says what follows on what; here it is done. The workload runs on from the end of the dump, unless it is to be given up
afterwards; it is given up only after the commit. However a checkpoint ends, nothing of it stays behind but what was committed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint import dump, machine, tree
from perdure.checkpoint.criu import netlock
from perdure.checkpoint.machine import Instruction
from perdure.model.checkpoint import CheckpointId, Manifest
from perdure.model.finding import Finding
from perdure.supervisor import cautions, engine, motion, saver
from perdure.supervisor.console import Console
from perdure.supervisor.jobs import Job
from perdure.supervisor.life import Life
from perdure.supervisor.messages import Event
from perdure.supervisor.reactor import Reactor, now_s
from perdure.supervisor.record import Operation
from perdure.supervisor.saving import Saving
from perdure.supervisor.triggers import Due

_STORE_PAUSES_S = (2.0, 10.0, 30.0, 60.0)
"""Before storing again what is the only copy: the workload is gone, or cannot run on, and a store may be away for a minute."""
_DOUBTFUL_S = 2.0
"""So long after a dump that failed the end of a workload may be its doing."""


class Done(msgspec.Struct, frozen=True):
    """A checkpoint that is durable."""

    due: Due
    manifest: Manifest
    whole_s: float
    """From the trigger until it was durable."""
    checkpoints: int | None
    """How many the workload has now."""
    problem: errors.PerdureError | None
    """What went wrong afterwards: older ones were not removed."""
    warnings: tuple[Finding, ...] = ()
    """What of it may not come back as a person expects."""


Ended = Callable[[Due, Done | errors.PerdureError | None], None]


class Checkpointing:
    """Makes the checkpoints of one life. `tell` is told of what goes on.

    `ended` is called once for each `begin`; with None when it made way.
    """

    def __init__(self, life: Life, reactor: Reactor, console: Console, *, tell: Callable[[Event], None], ended: Ended) -> None:
        self._life = life
        self._reactor = reactor
        self._console = console
        self._tell = tell
        self._ended = ended
        self._now = machine.Checkpoint()
        self._sequence = 0
        self._saving: Saving | None = None
        self._dumping: engine.Dumping | None = None
        self._operation: Operation | None = None
        self._cancelled = ""
        self._run_id = ""
        self._lost = ""
        self._stores = 0
        self._made_way = False
        self._doubtful_until_s = 0.0
        self._cautions = cautions.Cautions(life.name)
        self._warnings: tuple[Finding, ...] = ()
        self.phase: str | None = None
        """What is going on; None: nothing."""

    def begin(self, due: Due) -> None:
        """Begin the checkpoint `due`. None may be going on."""
        self._now = machine.Checkpoint(give_up=due.stop)
        self._step(machine.Event.BEGIN)
        self._sequence += 1
        self._cancelled = self._lost = ""
        self._stores = 0
        self._began_s = now_s()
        checkpoint = CheckpointId(self._life.name, self._life.epoch, self._sequence)
        self._operation = self._life.begin(
            Operation(
                number=0,
                workload=self._life.name,
                kind="checkpoint",
                began_ns=time.time_ns(),
                pid=self._life.tree.pid,
                start_ticks=self._life.tree.start_ticks,
                boot_id=self._life.record.boot_id,
                state=self._now.state,
            )
        )
        self._enter("check")
        dumping = engine.Dumping(self._life, self._console, checkpoint, due, tell=self._told_by_dump)
        self._dumping = dumping
        Job(self._reactor, "perdure-dump", dumping.run, lambda dumped, problem: self._dumped(due, dumped, problem))

    def cancel(self, reason: str) -> None:
        """End what is going on, if anything. `ended` is told soon, of a failure unless it was durable already."""
        if self.phase is None:
            return
        self._cancelled = self._cancelled or reason
        if self._saving is not None:
            self._saving.cancel(reason)
        elif self._dumping is not None:
            self._dumping.cancel()

    def make_way(self) -> None:
        """Somebody asks for a checkpoint: one by the clock that still waits for the user's probe is given up for it, soon."""
        if self._dumping is not None:
            self._dumping.make_way()

    def tree_ended(self) -> None:
        """The workload has ended. What is going on is of no use any more, unless all of it is saved and it was to be given up."""
        told = self._step(machine.Event.TREE_ENDED)
        if Instruction.CANCEL_DUMP in told or Instruction.CANCEL_STORE in told or self._dumping is not None:
            self.cancel("the workload ended")

    @property
    def may_have_broken_it(self) -> bool:
        """Tell whether a dump that goes on, or failed a moment ago, may be what the workload ended of."""
        return self._dumping is not None or now_s() < self._doubtful_until_s

    @property
    def outlives_the_tree(self) -> bool:
        """Tell whether the last state of a workload that has ended is being stored: worth waiting for."""
        return self._now.state is machine.State.DUMPED and self._now.give_up and self._stores > 0

    def _step(self, event: machine.Event) -> tuple[Instruction, ...]:
        self._now, told = machine.checkpoint(self._now, event)
        return told

    def _told_by_dump(self, phase: str, staging: str | None) -> None:
        """From the dump's thread: it has come to `phase`, and makes `staging` next. Returns when that is noted."""
        noted = threading.Event()

        def note() -> None:
            self._note(phase, staging)
            noted.set()

        self._reactor.post(note)
        noted.wait()

    def _note(self, phase: str, staging: str | None) -> None:
        if self._operation is not None and staging is not None:
            # The tree may have ended meanwhile: the dump finds out by itself, and its folder has to be known all the same.
            if self._now.state is machine.State.CHECKED:
                self._step(machine.Event.ROOM)
            self._operation = msgspec.structs.replace(self._operation, staging=staging, state=machine.State.FREEZING)
            self._life.amend(self._operation)
        self._enter(phase)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._tell(Event(phase, self._life.name, time.time_ns()))

    def _dumped(self, due: Due, dumped: engine.Dumped | None, problem: BaseException | None) -> None:
        dumping, self._dumping = self._dumping, None
        self._made_way = dumping is not None and dumping.has_made_way and not self._cancelled
        self._run_id = dumped.run_id if dumped else ""
        if dumped is None:
            self._doubtful_until_s = now_s() + _DOUBTFUL_S
            self._finish(due, None, _as_ours(problem))
            return
        if self._now.state is machine.State.FREEZING:
            self._step(machine.Event.TASKS_FROZEN)
            self._step(machine.Event.DUMP_DONE)
        if self._cancelled:
            self._finish(due, None, errors.CheckpointFailed(f"it was ended: {self._cancelled}"))
            return
        self._warnings = cautions.of(dumped.findings)
        new = self._cautions.new(self._warnings)
        for line in self._cautions.say(new):
            self._life.voice.say(line)
        for finding in new:
            self._life.voice.warn(self._life.name, finding, words="")
        self._stores, self._lost = 0, dumped.lost
        if dumped.lost:
            # What is saved is its last state: it goes on from there, and is ended here.
            due = msgspec.structs.replace(due, stop=True, reason=dumped.lost)
            self._now = msgspec.structs.replace(self._now, give_up=True)
        self._store(due, dumped)

    def _store(self, due: Due, dumped: engine.Dumped) -> None:
        self._stores += 1
        for name in saver.LEAVES:
            Path(dumped.staging, name).unlink(missing_ok=True)
        try:
            self._start_storing(due, dumped)
        except (OSError, ValueError) as error:
            self._stored(due, dumped, None, errors.CheckpointFailed(f"cannot start storing it: {error}"))

    def _start_storing(self, due: Due, dumped: engine.Dumped) -> None:
        request = saver.Request(
            place=self._life.place,
            manifest=dumped.manifest,
            images=dumped.images,
            items=dumped.items,
            log=str(self._life.folders.log(self._life.name)),
            staging=dumped.staging,
            keep=self._life.options.keep,
            avoid=self._life.record.damaged_objects,
            parent=os.getpid(),
            is_waited_for=due.stop,
        )
        self._enter("store")
        self._saving = Saving(
            self._reactor,
            request,
            Path(dumped.staging),
            heard=self._heard,
            ended=lambda committed, error: self._stored(due, dumped, committed, error),
        )

    def _stored(self, due: Due, dumped: engine.Dumped, committed: saver.Committed | None, error: errors.PerdureError | None) -> None:
        """It is stored, or was not: what nobody else has any more is stored again, the rest let go on."""
        is_only_copy = due.stop and (bool(self._lost) or not tree.is_alive(self._life.tree))
        if committed is None and is_only_copy and not self._cancelled and self._stores <= len(_STORE_PAUSES_S):
            self._saving = None
            error = error or errors.CheckpointFailed("it was not stored")
            words = f"not stored: {error}; it is the only copy, so that it is stored again"
            self._life.voice.warn_of(self._life.name, error, about=str(dumped.manifest.id), words=words)
            self._reactor.after(_STORE_PAUSES_S[self._stores - 1], lambda: self._store_again(due, dumped))
            return
        if committed is None and self._lost:
            error = errors.WorkloadLost(f"{self._lost}; and it could not be stored: {error}", hint="it can go on from an older checkpoint")
        self._finish(due, committed, error)

    def _store_again(self, due: Due, dumped: engine.Dumped) -> None:
        if self._cancelled:
            self._stored(due, dumped, None, errors.CheckpointFailed(f"it was ended: {self._cancelled}"))
        else:
            self._store(due, dumped)

    def _heard(self, progress: saver.Progress) -> None:
        self.phase = progress.phase
        self._tell(Event(progress.phase, self._life.name, time.time_ns(), done_bytes=progress.done_bytes, total_bytes=progress.total_bytes))

    def _finish(self, due: Due, committed: saver.Committed | None, error: errors.PerdureError | None) -> None:
        saving, self._saving = self._saving, None
        self.phase = None
        if self._now.state is not machine.State.GONE:
            told = self._step(_how_it_ended(self._now.state, committed, error))
            if Instruction.RESUME_TREE in told and due.stop and self._run_id and not self._lost:
                dump.let_go_on(self._life.tree, self._run_id)
                if self._life.gpus.is_suspended:
                    self._enter("gpu-restore")
                    Job(self._reactor, "perdure-gpu", self._life.gpus.resume, lambda _, problem: self._resumed(due, error, problem))
                    return
        self._clean_up(due, committed, error, saving)

    def _resumed(self, due: Due, error: errors.PerdureError | None, problem: BaseException | None) -> None:
        """GPU memory is back, after a checkpoint that was not made; or cannot be brought back."""
        self.phase = None
        self._clean_up(due, None, _as_ours(problem) if problem is not None else error, None)

    def _clean_up(self, due: Due, committed: saver.Committed | None, error: errors.PerdureError | None, saving: Saving | None) -> None:
        if not due.stop or committed is None:
            self._watch_anew(is_saved=committed is not None)
        operation, self._operation = self._operation, None
        if operation is not None:
            if operation.staging is not None:
                shutil.rmtree(operation.staging, ignore_errors=True)
            self._life.end(operation)
        if committed is not None:
            run_id = self._run_id
            if not due.stop and self._now.state is machine.State.COMMITTED:
                self._step(machine.Event.SETTLED)
            count = saving.checkpoints if saving else None
            self._ended(due, Done(due, committed.manifest, now_s() - self._began_s, count, error, self._warnings))
            if due.stop:
                netlock.release(run_id)  # connections that were kept are gone with the workload
        else:
            self._ended(due, None if self._made_way else error or errors.CheckpointFailed("it was not stored"))

    def _watch_anew(self, *, is_saved: bool) -> None:
        """By now every task that the dump let go has come to rest again, if it rests."""
        life = self._life
        with contextlib.suppress(errors.ProcessGone):
            life.motion.settle(motion.marks(life.tree, has_init=life.own_namespace), is_saved=is_saved)


def _how_it_ended(state: machine.State, committed: saver.Committed | None, error: errors.PerdureError | None) -> machine.Event:
    if committed is not None:
        return machine.Event.STORE_COMMITTED
    is_refused = isinstance(error, (errors.CheckpointRefused, errors.CheckpointLater)) and state is machine.State.CHECKED
    return machine.Event.REFUSED if is_refused else machine.Event.FAILED


def _as_ours(problem: BaseException | None) -> errors.PerdureError:
    """Return what to tell of a dump that raised `problem`. The workload goes on even where the fault is ours."""
    match problem:
        case errors.PerdureError():
            return problem
        case OSError():
            return errors.CheckpointFailed(f"cannot dump it: {problem}")
        case None:
            return errors.CheckpointFailed("nothing was dumped")
    if os.environ.get("PERDURE_DEBUG"):
        traceback.print_exception(problem)
    return errors.CheckpointFailed(
        f"a fault in Perdure: {type(problem).__name__}: {problem}", hint="run again with PERDURE_DEBUG=1 and report what it prints"
    )
