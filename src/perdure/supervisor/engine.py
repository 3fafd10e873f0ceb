"""The engine's steps put in order: what is done to a tree for a checkpoint, and for its end. Called by `checkpointing` and `keeper`.

Everything here works on one life and decides nothing; what fails is told by an error, and the workload goes on as before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import text
from perdure.base.proc import process
from perdure.checkpoint import adopt, carried, dump, placing, staging, temporary, tree
from perdure.checkpoint.criu import calls
from perdure.checkpoint.criu.run import Criu, Running
from perdure.checkpoint.cuda.contract import Store
from perdure.checkpoint.outputs import ledgers, record, rules, trees
from perdure.checkpoint.preflight import connections, gpu_states, host, mapped, save, terminals
from perdure.checkpoint.preflight.plan import Plan
from perdure.model.checkpoint import (
    Carried,
    CheckpointId,
    Connection,
    Folder,
    HostFact,
    Manifest,
    MappedFile,
    NamedPipe,
    OutputFile,
    Part,
    Placed,
    Trigger,
)
from perdure.model.finding import Finding, problems
from perdure.supervisor import folders, gate, motion, place, readiness
from perdure.supervisor.console import Console
from perdure.supervisor.life import Life
from perdure.supervisor.place import Place
from perdure.supervisor.record import State
from perdure.supervisor.saver import Item
from perdure.supervisor.triggers import Due

_IMAGES = "images"
_MOMENTS = 5
"""Freezes until a workload is met outside a transaction of its ledger; each costs it a stop."""
_MOMENT_S = 0.1
INITS = "init"
"""Folder of the state folder where init programs are kept: programs may often not be run from /run, and an image maps them by path."""


class Dumped(msgspec.Struct, frozen=True):
    """A tree whose images lie in a staging folder, ready to be stored."""

    manifest: Manifest
    """Complete but for what storing adds."""
    images: str
    staging: str
    items: tuple[Item, ...]
    findings: tuple[Finding, ...]
    """What a person should know of this checkpoint."""
    run_id: str
    """CRIU's name for the dump."""
    lost: str = ""
    """Why the tree cannot run on, though all of it is saved; empty: it runs, or stands still as it should."""


class _AtFreeze(msgspec.Struct):
    """What was taken down while the tasks stood still."""

    log_bytes: int = 0
    carried: tuple[Carried, ...] = ()
    folders: tuple[Folder, ...] = ()
    named_pipes: tuple[NamedPipe, ...] = ()
    outputs: tuple[OutputFile, ...] = ()
    placed: tuple[Placed, ...] = ()
    connections: tuple[Connection, ...] = ()
    terminals: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()


