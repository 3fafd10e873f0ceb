"""What a dump leaves of the tree: every task running again, or all of them stopped, looked at and not assumed. Called by `dump`."""

from __future__ import annotations

import contextlib
import signal
import time

from perdure import errors
from perdure.base.proc.exits import Exits
from perdure.checkpoint import remaps, tree
from perdure.checkpoint.criu.run import Result
from perdure.checkpoint.tree import Process, Tree

_SETTLE_S = 10.0
_BROKEN_S = 0.3
"""A task that a CRIU which failed has broken dies when it runs next: by then it has run."""

BROKEN = signal.SIGTRAP
"""What a task dies of when it runs into the code that CRIU has put into it, with no CRIU there to take the trap."""

_STEP_S = 0.01
_AT_REST = frozenset("TZX")


def settle(root: Tree, before: tuple[Process, ...], result: Result, exits: Exits) -> None:
    """See to it that every task of `root` runs again which ran in `before`, after the dump that ended with `result`.

    `exits` has watched them meanwhile. Raises `errors.CheckpointFailed` when one cannot be brought to run, `errors.WorkloadLost` when one
    died of a CRIU that was killed or lost hold of it, `errors.ProcessGone` when the tree has ended otherwise.
    """
    left = held_before(before)
    began = time.monotonic()
    while True:
        if result.tree_ended or not tree.is_alive(root):
            # An init on its way out waits for all others first: how it ended is told after that.
            exits.wait(root.pid, _SETTLE_S)
            _look_for_trapped(before, result, exits)
            raise _gone(root, result)
        held = _held(root, left)
        passed_s = time.monotonic() - began
        if not held and (passed_s > _BROKEN_S or result.succeeded):
            break
        if passed_s > _SETTLE_S:
            raise errors.CheckpointFailed(
                f"after the dump, processes {', '.join(map(str, held))} do not run on", hint="kill -CONT them; see the log of CRIU"
            )
        with contextlib.suppress(errors.ProcessGone):
            tree.resume(root, leave=left)
        time.sleep(_STEP_S)
    _look_for_trapped(before, result, exits)
    if result.returncode < 0:
        _look_for_broken(root, before, result)


def await_stopped(root: Tree) -> None:
    """Wait until every task has come to its stop: each does so by itself, when CRIU has let it go. Raises `errors.CheckpointFailed`."""
    end = time.monotonic() + _SETTLE_S
    while not all(process.is_dead or set(process.states.values()) <= _AT_REST for process in tree.members(root)):
        if time.monotonic() > end:
            raise errors.CheckpointFailed("after the dump the workload cannot be stopped", hint="see CRIU's log")
        time.sleep(_STEP_S)


def held_before(before: tuple[Process, ...]) -> frozenset[int]:
    """Return the PIDs of those that somebody else had stopped or traced: that is theirs to end."""
    return frozenset(process.pid for process in before if process.is_stopped or process.tracer)


def _held(root: Tree, left: frozenset[int]) -> list[int]:
    with contextlib.suppress(errors.ProcessGone):
        return [process.pid for process in tree.members(root) if process.pid not in left and (process.is_stopped or process.tracer)]
    return []


def _look_for_trapped(before: tuple[Process, ...], result: Result, exits: Exits) -> None:
    if result.succeeded:
        return
    trapped = exits.killed_by({BROKEN})
    if trapped:
        names = ", ".join(f"{process.command} ({process.pid})" for process in before if process.pid in trapped)
        raise errors.WorkloadLost(
            f"CRIU lost hold of processes while it dumped, and these died of it ({BROKEN.name}): {names}",
            hint="end the workload and resume it from the checkpoint before",
        )


def _look_for_broken(root: Tree, before: tuple[Process, ...], result: Result) -> None:
    found = tree.members(root)
    remaps.sweep(process.pid for process in found)
    there = {process.pid for process in found if not process.is_dead}
    died = [process for process in before if process.pid not in there and not process.is_dead]
    if died:
        names = ", ".join(f"{process.command} ({process.pid})" for process in died)
        raise errors.WorkloadLost(
            f"CRIU was killed ({_signal_name(result.returncode)}) while it dumped, and these processes are gone since: {names}",
            hint="end the workload and resume it from the checkpoint before",
        )


def _gone(root: Tree, result: Result) -> errors.PerdureError:
    if result.returncode < 0 and not result.tree_ended:
        return errors.WorkloadLost(
            f"CRIU was killed ({_signal_name(result.returncode)}) while it dumped, and the workload died of it",
            hint="resume it from the checkpoint before",
        )
    return errors.ProcessGone(f"process {root.pid} ended while it was saved")


def _signal_name(returncode: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(-returncode).name
    return f"signal {-returncode}"
