"""Lives on this machine: start the command of an arm in a cell, find its processes, end all of them. Called by `conduct` and `recover`.

Both arms are started, watched and ended by this code. Nothing that it starts outlives the harness: a cell ends everything below it when the
harness's end of a pipe closes, however that came about.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base.proc import process
from perdure.evaluation.places import Places
from perdure.model.evaluation import Arm

MARK = "PERDURE_EVAL_RUN"
"""Variable that holds the run's id in the environment of everything that a run starts: what a restored process still has, too."""
_CELL = Path(__file__).with_name("cell.py")
_ENDED_S = 60.0
"""A process that SIGKILL does not end within this time hangs in the kernel."""


class Told(msgspec.Struct, frozen=True):
    """What a cell tells."""

    started: int | None = None
    ended: int | None = None
    """Exit status of the command, minus the signal that ended it."""
    failed: str | None = None
    """Why the command could not be started."""
    errno: int | None = None


class Processes(msgspec.Struct, frozen=True):
    """The processes of a life, by the host's PIDs."""

    top: int
    """What the command became: the workload's main process, or `perdure run`."""
    main: int
    """The workload's main process."""
    tree: tuple[int, ...]
    """All of the workload, parents first."""
    supervisor: int | None = None
    """`perdure run` in the managed arm."""


class Life:
    """One life. `output` and `told` are descriptors to read from: what the command prints, and lines of what the cell tells.

    `is_node` gives it the namespaces of a node. Raises `errors.CommandMissing` or `errors.EnvironmentUnfit` when it cannot be started.
    """

    def __init__(self, command: tuple[str, ...], *, working_directory: str, environment: Mapping[str, str], is_node: bool) -> None:
        self._is_node = is_node
        self.output, output = os.pipe2(os.O_CLOEXEC)
        self.told, told = os.pipe2(os.O_CLOEXEC)
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        arguments = [sys.executable, "-I", "-S", str(_CELL), str(lifeline), str(told), *(["--node"] if is_node else []), "--", *command]
        try:
            self._cell = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=working_directory,
                env=dict(environment),
                pass_fds=(lifeline, told),
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (self.output, self.told, self._lifeline):
                os.close(descriptor)
            raise errors.EnvironmentUnfit(f"cannot start {command[0]} in {working_directory}: {error.strerror}") from error
        finally:
            for descriptor in (output, told, lifeline):
                os.close(descriptor)
        os.set_blocking(self.output, False)
        os.set_blocking(self.told, False)

    @property
    def pid(self) -> int:
        """PID of the cell."""
        return self._cell.pid

    def node(self) -> int:
        """Return the first process of the node that this life runs on. Raises `errors.ProcessGone` without one."""
        if not self._is_node:
            raise errors.ProcessGone("this life runs on no node of its own")
        return _first_child(self._cell.pid)

    def processes(self, arm: Arm) -> Processes:
        """Find the processes of this life. Raises `errors.ProcessGone` when there is no workload (any more)."""
        cell = self.node() if self._is_node else self._cell.pid
        return find(_first_child(cell), arm)

    def end(self) -> None:
        """End everything that belongs to this life; its pipes then come to their ends."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def close(self) -> None:
        """End it and wait until nothing of it is left. Raises `errors.EnvironmentUnfit` when something cannot be ended."""
        self.end()
        try:
            self._cell.wait(_ENDED_S)
        except subprocess.TimeoutExpired as error:
            raise errors.EnvironmentUnfit(
                f"process {self._cell.pid} and what it started do not end",
                hint="look for a process in state D: ps -ef; the kernel holds it",
            ) from error
        for descriptor in (self.output, self.told):
            os.close(descriptor)


def set_up(command: tuple[str, ...], working_directory: str | None, environment: Mapping[str, str], log: Path) -> None:
    """Run the plan's setup before a run; what it prints goes to `log`. Raises `errors.EnvironmentUnfit` unless it ends with 0."""
    with open(log, "wb") as output:
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=working_directory,
                env=dict(environment),
                check=False,
            )
        except OSError as error:
            raise errors.EnvironmentUnfit(f"workload.setup cannot be started: {error.strerror}", hint="correct it in the plan") from error
    if done.returncode != 0:
        raise errors.EnvironmentUnfit(f"workload.setup ended with {done.returncode}", hint=f"see {log}")


def find(top: int, arm: Arm) -> Processes:
    """Find the processes of a workload from `top`, the process of its command. Raises `errors.ProcessGone`.

    Perdure starts a workload in a PID namespace of its own: the first process of another namespace below `perdure run` is its init, and
    the main process is the init's first child.
    """
    below = process.descendants(top)
    if arm is Arm.UNMANAGED:
        return Processes(top, top, (top, *below))
    here = _namespace(top)
    for pid in below:
        try:
            if _namespace(pid) == here or _namespace(process.stat(pid).parent) != here:
                continue
            children = process.children(pid)
            return Processes(top, children[0] if children else pid, (pid, *process.descendants(pid)), top)
        except errors.ProcessGone:
            continue
    raise errors.ProcessGone("perdure run has no workload, or not any more")


def recognise(pid: int) -> Processes:
    """Find the processes of a workload that a person names by a process: `perdure run` itself, or the workload's own first process.

    Raises `errors.ProcessGone`, and `errors.UsageError` for a process that is no workload's: the first one, or one that we run below.
    """
    if pid <= 1:
        raise errors.UsageError(f"process {pid} is no workload: everything hangs on it", hint="name the workload's own first process")
    below = process.descendants(pid)
    if os.getpid() in (pid, *below):
        raise errors.UsageError(
            f"this command itself runs below process {pid} and would be broken with it", hint="name the workload's own first process"
        )
    here = _namespace(pid)
    for each in below:
        with contextlib.suppress(errors.ProcessGone):
            if _namespace(each) != here:
                return find(pid, Arm.MANAGED)
    return find(pid, Arm.UNMANAGED)


def kill(pids: tuple[int, ...], number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to each of `pids` and return how many were there."""
    reached = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached += 1
    return reached


def leftovers(run_id: str) -> tuple[int, ...]:
    """Return the processes that carry the mark of a run, wherever they are in the tree of processes."""
    found = []
    for pid in process.pids():
        with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
            if process.environment(pid).get(MARK) == run_id and not process.stat(pid).is_dead:
                found.append(pid)
    return tuple(found)


def _namespace(pid: int) -> int:
    """Return the PID namespace of a process. Raises `errors.ProcessGone`, also for a zombie, which has left it."""
    found = process.namespaces(pid).get("pid")
    if found is None:
        raise errors.ProcessGone(f"process {pid} is not there any more")
    return found


def _first_child(pid: int) -> int:
    children = process.children(pid)
    if not children:
        raise errors.ProcessGone(f"process {pid} has started nothing, or it has ended")
    return children[0]


def remove(there: Places) -> None:
    """Remove what is not kept of a run: Perdure's state with the store, its sockets, and a scratch folder that nothing was put into."""
    for place in (there.state, there.run_dir):
        shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(OSError):
        there.scratch.rmdir()