class Dumping:
    """One dump, run in a thread of its own. `tell` is told of each phase, and of the staging folder before it is made."""

    def __init__(
        self, life: Life, console: Console, checkpoint: CheckpointId, due: Due, *, tell: Callable[[str, str | None], None]
    ) -> None:
        self._life = life
        self._console = console
        self._checkpoint = checkpoint
        self._due = due
        self._tell = tell
        self._running: Running | None = None
        self._readiness = readiness.Readiness(life)
        self._cancelled = False
        self._recording: record.Recording | None = None
        self._taken = _AtFreeze()
        self._lost = ""
        self._has_run = True

    def run(self) -> Dumped:
        """Check, freeze and dump. Raises `errors.CheckpointRefused`, `errors.CheckpointFailed`, `errors.ProcessGone`."""
        life = self._life
        self._has_run = life.motion.look(motion.marks(life.tree, has_init=life.own_namespace))
        findings = self._check()
        pids = tree.pids(life.tree)
        facts, files = host.facts(life.criu.version, pids), mapped.record(pids)
        expected_bytes = staging.expected_bytes(life.tree) + (life.gpus.look(life.tree) or 0)
        folder = life.folders.choose_staging(expected_bytes, life.staging)
        self._tell("freeze", str(folder))
        if self._cancelled:
            raise errors.CheckpointFailed("it was ended before it began")
        folders.make_staging(folder)
        created_ns = time.time_ns()
        options = dump.DumpOptions(
            expected_bytes=expected_bytes,
            leave="stopped" if self._due.stop else "running",
            tcp=life.options.tcp,
            log_to=life.folders.workload(life.name) / "dump.log",
            owner=life.owner,
        )
        # One that was taken over outlives us: CRIU then undoes by itself what it did.
        criu = calls.mortal(life.criu) if life.own_namespace else life.criu
        dumped = self._dump(folder, options, criu)
        if self._due.trigger is Trigger.INTERVAL:
            self._readiness.require_still(dumped.processes)
        try:
            return self._dumped(dumped, folder, findings, self._describe(dumped, facts, files, created_ns))
        except BaseException:
            if self._due.stop:
                dump.let_go_on(life.tree, dumped.run_id)
                life.gpus.resume()
            raise

    def _dumped(self, dumped: dump.Dumped, folder: Path, findings: tuple[Finding, ...], manifest: Manifest) -> Dumped:
        return Dumped(
            manifest,
            str(dumped.images),
            str(folder),
            (*_items(folder, dumped.images), *self._life.gpus.items()),
            # What was done with the files is known by now.
            (*self._taken.findings, *(finding for finding in findings if finding.code != rules.UNSAVED)),
            dumped.run_id,
            self._lost,
        )

    def _dump(self, folder: Path, options: dump.DumpOptions, criu: Criu) -> dump.Dumped:
        """Dump; a workload met in the middle of a transaction of its ledger goes on for a moment first."""
        for left in reversed(range(_MOMENTS)):
            with gate.shut(self._life.epoch_file):
                try:
                    return self._dump_once(folder, options, criu)
                except errors.CheckpointLater:
                    # A transaction that knows nothing of the gate: one of another user, or begun before it was there.
                    if not left or self._cancelled:
                        raise
            time.sleep(_MOMENT_S)
        raise AssertionError("the last try returns or raises")

    def _dump_once(self, folder: Path, options: dump.DumpOptions, criu: Criu) -> dump.Dumped:
        """Dump, with GPU memory moved away meanwhile. Where that cannot be moved back afterwards, `_lost` says so."""
        root, gpus = self._life.tree, self._life.gpus
        if gpus.uses_any:
            self._tell("gpu-checkpoint", None)
            gpus.suspend(root, folder, store=self._store())
            self._tell("freeze", None)
        try:
            dumped = dump.dump(root, folder, options, lambda: self._at_freeze(folder), criu, begun=self._begun)
        except (errors.WorkloadLost, errors.ProcessGone):
            raise
        except BaseException:
            gpus.resume()
            raise
        if options.leave == "running" and gpus.is_suspended:
            self._tell("gpu-restore", None)
            try:
                gpus.resume()
            except errors.WorkloadLost as error:
                self._lost = str(error)
        return msgspec.structs.replace(dumped, durations_s=dumped.durations_s | gpus.durations_s())

    def _store(self) -> Store | None:
        """Return the store that GPU memory may go into while the tree stands still; None for one that is slow, or may go away."""
        life = self._life
        return as_store(life.place, self._checkpoint, life.record.damaged_objects) if life.place.is_here else None

    def cancel(self) -> None:
        """End it soon, from another thread."""
        self._cancelled = True
        self._readiness.give_up()
        if self._running is not None:
            self._running.cancel()

    def make_way(self) -> None:
        """Give it up, from another thread, if it still waits for the user's probe; later it goes on."""
        self._readiness.give_up()

    @property
    def has_made_way(self) -> bool:
        """Tell whether it was given up so."""
        return self._readiness.was_given_up

    def _begun(self, running: Running) -> None:
        self._running = running
        if self._cancelled:
            running.cancel()

    def _check(self) -> tuple[Finding, ...]:
        life = self._life
        try:
            place.require_room(life.repository)
        except errors.StoreFull as error:
            raise errors.CheckpointRefused(str(error), hint=error.hint) from error
        if self._due.trigger is Trigger.INTERVAL:
            self._readiness.require()
        plan = Plan(
            outputs=life.options.outputs,
            tcp=life.options.tcp,
            criu=life.criu,
            staging=life.staging,
            own_session=life.own_namespace,
            owner=life.owner,
            ask_gpu=gpu_states.asker(life.gpus.helper),
            is_suspended=life.record.state is State.SUSPENDED,
        )
        findings = save.check(life.tree.pid, plan)
        found = problems(findings)
        if found:
            raise errors.CheckpointRefused(summary(found), hint=found[0].remedy or f"see perdure check {life.name}", findings=findings)
        return findings

    def _at_freeze(self, folder: Path) -> None:
        life = self._life
        pids = tree.pids(life.tree)
        ledgers.refuse(pids)
        log_bytes = self._console.drain()
        collected = carried.collect(pids, folder, explicit=_init_program(life), owner=life.owner)
        included = trees.include(life.options.outputs, folder, life.owner)
        self._recording = record.record(pids, folder, besides=collected.paths, stored=included.stored, owner=life.owner)
        self._taken = _AtFreeze(
            log_bytes=log_bytes,
            carried=collected.carried,
            folders=temporary.record(folder / _IMAGES, life.owner, besides=(life.record.working_directory,)),
            named_pipes=temporary.record_pipes(folder / _IMAGES, life.owner),
            placed=placing.record(pids),
            connections=connections.record(pids),
            terminals=terminals.record(pids),
            findings=(*collected.findings, *included.findings),
        )

    def _describe(self, dumped: dump.Dumped, facts: HostFact, files: tuple[MappedFile, ...], created_ns: int) -> Manifest:
        life, taken = self._life, self._taken
        on_gpus = life.gpus.describe()
        if self._recording is not None:
            taken.outputs = self._recording.outputs()
            known = frozenset(text.original(output.path) for output in taken.outputs)
            reopened = life.reopened.warnings(besides=known, included=life.options.outputs)
            taken.findings = (*taken.findings, *self._recording.findings, *rules.unprotected(taken.outputs), *reopened)
        return Manifest(
            id=self._checkpoint,
            created_ns=created_ns,
            trigger=self._due.trigger,
            reason=self._due.reason,
            command=life.record.command,
            working_directory=life.record.working_directory,
            host=facts,
            processes=dumped.processes,
            streams=dumped.streams,
            outputs=taken.outputs,
            carried=taken.carried,
            folders=taken.folders or msgspec.UNSET,
            named_pipes=taken.named_pipes or msgspec.UNSET,
            placed=taken.placed or msgspec.UNSET,
            mapped=files,
            connections=taken.connections,
            terminals=taken.terminals,
            epoch_file=str(life.epoch_file),
            log_bytes=taken.log_bytes,
            stood_still=msgspec.UNSET if self._has_run else True,
            own_pid_namespace=life.own_namespace,
            tcp=life.options.tcp,
            owner=life.owner,
            gpus=on_gpus.gpus,
            cuda_processes=on_gpus.cuda_processes,
            gpu_driver=on_gpus.gpu_driver,
            images_directory=_IMAGES,
            durations_s=dumped.durations_s,
        )


