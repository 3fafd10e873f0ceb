"""Move a workload's GPU memory away and back, without a checkpoint: for several workloads that take turns on one GPU. Called by `keeper`.

What is moved stays in the memory of the very processes; nothing is stored. A checkpoint of a suspended workload leaves it suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from perdure import errors
from perdure.base import units
from perdure.checkpoint import tree
from perdure.checkpoint.cuda import mapping, processes
from perdure.checkpoint.cuda.contract import State
from perdure.checkpoint.preflight import gpu_room, gpu_states
from perdure.supervisor import messages, record
from perdure.supervisor.control import Client
from perdure.supervisor.jobs import Job
from perdure.supervisor.life import Life
from perdure.supervisor.messages import Answer
from perdure.supervisor.reactor import Reactor


class Moved(msgspec.Struct, frozen=True):
    """What a suspension or its end did."""

    state: record.State
    took_s: float | None
    """None: there was nothing to do."""
    gpu_bytes: int | None = None


class Suspending:
    """Suspends and resumes one life. `changed` is called whenever one of both has ended; `lost` when the driver has lost the workload."""

    def __init__(self, life: Life, reactor: Reactor, *, changed: Callable[[], None], lost: Callable[[errors.WorkloadLost], None]) -> None:
        self._life = life
        self._reactor = reactor
        self._changed = changed
        self._lost = lost
        self._waiting: list[tuple[messages.Suspend | messages.Resume, Client]] = []
        self._client: Client | None = None

    @property
    def is_busy(self) -> bool:
        """Tell whether GPU memory is being moved."""
        return self._client is not None

    def ask(self, request: messages.Suspend | messages.Resume, client: Client) -> None:
        """Take note that `client` wants it. `goes_on` begins it."""
        self._waiting.append((request, client))

    def goes_on(self) -> bool:
        """Begin what was asked for, if nothing is under way. Returns whether something is."""
        if self._client is None and self._waiting:
            request, self._client = self._waiting.pop(0)
            work = self._suspend(request.within_s) if isinstance(request, messages.Suspend) else self._resume
            Job(self._reactor, "perdure-gpu", work, self._ended)
        return self.is_busy

    def refuse(self, error: errors.PerdureError) -> None:
        """Tell everybody who waits that it does not come to that any more."""
        waiting, self._waiting = self._waiting, []
        for _, client in waiting:
            client.refuse(error)

    def _suspend(self, within_s: float) -> Callable[[], Moved]:
        return lambda: self._suspended(within_s)

    def _suspended(self, within_s: float) -> Moved:
        life = self._life
        if life.gpus.is_on_purpose:
            return Moved(record.State.SUSPENDED, None)
        began_s = time.monotonic()
        moved_bytes = life.gpus.look(life.tree)
        if moved_bytes is None:
            raise _without_cuda(life.name)
        self._require_room(moved_bytes)
        if not life.gpus.set_aside(life.tree, lock_s=within_s):
            raise _without_cuda(life.name)
        sizes = [size for sizes in life.gpus.aside.values() for size in sizes.values()]
        is_told = bool(sizes) and None not in sizes
        return Moved(record.State.SUSPENDED, time.monotonic() - began_s, moved_bytes if is_told else None)

    def _resume(self) -> Moved:
        life = self._life
        if not life.gpus.is_on_purpose:
            return Moved(record.State.RUNNING, None)
        began_s = time.monotonic()
        planned = self._plan_back()
        try:
            life.gpus.resume_left(life.tree, planned)
        except errors.WorkloadLost as lost:
            if self._is_whole():
                raise errors.GpuFailed(f"{lost}; it stays suspended", hint="see who uses the GPU: nvidia-smi; then try again") from lost
            raise
        return Moved(record.State.RUNNING, time.monotonic() - began_s)

    def _require_room(self, moved_bytes: int) -> None:
        """Raise `errors.EnvironmentUnfit` unless the machine has memory for what is to be moved there."""
        free_bytes = gpu_room.free_bytes(self._life.tree.pid)
        if moved_bytes > free_bytes:
            most, why = ("", "") if self._life.gpus.is_told else ("at most ", " (NVML does not tell how much)")
            raise errors.EnvironmentUnfit(
                f"{self._life.name} has {most}{units.format_size(moved_bytes)} of GPU memory{why}, "
                f"{units.format_size(free_bytes)} of memory is free",
                hint=f"free memory, or save it and end it: perdure checkpoint {self._life.name} --stop",
            )

    def _plan_back(self) -> mapping.Map:
        """Return which GPUs it comes back on: those that it was on, or others of their kind that it may use.

        Raises `errors.WorkloadBusy` where there is no room: a driver that has none may leave a process stuck.
        """
        try:
            return self._life.gpus.plan_back(self._life.variables)
        except errors.RestoreRefused as refused:
            raise errors.WorkloadBusy(
                f"{self._life.name} cannot come back now: {refused}",
                hint="suspend or end what uses the GPU first: perdure ps, nvidia-smi",
            ) from refused

    def _is_whole(self) -> bool:
        """Tell whether the driver still says of all its processes that their GPU state is in their own memory."""
        known = self._life.gpus.aside
        found = [one for one in processes.find(tree.pids(self._life.tree)) if one.pid in known]
        states = gpu_states.asker(self._life.gpus.helper)(found)
        return len(states) == len(known) > 0 and all(state is State.CHECKPOINTED for state in states.values())

    def _ended(self, moved: Moved | None, problem: BaseException | None) -> None:
        client, self._client = self._client, None
        if moved is not None and moved.state is not self._life.record.state:
            self._life.remember(state=moved.state, changed_ns=time.time_ns())
        if client is not None:
            if moved is not None:
                client.tell(self._answer(moved))
            else:
                client.refuse(_as_ours(problem))
        if isinstance(problem, errors.WorkloadLost):
            self._lost(problem)
        self._changed()

    def _answer(self, moved: Moved) -> Answer:
        return Answer(
            state=moved.state.value,
            epoch=self._life.epoch,
            pid=self._life.tree.pid,
            checkpoint=self._life.record.last_checkpoint,
            gpu_bytes=moved.gpu_bytes,
            took_s=moved.took_s,
        )


def _without_cuda(name: str) -> errors.Unsupported:
    return errors.Unsupported(
        f"no process of {name} uses a GPU through CUDA", hint=f"to free what it has, save it and end it: perdure checkpoint {name} --stop"
    )


def _as_ours(problem: BaseException | None) -> errors.PerdureError:
    """Return what to tell of a job that raised `problem`: the workload goes on even where the fault is ours."""
    if isinstance(problem, errors.PerdureError):
        return problem
    return errors.GpuFailed(f"a fault in Perdure: {type(problem).__name__}: {problem}", hint="report it, with what it printed")
