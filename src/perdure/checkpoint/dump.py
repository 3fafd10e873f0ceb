"""Save a running tree as images, and let it run on. Called by the supervisor, in a thread of its own.

However a dump ends, no task stays stopped or traced: that is looked at, not assumed. The one thing that cannot be mended is CRIU losing
hold of a task when it has put its code into it and not yet taken it out: the task then dies of SIGTRAP. That happens at one in twenty of
random instants where CRIU is killed, and at one in some hundreds where somebody stops the task (SIGSTOP) and lets it go on at once.
`errors.WorkloadLost` says so; what is left of the tree has to be ended, and can be resumed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.base.proc.exits import Exits
from perdure.checkpoint import aftermath, connections, guard, identity, links, of_process, remaps, statistics, streams, tree, views
from perdure.checkpoint.criu import netlock, repair, run
from perdure.checkpoint.criu.run import Action, Call, Criu, Result, Running
from perdure.checkpoint.frozen import SCRIPT, AtFreeze, Frozen
from perdure.checkpoint.images import inventory
from perdure.checkpoint.tree import Process, Tree
from perdure.model.checkpoint import Owner, ProcessFact, Stream
from perdure.model.finding import Finding, problems

STANDING = ("--file-locks", "--link-remap", "--ext-unix-sk", "--manage-cgroups=ignore")
"""Options of every dump and restore: safe together, and each the cure of a refusal that real programs meet."""

GHOST_LIMIT = "--ghost-limit=1G"
_RAISED_GHOST_LIMIT = "--ghost-limit=1024G"

_LEAST_S = 60.0
_SLOWEST_BYTES_S = 20e6
"""Images are never written slower than this for long, not even to a busy network disk: the time allowed is generous, since running out
of it loses a checkpoint, and what hangs for good hangs in the first minute."""

_OF_OTHERS = frozenset({"process-directory-taken", "file-link-remap-stale"})
"""What CRIU fails of where another workload is saved, or brought back, at the same instant: both have a folder or a link of one name."""
_PATIENCE_S = 20.0
_TURN_S = (0.02, 0.3)
"""Pauses. All workloads of a node may be saved at once; the folder is held for milliseconds, a link for as long as a tree is frozen."""

_TERSE, _VERBOSE = 2, 4
"""How much CRIU says. It writes its log while the tasks stand still, so that saying all lengthens the stop. What fails is said at
either level; the run's id, by which locked connections are let go, only at the higher one."""


class DumpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to dump."""

    expected_bytes: int
    """About how much the images will hold; the time allowed follows from it."""
    leave: Literal["running", "stopped"] = "running"
    """How the tree is left: ``stopped`` means that it has not run on since the freeze, until `tree.resume`."""
    tcp: Literal["close", "keep"] = "close"
    log_to: Path | None = None
    """Where CRIU's log is put when it fails; None: it stays in the staging folder."""
    owner: Owner | None = None
    """The ordinary user that all of the tree but its init runs as; None: it may be anybody's."""


