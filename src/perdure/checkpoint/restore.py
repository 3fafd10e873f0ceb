"""Bring a saved tree back from its images.

Called by the supervisor from its main thread: the kernel ends the tree when that thread ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.checkpoint import connections, links, streams, tree
from perdure.checkpoint.criu import run
from perdure.checkpoint.criu.run import Action, Call, Criu, Result
from perdure.checkpoint.dump import GHOST_LIMIT, STANDING, keep_log, timeout_for
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Stream

_PID_FILE = "pid"


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to restore. `streams` are those of the manifest, `descriptors` ours for each of them that had an other side."""

    streams: tuple[Stream, ...]
    descriptors: dict[int, int]
    expected_bytes: int
    """About how much the images hold; the time allowed follows from it."""
    tcp: Literal["close", "keep"] = "close"
    log_to: Path | None = None
    """Where CRIU's log is put when it fails; None: it stays in the work folder."""


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

    Raises `errors.RestoreFailed` with CRIU's reason; nothing of the tree is left then.
    """
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("the tree would end with this thread")
    tcp, closed = tcp_options(images, options)
    inherited, descriptors = streams.inherited(options.streams, options.descriptors)
    linked = links.put_back(images)
    before = frozenset(process.children(os.getpid()))
    result = run.run(
        criu,
        Call(
            action=Action.RESTORE,
            images=str(images),
            work=str(work),
            timeout_s=timeout_for(options.expected_bytes),
            options=("--restore-detached", "--restore-sibling", f"--pidfile={_PID_FILE}", *STANDING, GHOST_LIMIT, *tcp, *inherited),
            pass_fds=descriptors,
        ),
    )
    if not result.succeeded:
        _remove_leftovers(before)
        links.remove(linked)
        raise failure(result, options)
    pid = int((work / _PID_FILE).read_text("ascii"))
    try:
        found = Tree(pid=pid, start_ticks=tree.start_ticks_of(pid))
    except errors.ProcessGone:
        raise errors.RestoreFailed("the workload ended at the moment it was restored", hint=f"CRIU's log: {result.log_path}") from None
    return Restored(tree=found, wall_s=result.wall_s, log=Path(result.log_path), closed_connections=closed)


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
