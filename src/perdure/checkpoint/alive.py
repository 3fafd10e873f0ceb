"""See that a restored tree lives, before anybody is told that it does. Called by the supervisor right after `restore`.

CRIU's success means that the tasks were started. Alive means: the processes of the manifest, a moment later, in our control group, none
stopped, seen to move or all of them waiting for something; and the user's own probe, where there is one, passes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Literal

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.base.proc.process import cgroups
from perdure.checkpoint import probes, tree
from perdure.checkpoint.tree import Process, Tree
from perdure.model.checkpoint import ProcessFact

_MOMENT_S = 0.2
"""What dies of a faulty restore dies at its first steps."""

_WAITING_S = 0.5
"""A tree of which no thread wants to run, and none has run for so long, waits for something, or is held."""

_MOST_S = 5.0
"""How long a task that wants to run may take to get a processor on a busy machine."""

_STEP_S = 0.02


class Alive(msgspec.Struct, frozen=True):
    """A tree that was seen to live."""

    progress: Literal["moved", "waiting", "ended"]
    """``moved``: a process was seen to run; ``waiting``: all wait for something, none is held; ``ended``: it ended by itself meanwhile."""
    moved: tuple[int, ...]
    """PIDs here of the processes that were seen to run."""
    missing: tuple[ProcessFact, ...]
    """Processes of the manifest that had ended by the first look: usual for short ones, a bad sign for others."""
    probe: str | None
    """First line of what the probe said; None: there was none."""
    wall_s: float


def verify(root: Tree, expected: tuple[ProcessFact, ...], probe: probes.Probe | None) -> Alive:
    """Look at the tree until it has been seen to move or to wait, at most five seconds, then run the probe.

    The tree is a child of this process. `expected` are the processes of the manifest. A workload that ends by itself in this moment has
    lived. Raises `errors.RestoreFailed` with what is wrong; the tree is left as it is.
    """
    began = time.monotonic()
    moved: frozenset[int] = frozenset()
    missing: tuple[ProcessFact, ...] = ()

    def seen(progress: Literal["moved", "waiting", "ended"], said: str | None) -> Alive:
        return Alive(progress, tuple(sorted(moved)), missing, said, time.monotonic() - began)

    first = now = _look(root, expected)
    if not now:
        return seen("ended", None)
    missing = _missing(now, expected)
    _check_cgroup(root)
    woken: set[int] = set()
    while _wake(root, now, expected, woken) or not _is_enough(time.monotonic() - began, now, has_moved=bool(moved)):
        time.sleep(_STEP_S)
        now = _look(root, expected)
        if not now:
            return seen("ended", None)
        moved |= moved_between(first, now)
    _check_not_alone(now, expected)
    _check_none_held(now, expected)
    said = probes.start(probe).wait() if probe else None
    return seen("moved" if moved else "waiting", said)


def _is_enough(passed_s: float, now: tuple[Process, ...], *, has_moved: bool) -> bool:
    if has_moved:
        return passed_s >= _MOMENT_S
    is_at_rest = all(state in "SITt" or process.is_dead for process in now for state in process.states.values())
    return passed_s >= (_WAITING_S if is_at_rest else _MOST_S)


def moved_between(first: tuple[Process, ...], now: tuple[Process, ...]) -> frozenset[int]:
    """Return the PIDs of those in both that ran in between, the root left out: an init that runs says nothing of its workload.

    Tasks that run are seen by processor time or by context switches; one that CRIU has just let go counts only from then on.
    """
    before = {process.pid: process for process in first[1:]}
    return frozenset(
        process.pid
        for process in now
        if (old := before.get(process.pid)) and (process.ticks, process.switches) != (old.ticks, old.switches)
    )


def _look(root: Tree, expected: tuple[ProcessFact, ...]) -> tuple[Process, ...]:
    """Return the tree's processes; empty when it has ended by itself, well or badly. Raises `errors.RestoreFailed` when it died."""
    if _runs(root):
        with contextlib.suppress(errors.ProcessGone):
            found = tree.members(root)
            if not _is_alone(found, expected) or not _ends_soon(root):
                return found
    ended = os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
    if ended is not None:
        status = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
        if status > 128:
            raise errors.RestoreFailed(
                f"the workload died of {_signal_name(status - 128)} a moment after it was restored", hint="try an older checkpoint"
            )
    return ()


def _runs(root: Tree) -> bool:
    """Tell whether the init still runs code: from its first step to the end until it can be reaped, namespaces are taken down."""
    with contextlib.suppress(errors.ProcessGone):
        return tree.is_alive(root) and not process.stat(root.pid).is_exiting
    return False


def _ends_soon(root: Tree) -> bool:
    """Tell whether an init that has no processes left ends, as it has to."""
    descriptor = os.pidfd_open(root.pid)
    try:
        ready = select.poll()  # not select(): descriptors may have numbers above 1023
        ready.register(descriptor, select.POLLIN)
        return bool(ready.poll(_MOST_S * 1000.0))
    finally:
        os.close(descriptor)


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _missing(found: tuple[Process, ...], expected: tuple[ProcessFact, ...]) -> tuple[ProcessFact, ...]:
    there = {process.inner_pid for process in found}
    return tuple(fact for fact in expected if fact.pid not in there)


def _check_cgroup(root: Tree) -> None:
    """What limits us has to limit the tree, and what ends us has to find it: it belongs to our own control group."""
    with contextlib.suppress(errors.ProcessGone):
        ours, theirs = cgroups(os.getpid()), cgroups(root.pid)
        # One that died meanwhile belongs to no group any more: what it died of is told by whoever looks next.
        if ours != theirs and _runs(root):
            apart = ", ".join(path for controllers, path in theirs.items() if ours.get(controllers) != path)
            raise errors.RestoreFailed(f"the restored workload sits in another control group: {apart}", hint="see CRIU's log")


def _is_alone(found: tuple[Process, ...], expected: tuple[ProcessFact, ...]) -> bool:
    return len(found) == 1 < len(expected)


def _check_not_alone(found: tuple[Process, ...], expected: tuple[ProcessFact, ...]) -> None:
    """One process or the other may end by itself as soon as it runs; that all are gone while their init lives on cannot be."""
    if _is_alone(found, expected):
        names = ", ".join(f"{fact.command} ({fact.pid})" for fact in expected[1:])
        raise errors.RestoreFailed(f"the workload's processes are gone a moment after the restore: {names}", hint="try an older checkpoint")


def _wake(root: Tree, found: tuple[Process, ...], expected: tuple[ProcessFact, ...], woken: set[int]) -> bool:
    """Let those go on, once each, that a signal stopped which reached them in the middle of the dump; return whether there were any.

    CRIU saves signals that wait. The workload was let go on then, for all stand still during a dump, and who sent the signal is not here.
    """
    stopped = frozenset(process.pid for process in _held(found, expected) if not process.tracer) - woken
    woken |= stopped
    with contextlib.suppress(errors.ProcessGone):
        return bool(stopped and tree.resume(root, only=stopped))
    return False


def _held(found: tuple[Process, ...], expected: tuple[ProcessFact, ...]) -> list[Process]:
    was_stopped = {fact.pid for fact in expected if fact.stopped}
    return [process for process in found if process.inner_pid not in was_stopped and (process.is_stopped or process.tracer)]


def _check_none_held(found: tuple[Process, ...], expected: tuple[ProcessFact, ...]) -> None:
    held = _held(found, expected)
    if held:
        names = ", ".join(f"{process.command} ({process.pid})" for process in held)
        raise errors.RestoreFailed(f"after the restore these processes stand still: {names}", hint="see CRIU's log")
