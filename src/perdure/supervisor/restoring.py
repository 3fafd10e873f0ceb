"""One restore, step by step as `machine` orders it: from a checkpoint in the store to a tree that was seen to live.

Each step is noted in the journal, so that whoever follows a supervisor that was killed knows what it may have left: a folder that was
noted before it was made, and from the start of CRIU on a tree that is nobody's child yet. Made by `origin`; `beginning` brings back with
it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from perdure import errors
from perdure.base import units
from perdure.base.proc import machine as node
from perdure.base.proc import process
from perdure.checkpoint import adopt, alive, carried, machine, placing, staging, temporary, tree
from perdure.checkpoint import restore as criu_restore
from perdure.checkpoint.criu import calls
from perdure.checkpoint.images import cure_timerfds
from perdure.checkpoint.machine import Event, Instruction
from perdure.checkpoint.outputs import bring_back, listing, trees
from perdure.checkpoint.preflight import codes, ports, writers
from perdure.checkpoint.preflight import restore as preflight
from perdure.checkpoint.restore import RestoreOptions
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Manifest, Part
from perdure.model.finding import Finding, Severity, problems
from perdure.store import locks
from perdure.store.owners import Linux
from perdure.store.repository import Repository
from perdure.store.streaming import Streams
from perdure.supervisor import engine, folders, launching, motion, place, probing, resume
from perdure.supervisor.life import Life
from perdure.supervisor.progress import Progress
from perdure.supervisor.record import Operation, State
from perdure.supervisor.resume import Source
from perdure.supervisor.task import Task

_WORK = "criu"
_KEPT_S = 180.0
"""So long the kernel may keep a port for connections that have lost their processes: a minute, and one more for each end that is silent."""
_LOOK_S = 0.5


class Restoring:
    """The restore of the checkpoint `manifest`, whose files are laid down in `folder`, which is not there yet.

    A context: at its end, unless the workload was brought back, nothing of it runs and nothing lies about.
    """

    def __init__(self, manifest: Manifest, folder: Path, task: Task) -> None:
        self.manifest = manifest
        self._folder = folder
        self._database = task.database
        self._voice = task.voice
        self._early = task.early
        self._progress = Progress(manifest.id.workload, task.voice.progress)
        self._now = machine.Restore()
        self._source: Source | None = None
        self._tree: Tree | None = None
        self._life: Life | None = None
        self._operation = Operation(
            number=0,
            workload=manifest.id.workload,
            kind="restore",
            began_ns=time.time_ns(),
            staging=str(folder),
            boot_id=node.boot_id(),
            start_ticks=process.stat(os.getpid()).start_ticks,
            state=self._now.state,
        )

    def __enter__(self) -> Restoring:
        self._step(Event.BEGIN)
        try:
            folders.make_staging(self._folder)
        except BaseException as error:
            self._give_up(error)
            raise
        return self

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        if self._now.state not in (machine.State.ABSENT, machine.State.RUNNING):
            self._give_up(error)

    @property
    def source(self) -> Source:
        """The checkpoint as it was taken out."""
        if self._source is None:
            raise AssertionError("nothing was fetched")
        return self._source

    def fetch(self, repository: Repository, *, besides: Collection[str]) -> bool:
        """Take the checkpoint out of the store, but its files `besides`. Returns false, after it was told, when it is gone.

        Raises `errors.CheckpointDamaged`.
        """
        self._voice.say(f"reading {self.manifest.id}, {units.format_size(self.manifest.logical_bytes)}")
        self._progress.enter("fetch", total_bytes=sum(file.size_bytes for file in self.manifest.files if file.name not in besides))
        self._source = resume.take_out(repository, self.manifest, self._folder, self._voice, besides=besides, reached=self._reached)
        if self._source is not None:
            self._step(Event.IMAGES_STAGED)
        return self._source is not None

    def await_ports(self) -> None:
        """Wait until what is left of an earlier life's connections gives up the ports that the workload listens on.

        Raises `Left` as soon as somebody asks for the end. What is still not free afterwards, CRIU will say.
        """
        end_s = time.monotonic() + _KEPT_S
        has_said = False
        while (kept := ports.kept(self.manifest.connections)) and time.monotonic() < end_s:
            if not has_said:
                has_said = True
                self._voice.say(f"waiting for {kept[0].local}: the kernel keeps it for a minute after connections of an earlier life")
            self._early.pause(_LOOK_S)

    def bring_back(self, life: Life, streams: tuple[int, int, int]) -> None:
        """Bring the workload back, with `streams` as its new descriptors 0, 1 and 2, and see it live.

        Raises `errors.RestoreRefused`, `errors.RestoreFailed`, `errors.CheckpointDamaged`; nothing of it runs then.
        """
        self._life = life
        try:
            with self._reading(life) as memory:
                included = frozenset(entry.path for entry in listing.read(self._folder))
                _check(life, self.manifest, included, self._folder)
                planned = life.gpus.plan(self.manifest, life.variables)
                _put_back(life, self.manifest, self._folder)
                launching.give(life, streams)
                self._tree = life.tree = self._run_criu(life, streams, memory)
            life.reopened.watch(life.tree.pid)
            self._step(Event.CRIU_RESTORED)
            if self.manifest.cuda_processes:
                self._progress.enter("gpu-restore")
            store = engine.as_store(life.place, self.manifest.id) if self.source.late else None
            life.gpus.restore(life.tree, self.manifest, self._folder, planned, store)
            self._progress.enter("verify")
            alive.verify(life.tree, self.manifest.processes, probing.probe(life))
            with contextlib.suppress(errors.ProcessGone):  # one that has ended meanwhile has lived
                life.motion.settle(motion.marks(life.tree, has_init=life.own_namespace), is_saved=True)
        except BaseException as error:
            # At once: whoever hears of the end of this life may begin the next.
            self._give_up(error)
            raise
        self._step(Event.SEEN_ALIVE)
        self._step(Event.SETTLED)

    def _give_up(self, error: BaseException | None) -> None:
        self._step(Event.REFUSED if isinstance(error, errors.RestoreRefused) and self._tree is None else Event.FAILED)

    def _step(self, event: Event) -> None:
        """Take the step, and do what it tells. It is noted before, but that all is over, which is noted when that is so."""
        before = self._now.state
        self._now, told = machine.restore(self._now, event)
        if before is machine.State.ABSENT:
            self._operation = self._database.begin(msgspec.structs.replace(self._operation, state=self._now.state))
        elif self._now.state not in (machine.State.ABSENT, machine.State.RUNNING):
            self._note()
        for instruction in told:
            self._do(instruction)
        if self._now.state in (machine.State.ABSENT, machine.State.RUNNING):
            self._database.end(self._operation)

    def _note(self) -> None:
        self._operation = msgspec.structs.replace(self._operation, state=self._now.state)
        if self._tree is not None:
            self._operation = msgspec.structs.replace(self._operation, pid=self._tree.pid, start_ticks=self._tree.start_ticks)
        if self._life is not None:
            self._life.amend(self._operation)  # which a full disk does not keep from going on
        else:
            self._database.amend(self._operation)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Instruction.KILL_TREE if self._tree is not None:
                tree.kill(self._tree)
                tree.reap(self._tree, wait=True)
            case Instruction.REMOVE_STAGING:
                self._remove_staging()
            case Instruction.TELL_RUNNING if self._life is not None and self._tree is not None:
                self._life.remember(state=State.RUNNING, pid=self._tree.pid, start_ticks=self._tree.start_ticks)
            case _:
                pass  # what is to be fetched, started and looked at is done where its result is waited for

    def _remove_staging(self) -> None:
        try:
            staging.remove(self._folder)
        except OSError as error:
            # No reason to end a workload that runs, or to hide why it does not.
            message = f"{self._folder} cannot be removed ({error.strerror}); it is not needed any more"
            self._voice.warn(self.manifest.id.workload, codes.finding("host-staging-left", str(self._folder), message), words=message)

    @contextlib.contextmanager
    def _reading(self, life: Life) -> Iterator[Streams | None]:
        """Read memory from the store, which keeps the checkpoint meanwhile, while the rest is put in order; None: it lies in the folder."""
        sizes = self._late_memory()
        if not sizes:
            yield None
            return
        source = self.source
        with locks.shared(life.repository, purpose=f"restore {source.id}", surroundings=Linux(), using=(source.id,)):
            try:
                files = life.repository.stream(source.id, threads=place.threads_at_rest(life.place.threads))
            except errors.StoreCorrupt as error:
                raise resume.damaged(source.id, error) from error
            with files:
                files.begin(sorted(sizes, key=sizes.__getitem__, reverse=True))
                yield files

    def _late_memory(self) -> dict[str, int]:
        """Return the sizes of the files that CRIU is given from the store. What belongs on GPUs the helper reads itself, afterwards."""
        late = self.source.late
        return {file.name: file.size_bytes for file in self.manifest.files if file.name in late and file.part is Part.MEMORY}

    def _run_criu(self, life: Life, streams: tuple[int, int, int], memory: Streams | None) -> Tree:
        images, work = self._folder / self.manifest.images_directory, self._folder / _WORK
        cure_timerfds(images)
        work.mkdir(mode=0o700)
        options = RestoreOptions(
            streams=self.manifest.streams,
            descriptors=dict(enumerate(streams)),
            expected_bytes=self.manifest.logical_bytes,
            tcp=self.manifest.tcp,
            log_to=life.folders.workload(life.name) / "restore.log",
            owner=life.owner,
            at_rest=functools.partial(self._put_on, life) if self.manifest.placed else None,
        )
        if memory is not None:
            return self._run_while_reading(life, options, memory)
        self._progress.enter("restore")
        if adopt.is_whole(images):
            return criu_restore.restore(images, work, options, calls.mortal(life.criu)).tree
        if life.owner is not None:
            raise errors.RestoreRefused(f"{self.manifest.id} is of a tree without an init of ours", hint="root can restore it")
        return adopt.bring_back(images, work, options, life.criu).tree

    def _put_on(self, life: Life, root: int) -> None:
        if self.manifest.placed is not msgspec.UNSET:
            _refuse(placing.put_on(root, self.manifest.placed), life)

    def _run_while_reading(self, life: Life, options: RestoreOptions, memory: Streams) -> Tree:
        """Let CRIU work while memory is read. Where that fails although the store is whole, read all of it and try once more."""
        criu, sizes = calls.mortal(life.criu), self._late_memory()
        images, work = self._folder / self.manifest.images_directory, self._folder / _WORK
        pages = {os.path.basename(name): functools.partial(self._read, memory, name) for name in sizes}
        self._progress.enter("restore", total_bytes=sum(sizes.values()))
        try:
            return criu_restore.restore(images, work, msgspec.structs.replace(options, pages=pages), criu).tree
        except errors.StoreCorrupt as error:
            raise resume.damaged(self.source.id, error) from error
        except errors.RestoreRefused:
            raise
        except errors.RestoreFailed as error:
            words = f"{error}; trying once more with all of it read before"
            self._voice.warn_of(self.manifest.id.workload, error, about=str(self.source.id), words=words)
        self._progress.enter("fetch", total_bytes=sum(sizes.values()))
        life.repository.extract(self.source.id, self._folder, names=sizes, progress=self._progress.reach)
        shutil.rmtree(work)
        work.mkdir(mode=0o700)
        self._progress.enter("restore")
        return criu_restore.restore(images, work, options, criu).tree

    def _reached(self, done_bytes: int) -> None:
        self._early.check()
        self._progress.reach(done_bytes)

    def _read(self, files: Streams, name: str) -> Iterator[Sequence[memoryview]]:
        return self._progress.counted(files.read(name))


def _check(life: Life, manifest: Manifest, included: frozenset[str], contents: Path) -> None:
    plan = preflight.RestorePlan(
        criu=life.criu,
        cpu=life.cpu_check,
        staging=life.staging,
        is_staged=True,
        included=included,
        rewritten=frozenset(life.rewritten),
        owner=life.owner,
        variables=life.variables,
    )
    _refuse((*preflight.check(manifest, plan), *writers.check(manifest.outputs, contents, life.owner)), life)


def _put_back(life: Life, manifest: Manifest, contents: Path) -> None:
    """Bring files back to the checkpoint. Raises `errors.RestoreRefused`."""
    of_init, of_owner = carried.apart(manifest)
    _refuse(temporary.make(temporary.of(manifest), life.owner), life)
    _refuse(trees.put_back(contents, epoch=life.epoch, owner=life.owner), life)
    _refuse(carried.put_back(of_init, contents, epoch=life.epoch, shared=True), life)
    _refuse(carried.put_back(of_owner, contents, epoch=life.epoch, owner=life.owner), life)
    _refuse(bring_back.bring_back(manifest.outputs, epoch=life.epoch, contents=contents, owner=life.owner), life)


def _refuse(findings: tuple[Finding, ...], life: Life) -> None:
    """Tell of `findings`, and raise `errors.RestoreRefused` when one of them is a problem."""
    found = problems(findings)
    if found:
        raise errors.RestoreRefused(engine.summary(found), hint=found[0].remedy or "see perdure check --restore", findings=findings)
    for finding in findings:
        if finding.severity is Severity.WARNING:
            life.voice.warn(life.name, finding)