def as_store(where: Place, checkpoint: CheckpointId, avoid: tuple[str, ...] = ()) -> Store:
    """Return the store at `where` as the helper is told of it."""
    return Store(
        url=where.url,
        key_file=where.key_file,
        cache=where.cache,
        threads=place.threads_at_rest(where.threads),
        checkpoint=checkpoint,
        avoid=tuple(avoid),
    )


def _init_program(life: Life) -> tuple[str, ...]:
    path = process.executable(life.tree.pid)[0]
    return (path,) if os.path.basename(os.path.dirname(path)) == INITS else ()


def _items(folder: Path, images: Path) -> Iterable[Item]:
    """Yield what is to be stored: the process images, and what was copied at the freeze."""
    for path in sorted(images.iterdir()):
        part = Part.MEMORY if path.name.startswith("pages-") else Part.IMAGES
        yield Item(f"{_IMAGES}/{path.name}", str(path), part)
    for name in (carried.FOLDER, record.FOLDER):
        if (folder / name).is_dir():
            for path in sorted(one for one in (folder / name).rglob("*") if one.is_file() and not one.is_symlink()):
                yield Item(f"{name}/{path.relative_to(folder / name)}", str(path), Part.FILES)


def end(life: Life) -> None:
    """End the workload at once. Raises `errors.WorkloadBusy` when a process that was taken over does not end."""
    if life.own_namespace:
        tree.kill(life.tree)
    else:
        adopt.end(life.tree)


def summary(found: tuple[Finding, ...]) -> str:
    """Return the first of the problems `found` in one line, and how many more there are."""
    first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{first.code}: {first.subject}: {first.message}{more}"