class Dumped(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that was saved."""

    images: Path
    """The folder of the images, and of what is needed beside them (`links`); all of it is to be stored."""
    log: Path
    processes: tuple[ProcessFact, ...]
    """As they were at the freeze."""
    streams: tuple[Stream, ...]
    image_bytes: int
    """Of all images, pages included."""
    memory_bytes: int
    """Of the pages alone."""
    stopped_s: float
    """How long no task of the tree ran."""
    durations_s: dict[str, float]
    """``freeze``: until all tasks stood still, ``memory``: reading their pages, ``hook``: what was done at the freeze, ``dump``: CRIU
    altogether, ``stopped``."""
    run_id: str
    """CRIU's own name for this dump, for `let_go_on`."""
    second_try: str | None = None
    """The option that the first try lacked; None: it was the first."""


def timeout_for(expected_bytes: int) -> float:
    """Return the seconds that a dump or restore of `expected_bytes` may take before it counts as hanging."""
    return _LEAST_S + expected_bytes / _SLOWEST_BYTES_S


def dump(
    root: Tree, staging: Path, options: DumpOptions, at_freeze: AtFreeze, criu: Criu, *, begun: Callable[[Running], None] = lambda _: None
) -> Dumped:
    """Save `root` into ``staging/images``; the tree runs on, or stands still, as `options.leave` says.

    `at_freeze` is called in this thread while all tasks stand still and the images are whole; what it raises ends the dump and is raised
    again. `begun` is told of each CRIU that was started, whose `cancel` may be called from another thread. A dump that fails for want of
    an option that is safe to give is tried once more with it, and one that another workload's is in the way of for some seconds.

    Raises `errors.CheckpointFailed` with CRIU's reason, `errors.CheckpointRefused` for a user's tree that has other rights than the user,
    `errors.CheckpointLater` for one that has a file of /proc open which could not be opened again, `errors.WorkloadLost`,
    `errors.ProcessGone` when the tree has ended.
    """
    attempts = _Attempts(root, staging, options, at_freeze=at_freeze, criu=criu, begun=begun)
    tcp, ghosts = _tcp_options(root, options), GHOST_LIMIT
    try:
        return attempts.make_patiently(tcp, ghosts)
    except _Refused as refused:
        match refused.result.explanation.flag if refused.result.explanation else None:
            case "--ghost-limit":
                ghosts = lacked = _RAISED_GHOST_LIMIT
            case "--tcp-established":
                tcp, lacked = _KEPT_WITHIN, _KEPT_WITHIN[0]
            case _:
                raise _failure(refused.result, options) from None
    try:
        return msgspec.structs.replace(attempts.make_patiently(tcp, ghosts), second_try=lacked)
    except _Refused as refused:
        raise _failure(refused.result, options) from None


def let_go_on(root: Tree, run_id: str) -> None:
    """Let a tree that a dump left stopped run again, its connections first. A tree that has ended is no error.

    CRIU leaves kept connections as it read them: locked by a packet filter, and in a mode in which nothing is sent or received.
    """
    with contextlib.suppress(errors.ProcessGone):
        repair.end(tree.pids(root))
    netlock.release(run_id)
    with contextlib.suppress(errors.ProcessGone):
        tree.resume(root)


class _Refused(Exception):
    """Carries CRIU's result out of an attempt; never leaves this module."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.returncode)
        self.result = result


class _Attempts:
    """The dumps of one tree until one succeeds: at most two."""

    def __init__(
        self, root: Tree, staging: Path, options: DumpOptions, *, at_freeze: AtFreeze, criu: Criu, begun: Callable[[Running], None]
    ) -> None:
        self._root = root
        self._images = staging / "images"
        self._work = staging / "criu"
        self._options = options
        self._at_freeze = at_freeze
        self._is_inside = views.is_own(root.pid)
        self._criu = views.entered(criu, f"/proc/{root.pid}/ns/mnt") if self._is_inside else criu
        self._begun = begun
        self._facts: tuple[ProcessFact, ...] = ()
        self._stopped: frozenset[int] = frozenset()
        self._has_stopped = False
        self._hook_s = 0.0

    def make_patiently(self, tcp: tuple[str, ...], ghosts: str) -> Dumped:
        """Make one; where another workload's is in the way, a little later."""
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self.make(tcp, ghosts)
            except _Refused as refused:
                explanation = refused.result.explanation
                if explanation is None or explanation.code not in _OF_OTHERS or time.monotonic() > end_s:
                    raise
            time.sleep(random.uniform(*_TURN_S))  # noqa: S311 - no secret

    def make(self, tcp: tuple[str, ...], ghosts: str) -> Dumped:
        for folder in (self._images, self._work):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        before = tree.members(self._root)
        remaps.sweep((process.pid for process in before), self._options.owner)
        wired = streams.of(self._root)
        standing_still = self._stays_stopped_by_criu()
        call = Call(
            action=Action.DUMP,
            images=str(self._images),
            work=str(self._work),
            timeout_s=timeout_for(self._options.expected_bytes),
            verbosity=_VERBOSE if self._options.tcp == "keep" else _TERSE,
            action_script=str(SCRIPT),
            root=self._root.pid,
            is_inside=self._is_inside,
            options=(
                "--leave-stopped" if standing_still else "--leave-running",
                *STANDING,
                # A connection that nobody has accepted has no descriptor to be saved by: the peer tries again, as after any restart.
                "--skip-in-flight",
                ghosts,
                *tcp,
                *_session_options(self._root),
                *streams.dump_options(wired),
            ),
        )
        self._stopped = frozenset(process.pid for process in before if process.is_stopped)
        result, told = self._run(call, before)
        if self._is_inside:
            inventory.part_pid_namespace(self._images)
        return self._describe(result, told, wired)

    def _stays_stopped_by_criu(self) -> bool:
        """Connections that are kept must not be answered between the freeze and the end: CRIU then leaves them locked.

        Otherwise each task gets SIGSTOP at the freeze, so that CRIU may let it go and clean up after itself.
        """
        return self._options.leave == "stopped" and self._options.tcp == "keep"

    def _run(self, call: Call, before: tuple[Process, ...]) -> tuple[Result, statistics.DumpStatistics]:
        with Exits(process.pid for process in before) as exits:
            return self._run_watched(call, before, exits)

    def _run_watched(self, call: Call, before: tuple[Process, ...], exits: Exits) -> tuple[Result, statistics.DumpStatistics]:
        problem: BaseException | None = None
        with Frozen(self._work, is_inside=self._is_inside) as frozen, contextlib.ExitStack() as stack:
            if self._is_inside:
                # Among the tree's mounts our folders may be missing, on one that was mounted later.
                folders = (_opened(self._images, stack), _opened(self._work, stack))
                call = msgspec.structs.replace(call, folders=folders, pass_fds=(*folders, *frozen.pass_fds))
            running = run.start(self._criu, call)
            _spare_from_oom(running.pid)
            self._begun(running)
            ended = os.pidfd_open(running.pid)
            try:
                if frozen.wait(ended, call.timeout_s):
                    try:
                        self._work_at_freeze()
                        frozen.release()
                    except BaseException as error:  # noqa: BLE001 - CRIU has to be let go first; raised again below
                        problem = error
                        frozen.refuse()
            finally:
                os.close(ended)
                result = running.wait()
        if result.succeeded and problem is None and (told := self._statistics()) is not None:
            if self._options.leave == "stopped":
                aftermath.await_stopped(self._root)
            else:
                aftermath.settle(self._root, before, result, exits)
            return result, told
        if self._stays_stopped_by_criu():
            let_go_on(self._root, result.run_id)
        if self._has_stopped:
            with contextlib.suppress(errors.ProcessGone):
                tree.resume(self._root, only=frozenset(tree.pids(self._root)) - aftermath.held_before(before))
        aftermath.settle(self._root, before, result, exits)
        if problem is not None:
            raise problem
        if result.succeeded:
            raise errors.CheckpointFailed("the dump was cancelled when all was written but the end", hint="try again")
        raise _Refused(result)

    def _statistics(self) -> statistics.DumpStatistics | None:
        """Return what CRIU measured; None when it was cancelled at the very end, so that it could not write this any more."""
        with contextlib.suppress(errors.InputError):
            return statistics.of_dump(self._work)
        return None

    def _work_at_freeze(self) -> None:
        began = time.monotonic()
        facts = tree.facts(self._root)
        self._facts = tuple(msgspec.structs.replace(fact, stopped=fact.host_pid in self._stopped) for fact in facts)
        _put_off(of_process.check(self._images, sees_own_proc=self._is_inside, owner=self._options.owner))
        if self._options.owner is not None:
            _refuse_others(self._images, self._options.owner)
        links.keep(self._images, self._options.owner)
        self._at_freeze()
        if self._options.leave == "stopped":
            self._has_stopped = True
            tree.stop(self._root)
        self._hook_s = time.monotonic() - began

    def _describe(self, result: Result, told: statistics.DumpStatistics, wired: tuple[Stream, ...]) -> Dumped:
        sizes = {entry.name: entry.stat().st_size for entry in self._images.iterdir()}
        return Dumped(
            images=self._images,
            log=Path(result.log_path),
            processes=self._facts,
            streams=wired,
            run_id=result.run_id,
            image_bytes=sum(sizes.values()),
            memory_bytes=sum(size for name, size in sizes.items() if name.startswith("pages-")),
            stopped_s=told.frozen_s,
            durations_s={
                "freeze": told.freezing_s,
                "memory": told.memory_s,
                "hook": self._hook_s,
                "dump": result.wall_s,
                "stopped": told.frozen_s,
            },
        )


def _opened(folder: Path, stack: contextlib.ExitStack) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _put_off(found: tuple[Finding, ...]) -> None:
    """Refuse images that could not be brought back since the tree was met with something that it has open for a moment only."""
    if found:
        raise errors.CheckpointLater(f"{found[0].code}: {found[0].subject}: {found[0].message}", hint=f"try again; or {found[0].remedy}")


def _refuse_others(images: Path, owner: Owner) -> None:
    """Refuse a tree that could not be brought back for `owner`: of these images no restore is made."""
    found = problems((*identity.check_images(images, owner), *guard.unsafe(images, owner)))
    if found:
        raise errors.CheckpointRefused(
            f"{found[0].code}: {found[0].subject}: {found[0].message}", hint=found[0].remedy or "", findings=found
        )


def _spare_from_oom(pid: int) -> None:
    """Let the kernel's search for memory take anybody but CRIU, whose end could be the workload's. Needs CAP_SYS_RESOURCE."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as handle:
        handle.write("-1000")


def _tcp_options(root: Tree, options: DumpOptions) -> tuple[str, ...]:
    if options.tcp == "keep":
        return ("--tcp-established",)
    # Both ends of a pair within the tree stand still: no packet filter is needed to hold it, and none has to be cleaned up.
    return _KEPT_WITHIN if connections.has_pair_within(tree.pids(root)) else _CLOSED


def _session_options(root: Tree) -> tuple[str, ...]:
    """A tree that somebody else started may belong to a session whose leader is outside: then it gets another one when it comes back."""
    return () if process.stat(root.pid).session in tree.pids(root) else ("--shell-job",)


_KEPT_WITHIN = ("--tcp-established", "--network-lock=skip")
_CLOSED = ("--tcp-close", "--network-lock=skip")


def _failure(result: Result, options: DumpOptions) -> errors.CheckpointFailed:
    kept = keep_log(result, options.log_to)
    explanation = result.explanation
    said = explanation.message if explanation else f"CRIU ended with {result.returncode}"
    remedy = f"{explanation.remedy}; " if explanation and explanation.remedy else ""
    return errors.CheckpointFailed(f"cannot save it: {said}", hint=f"{remedy}CRIU's log: {kept}")


def keep_log(result: Result, target: Path | None) -> Path:
    """Copy CRIU's log to `target` for a person to read, and return where it is; where it was when that cannot be done."""
    source = Path(result.log_path)
    if target is None:
        return source
    try:
        shutil.copyfile(source, target, follow_symlinks=False)
        target.chmod(0o600)
    except OSError:
        return source
    return target
