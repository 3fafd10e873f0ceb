"""A workload's process tree, seen from the host: who is in it, in what state, has it moved; signals and the end.

Called by everything in this room and by the supervisor. A tree is named by its init: PID and start time together stay unique for as
long as the machine is up.
"""

from __future__ import annotations

import contextlib
import os
import signal

import msgspec

from perdure import errors
from perdure.base.proc import process, reading
from perdure.model.checkpoint import ProcessFact

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Tree(msgspec.Struct, frozen=True):
    """A tree of processes, by its root: the init of its PID namespace, or the process that was adopted."""

    pid: int
    """The host's."""
    start_ticks: int
    """Start of the root after boot, in clock ticks."""


class Process(msgspec.Struct, frozen=True):
    """One process of a tree at one instant. PIDs are the host's, but for `inner_pid`."""

    pid: int
    inner_pid: int
    parent: int
    start_ticks: int
    command: str
    states: dict[int, str]
    """Of each thread: one letter, as in /proc/PID/stat."""
    tracer: int
    ticks: int
    """Processor time used, in clock ticks."""
    switches: int
    """Context switches of all its threads."""

    @property
    def is_dead(self) -> bool:
        """Tell whether it has ended and only waits to be reaped."""
        return all(state in "ZXx" for state in self.states.values())

    @property
    def is_stopped(self) -> bool:
        """Tell whether a thread is stopped by a signal or held by a tracer."""
        return any(state in "Tt" for state in self.states.values())


def start_ticks_of(pid: int) -> int:
    """Return the start time of process `pid`, to name its tree. Raises `errors.ProcessGone`."""
    return process.stat(pid).start_ticks


def is_alive(tree: Tree) -> bool:
    """Tell whether the root still runs: the same process, not a zombie."""
    try:
        found = process.stat(tree.pid)
    except errors.ProcessGone:
        return False
    return found.start_ticks == tree.start_ticks and not found.is_dead


def pids(tree: Tree) -> tuple[int, ...]:
    """Return the host's PIDs of the tree, the root first, each parent before its children. Raises `errors.ProcessGone`.

    Complete while the tree stands still; while it runs, what starts in between may be missing.
    """
    if start_ticks_of(tree.pid) != tree.start_ticks:
        raise errors.ProcessGone(f"process {tree.pid} is another one now")
    return (tree.pid, *process.descendants(tree.pid))


def members(tree: Tree) -> tuple[Process, ...]:
    """Return the processes of the tree, the root first, zombies included. Raises `errors.ProcessGone` when the root is gone."""
    found = []
    for pid in pids(tree):
        with contextlib.suppress(errors.ProcessGone):
            found.append(look(pid))
    return tuple(found)


def look(pid: int) -> Process:
    """Return the state of process `pid`. Raises `errors.ProcessGone`."""
    stat = process.stat(pid)
    status = process.status(pid)
    states: dict[int, str] = {}
    switches = 0
    for thread in process.threads(pid):
        with contextlib.suppress(errors.ProcessGone):
            states[thread] = process.thread_stat(pid, thread).state
            told = process.parse_status(reading.content(pid, f"task/{thread}/status"))
            switches += told.voluntary_switches + told.involuntary_switches
    return Process(
        pid=pid,
        inner_pid=status.inner_pid,
        parent=stat.parent,
        start_ticks=stat.start_ticks,
        command=stat.command,
        states=states,
        tracer=status.tracer,
        ticks=stat.ticks,
        switches=switches,
    )


def facts(tree: Tree) -> tuple[ProcessFact, ...]:
    """Return what a manifest says of the tree's living processes; parents are inner PIDs, 0 for the root. Raises `errors.ProcessGone`."""
    found: dict[int, ProcessFact] = {}
    for pid in pids(tree):
        with contextlib.suppress(errors.ProcessGone):
            stat = process.stat(pid)
            if stat.is_dead:
                continue
            status = process.status(pid)
            above = found.get(stat.parent)
            found[pid] = ProcessFact(
                pid=status.inner_pid,
                parent=above.pid if above else 0,
                host_pid=pid,
                command=stat.command,
                executable=process.executable(pid)[0],
                uid=status.uids[1],
                gid=status.gids[1],
                threads=stat.threads,
                resident_bytes=int(reading.content(pid, "statm").split()[1]) * _PAGE_BYTES,
            )
    return tuple(found.values())


