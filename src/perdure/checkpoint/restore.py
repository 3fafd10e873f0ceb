"""Bring a saved tree back from its images.

Called by the supervisor from its main thread: the kernel ends the tree when that thread ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import connections, ghosts, guard, identity, links, of_process, serving, streams, tree, views
from perdure.checkpoint.criu import run
from perdure.checkpoint.criu.run import Action, Call, Criu, Result
from perdure.checkpoint.dump import GHOST_LIMIT, STANDING, keep_log, timeout_for
from perdure.checkpoint.frozen import MEETING, SCRIPT, Frozen
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Owner, Stream
from perdure.model.finding import Finding, problems

_PID_FILE = "pid"
_MEETING = "criu"
"""Folder beside that of the images, where `frozen.sh` looks for us."""


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to restore. `streams` are those of the manifest, `descriptors` ours for each of them that had an other side."""

    streams: tuple[Stream, ...]
    descriptors: dict[int, int]
    expected_bytes: int
    """About how much the images hold; the time allowed follows from it."""
    tcp: Literal["close", "keep"] = "close"
    log_to: Path | None = None
    """Where CRIU's log is put when it fails; None: it stays in the work folder."""
    owner: Owner | None = None
    """The ordinary user that all of the tree but its init runs as; None: as whoever it ran as."""
    at_rest: Callable[[int], None] | None = None
    """Called with the first task's PID by the host when all is there and nothing has run yet; what it raises ends the restore."""
    pages: Mapping[str, serving.Content] = {}
    """Images that do not lie in the folder, by their names: read when CRIU asks for them."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A tree that runs again; that it lives on is for `alive` to see."""

    tree: Tree
    wall_s: float
    log: Path
    closed_connections: int
    """TCP connections to others that were turned into closed sockets one by one; where all are closed they are not counted."""


def restore(images: Path, work: Path, options: RestoreOptions, criu: Criu) -> Restored:
    """Bring the tree in the folder `images` back; `work` is an existing private folder for CRIU's log.

    The tree is a child of this process, in a PID namespace of its own as before, and has the streams of `options`. The images are
    changed where connections are closed.

    Raises `errors.RestoreFailed` with CRIU's reason, `errors.RestoreRefused` where a user's tree would have other rights than the user or
    something open that the user may not, or where files of its processes in /proc cannot be opened again, and what the reading of
    `options.pages` raises; nothing of the tree is left then.
    """
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("the tree would end with this thread")
    meeting = images.parent / _MEETING
    meeting.mkdir(mode=0o700, exist_ok=True)
    with views.View(meeting) as view:  # which is made meanwhile
        if options.owner is not None:
            refuse((*identity.check_images(images, options.owner), *guard.look_before(images, options.owner)))
        refuse(of_process.check(images, sees_own_proc=view.namespace is not None, owner=options.owner))
        tcp, closed = tcp_options(images, options)
        inherited, descriptors = streams.inherited(options.streams, options.descriptors)
        variables: tuple[tuple[str, str], ...] = ()
        if view.namespace is not None:
            view.leave_address(meeting)
            criu, descriptors = views.entered(criu, f"/proc/self/fd/{view.namespace}"), (*descriptors, view.namespace)
            variables = ((MEETING, str(meeting.resolve())),)
        linked = links.put_back(images, options.owner)
        before = frozenset(process.children(os.getpid()))
        standing = ("--restore-detached", "--restore-sibling", f"--pidfile={_PID_FILE}", *STANDING, GHOST_LIMIT)
        with _served(images, options.pages) as server:
            call = Call(
                action=Action.RESTORE,
                images=str(images),
                work=str(work),
                timeout_s=timeout_for(options.expected_bytes),
                action_script=str(SCRIPT),
                variables=variables,
                options=(*standing, *tcp, *inherited, *(("--stream",) if server else ())),
                pass_fds=descriptors,
            )
            result, problem = _watched(criu, call, images, options, view)
            if not result.succeeded:
                # Before the server is left: one of them could hold a pipe open.
                _remove_leftovers(before)
                problem = problem or view.problem()
    if not result.succeeded:
        links.remove(linked, options.owner)
        if problem is not None:
            raise problem
        if server is not None and server.problem is not None:
            raise server.problem
        raise failure(result, options)
    pid = int((work / _PID_FILE).read_text("ascii"))
    try:
        found = Tree(pid=pid, start_ticks=tree.start_ticks_of(pid))
    except errors.ProcessGone:
        raise errors.RestoreFailed("the workload ended at the moment it was restored", hint=f"CRIU's log: {result.log_path}") from None
    return Restored(tree=found, wall_s=result.wall_s, log=Path(result.log_path), closed_connections=closed)


def _watched(criu: Criu, call: Call, images: Path, options: RestoreOptions, view: views.View) -> tuple[Result, BaseException | None]:
    """Restore, and let no task take a step before what it has open was looked at for its owner; return also what was raised by then."""
    problem: BaseException | None = None
    owner = options.owner
    with ghosts.moved(images) if owner is not None else contextlib.nullcontext(), Frozen(images.parent / _MEETING) as frozen:
        running = run.start(criu, call)
        ended = os.pidfd_open(running.pid)
        try:
            if frozen.wait(ended, call.timeout_s):
                try:
                    if view.namespace is not None:
                        view.close_proc()
                    if owner is not None:
                        refuse(guard.look_at(frozen.root, images, owner))
                    if options.at_rest is not None:
                        options.at_rest(frozen.root)
                    frozen.release()
                except BaseException as error:  # noqa: BLE001 - CRIU has to end first; raised again by the caller
                    problem = error
                    frozen.refuse()
        finally:
            os.close(ended)
            result = running.wait()
    return result, problem


def refuse(findings: tuple[Finding, ...]) -> None:
    """Raise `errors.RestoreRefused` when there is a problem among `findings`."""
    found = problems(findings)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise errors.RestoreRefused(
            f"{found[0].code}: {found[0].subject}: {found[0].message}{more}",
            hint=found[0].remedy or "see perdure check --restore",
            findings=findings,
        )


@contextlib.contextmanager
def _served(images: Path, pages: Mapping[str, serving.Content]) -> Iterator[serving.Server | None]:
    if not pages:
        yield None
        return
    with serving.Server(images, pages) as server:
        yield server


def tcp_options(images: Path, options: RestoreOptions) -> tuple[tuple[str, ...], int]:
    """Return what CRIU is told of connections, and how many were closed in the images. Raises `errors.InputFormat`."""
    if not connections.are_saved(images):
        return ("--tcp-close",), 0
    if options.tcp == "keep":
        return ("--tcp-established",), 0
    return ("--tcp-established", "--network-lock=skip"), connections.close_outside(images)


def _remove_leftovers(before: frozenset[int]) -> None:
    """End and reap what a failed restore left: children of ours in another PID namespace that were not there before."""
    for pid in process.children(os.getpid()):
        if pid in before:
            continue
        with contextlib.suppress(errors.ProcessGone, ChildProcessError, ProcessLookupError):
            if len(process.status(pid).namespace_pids) > 1:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def failure(result: Result, options: RestoreOptions) -> errors.RestoreFailed:
    """Return the error for a CRIU that did not restore, its log kept."""
    kept = keep_log(result, options.log_to)
    explanation = result.explanation
    said = explanation.message if explanation else f"CRIU ended with {result.returncode}"
    remedy = f"{explanation.remedy}; " if explanation and explanation.remedy else ""
    return errors.RestoreFailed(f"cannot restore it: {said}", hint=f"{remedy}CRIU's log: {kept}")
