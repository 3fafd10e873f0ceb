"""One beginning of one life: from what a store holds to a workload that runs, or to nothing. Called by `start`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files, units
from perdure.checkpoint.criu import locate
from perdure.checkpoint.outputs import rules
from perdure.checkpoint.preflight import codes
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import LifeEnd
from perdure.store.lives import HeldLife
from perdure.supervisor import allocation, gate, handback, launching, leases, register, resume, terminal, wiring
from perdure.supervisor.console import Console
from perdure.supervisor.early import Left
from perdure.supervisor.gpus import Gpus
from perdure.supervisor.life import Life
from perdure.supervisor.log import Log
from perdure.supervisor.place import Place
from perdure.supervisor.record import State, Workload
from perdure.supervisor.restoring import Restoring
from perdure.supervisor.resume import Source
from perdure.supervisor.succession import Completed, Succession
from perdure.supervisor.task import Task


class Beginning:
    """Begins the life that goes on from `restoring`, or one of a workload that is started anew or taken over."""

    def __init__(self, task: Task, record: Workload, where: Place, restoring: Restoring | None) -> None:
        self._task = task
        self._name = task.name
        self._wanted = task.wanted
        self._folders = task.folders
        self._voice = task.voice
        self._before = self._record = record
        self._where = where
        self._restoring = restoring
        self._source = restoring.source if restoring is not None else None

    def begin(self, succession: Succession, places: locate.Places, criu: locate.Criu) -> tuple[Life, Console] | Completed:
        """Begin the life once those before it have ended, and return it with the workload's streams; or how the workload ended meanwhile.

        Raises what forbids it; nothing runs then, and the life is ended.
        """
        if self._restoring is not None:
            self._restoring.await_ports()
        ttl_s = self._where.lease_ttl_s or (leases.LOCAL_TTL_S if self._where.is_here else leases.REMOTE_TTL_S)
        held = succession.begin(restored_from=self._source.id if self._source else None, ttl_s=ttl_s)
        if isinstance(held, Completed):
            return held
        objects = tuple(sorted({*self._record.damaged_objects, *self._task.damage.objects}))
        self._record = msgspec.structs.replace(self._record, damaged_objects=objects)
        try:
            self._remember(held)
            log_path = self._folders.log(self._name)
            self._prepare_log(log_path, held)
            streams = Console(self._plan(), Log(log_path), self._task.reactor, self._warn_of_output)
            life = self._life(held, succession, criu)
            self._task.early.end()
            self._run(life, streams, locate.find_init(places, beside=criu))
        except errors.PerdureError as error:
            if self._source is not None:
                self._pass_over(self._source, error)
            self._withdraw(held, str(error))
            raise
        except OSError as error:
            told = errors.OutputError(f"cannot prepare {self._name}: {error}", hint="see whether the disk is full, or not writable")
            self._withdraw(held, str(told))
            raise told from error
        except Left as left:
            self._withdraw(held, left.name)
            raise
        life.remember(state=State.RUNNING, pid=life.tree.pid, start_ticks=life.tree.start_ticks)
        return life, streams

    def _life(self, held: HeldLife, succession: Succession, criu: locate.Criu) -> Life:
        setup, wanted = self._task.setup, self._wanted
        return Life(
            folders=self._folders,
            database=self._task.database,
            record=self._record,
            place=self._where,
            repository=succession.repository,
            held=held,
            epoch_file=self._epoch_file(),
            tree=Tree(0, 0),
            streams=(),
            criu=criu,
            staging=setup.staging,
            cpu_check=setup.cpu_check,
            voice=self._voice,
            owner=wanted.owner,
            umask=wanted.umask,
            limits=wanted.limits,
            rewritten=wanted.rewritten,
            variables=wanted.environment,
            gpus=Gpus(lock_s=setup.gpu_lock_s),
        )

    def _remember(self, held: HeldLife) -> None:
        self._record = register.begun(self._record, held, self._source)
        self._task.database.put(self._record)
        text = f"{held.life.epoch}\n{self._name}\n"
        for path in {self._folders.epoch_file(self._name), self._epoch_file()}:
            # Another one where the workload was started with another folder, perhaps on another machine.
            path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
            files.write_text(path, text, mode=0o644)
            gate.make(path)
            if self._task.setup.scheduler is not None:
                allocation.write(path, self._wanted.environment, self._wanted.owner)

    def _epoch_file(self) -> Path:
        """Return the file that the workload reads its epoch from: its environment names the one it was first started with."""
        known = self._source.manifest.epoch_file if self._source else None
        return Path(known) if known is not None else self._folders.epoch_file(self._name)

    def _prepare_log(self, path: Path, held: HeldLife) -> None:
        if self._source is None:
            resume.put_log_away(path)
            return
        cut_bytes = resume.bring_log_back(path, self._source, epoch=held.life.epoch)
        if cut_bytes:
            message = f"{units.format_size(cut_bytes)} written after the checkpoint cut off the log, and kept beside it"
            self._voice.warn(self._name, codes.finding("restore-log-cut", str(path), message, path=str(path)), words=message)

    def _warn_of_output(self, words: str) -> None:
        self._voice.warn(self._name, codes.finding("host-output-lost", self._name, words), words=words)

    def _plan(self) -> wiring.Plan:
        if self._source is None:
            return wiring.plan(background=self._task.in_background)
        return wiring.plan_again(self._source.manifest.streams, background=self._task.in_background)

    def _run(self, life: Life, streams: Console, init: locate.Init) -> None:
        """Start the workload, or bring it back, or take it over."""
        if self._wanted.adopt is not None:
            launching.take_over(life, self._wanted.adopt)
            return
        before: dict[int, int] = {}
        if self._source is None:
            life.record = msgspec.structs.replace(life.record, targets=handback.targets(streams.plan))
        elif streams.plan.passed_on and not streams.plan.terminal:
            before = handback.lengths(handback.streams(streams.plan))
            self._give_back(life, streams, self._source)
        descriptors = streams.open()
        if streams.master is not None:
            terminal.Terminal().adopt(descriptors[1])
            terminal.Terminal().fit(streams.master)
        try:
            if self._restoring is None:
                wanted, is_terminal = self._wanted, streams.plan.terminal
                launching.launch(life, wanted.command, wanted.environment, init, descriptors, is_terminal=is_terminal)
            else:
                self._bring_back(life, self._restoring, descriptors, before)
        finally:
            streams.release()

    def _bring_back(self, life: Life, restoring: Restoring, descriptors: tuple[int, int, int], before: dict[int, int]) -> None:
        try:
            restoring.bring_back(life, descriptors)
        except errors.PerdureError:
            handback.shorten(before)
            raise

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
                self._voice.warn(self._name, codes.finding("restore-stream-changed", "stdout" if descriptor == 1 else "stderr", done))
        life.record = msgspec.structs.replace(life.record, targets=tuple(targets))

    def _pass_over(self, source: Source, error: errors.PerdureError) -> None:
        """Note that the checkpoint is not to be taken again, if `error` says so. One that was asked for by its name has no substitute."""
        if isinstance(error, errors.CheckpointDamaged):
            self._task.damage.add(source.id, error)
        elif isinstance(error, errors.RestoreRefused) and self._wanted.origin is None and rules.are_lasting(error.findings):
            self._task.damage.outlive(source.id, error)

    def _withdraw(self, held: HeldLife, reason: str) -> None:
        """Nothing runs: to the next run it is as if this life had not been begun, whatever it would have gone on from."""
        now_ns = time.time_ns()
        with contextlib.suppress(errors.OutputError):  # a full disk may be why
            self._task.database.put(register.not_begun(self._before, self._record, reason, now_ns))
        with contextlib.suppress(errors.StoreError):
            held.withdraw(LifeEnd(now_ns, False, None, f"not begun: {reason}"))