def open_pidfd(tree: Tree) -> int:
    """Return a descriptor of the root that becomes readable when it ends. Raises `errors.ProcessGone`."""
    try:
        descriptor = os.pidfd_open(tree.pid)
    except ProcessLookupError as error:
        raise errors.ProcessGone(f"process {tree.pid} is not there, or not any more") from error
    try:
        same = start_ticks_of(tree.pid) == tree.start_ticks
    except errors.ProcessGone:
        same = False
    if not same:
        os.close(descriptor)
        raise errors.ProcessGone(f"process {tree.pid} is another one now")
    return descriptor


def send(tree: Tree, number: int) -> bool:
    """Send a signal to the root, which passes it on to the command's group. Returns whether the root was there."""
    try:
        descriptor = open_pidfd(tree)
    except errors.ProcessGone:
        return False
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def send_to_child(tree: Tree, inner_pid: int, number: int) -> bool:
    """Send a signal to the root's child that is `inner_pid` in its own namespace, and to no other; to the root where there is none such.

    Returns whether somebody was there.
    """
    with contextlib.suppress(errors.ProcessGone):
        for pid in process.children(tree.pid):
            if process.status(pid).inner_pid == inner_pid:
                return send(Tree(pid, start_ticks_of(pid)), number)
    return send(tree, number)


def kill(tree: Tree) -> None:
    """End the whole tree at once: with its init the kernel ends every process of the namespace. `reap` returns soon after."""
    send(tree, signal.SIGKILL)


def reap(tree: Tree, *, wait: bool) -> int | None:
    """Return the exit status of a tree that is our child: 0 to 255, 128+n for signal n. None when it still runs and `wait` is false.

    Raises `errors.ProcessGone` when it is no child of ours, or was reaped before.
    """
    try:
        pid, raw = os.waitpid(tree.pid, 0 if wait else os.WNOHANG)
    except ChildProcessError as error:
        raise errors.ProcessGone(f"process {tree.pid} is no child of this one") from error
    if pid == 0:
        return None
    status = os.waitstatus_to_exitcode(raw)
    return status if status >= 0 else 128 - status


def stop(tree: Tree) -> None:
    """Stop every process of the tree; one that is held by a tracer stops as soon as it is let go. Raises `errors.ProcessGone`."""
    for pid in pids(tree):
        _signal(pid, signal.SIGSTOP)


def stop_running(tree: Tree) -> frozenset[int]:
    """Stop every process of the tree that is not stopped or held by a tracer; returns their PIDs. Raises `errors.ProcessGone`.

    One that somebody else has stopped is not stopped a second time, so that it goes on when they let it.
    """
    running = frozenset(found.pid for found in members(tree) if not found.is_stopped)
    for pid in running:
        _signal(pid, signal.SIGSTOP)
    return running


def resume(tree: Tree, *, leave: frozenset[int] = frozenset(), only: frozenset[int] | None = None) -> tuple[int, ...]:
    """Let every stopped process of the tree go on, but for the PIDs in `leave`; returns those that were stopped.

    With `only`, these alone: they were stopped by the caller, and are sent on however they look, since a stop may still be on its way to
    one that waits in the kernel or has no processor.

    Raises `errors.ProcessGone` when the root is gone.
    """
    chosen = [found for found in members(tree) if (found.is_stopped and found.pid not in leave if only is None else found.pid in only)]
    # Children first: a shell that sees its child go on has not missed that it stopped.
    for found in reversed(chosen):
        _signal(found.pid, signal.SIGCONT)
    return tuple(found.pid for found in chosen if found.is_stopped)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
