"""Suspend the CUDA processes of one tree, and make them run again: `machine` says what follows on what, the helper is asked.

Called by the supervisor around a dump and after a restore, and by ``perdure suspend`` and ``resume``. However a call here ends, either
every process runs, or all are suspended as asked, or `errors.WorkloadLost` says that the tree has to be ended: nothing stays locked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.cuda import direct, machine, processes
from perdure.checkpoint.cuda.contract import Answer, CudaProcess, HeldDevice, Operation, Problem, Region, Request, Store, Trouble
from perdure.checkpoint.cuda.helper import Helper, unavailable
from perdure.checkpoint.cuda.machine import Ask, Group, Phase, Told

FOLDER = "gpu"
"""Folder of GPU memory, in a staging folder and in a checkpoint."""
_SLOWEST_BYTES_S = 250e6
"""GPU memory is moved at least so fast by the driver, also over a bus that others use; of what we copy ourselves the helper tells."""
_PREPARE_S = 60.0
"""Opening a store may take so long, before anybody is locked; then it goes without."""
_MOMENT_S = 0.2
"""Between two attempts: kernels that waited for a process that was locked come to their end."""
_REMEDIES = {
    Trouble.TIMED_OUT: "work on the GPU did not come to rest in time; kernels that wait for another process, as in NCCL, may never do",
    Trouble.NO_MEMORY: "see perdure doctor --gpu for free memory of host and GPUs, and whether MIG is on",
    Trouble.UNSUPPORTED: "managed memory, MIG, MPS and vGPU cannot be saved: see perdure check",
    Trouble.INVALID: "see perdure check",
    Trouble.HUNG: "see dmesg for the driver's own messages",
}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the driver may take."""

    lock_s: float = 30.0
    """For work on the GPU to come to an end, before anything is stopped for good. More than 0: 0 would be for ever."""
    moved_bytes: int = 0
    """About how much GPU memory is moved; the time allowed follows from it."""
    answer_s: float = 30.0
    """For everything else: a driver that has said nothing by then hangs."""

    @property
    def move_s(self) -> float:
        """Seconds that moving the memory of all processes may take."""
        return 2 * self.answer_s + self.moved_bytes / _SLOWEST_BYTES_S


class Session:
    """The CUDA processes of one tree, from when they are suspended until they run again or are given up."""

    def __init__(
        self, helper: Helper, found: Iterable[CudaProcess], limits: Limits, *, folder: Path | None = None, store: Store | None = None
    ) -> None:
        """Take charge of the processes `found`.

        With `folder`, GPU memory is written into files there where the driver offers it; with `store` too, into that, and the folder has
        the records of where it lies.
        """
        self._helper = helper
        self._processes = {process.pid: process for process in found}
        self._limits = limits
        self._folder = folder
        self._store = store
        self._is_prepared = False
        self._mapping: tuple[tuple[str, str], ...] = ()
        self._group: Group | None = None
        self._attempts = 0
        self._failed_directly = False
        self._unsure: dict[int, Path] = {}
        """Where files may be of processes of which the helper could not tell whether it had written them."""
        self.regions: dict[int, tuple[Region, ...]] = {}
        """GPU memory in files or in the store, by PID; without an entry, it is in the process's own memory."""
        self.moved_s: dict[int, float] = {}
        """How long the driver took to move away the GPU memory of each, by PID: the copies that are ours included."""
        self.damage: Problem | None = None
        """What was found to be damaged in the store."""
        self.durations_s: dict[str, float] = {}
        """How long all took: ``gpu-lock gpu-checkpoint gpu-restore``."""
        self.was_suspended = False
        """All had been suspended before: they are left so."""

    @classmethod
    def of_images(
        cls,
        helper: Helper,
        found: Iterable[CudaProcess],
        regions: dict[int, tuple[Region, ...]],
        limits: Limits,
        *,
        store: Store | None = None,
    ) -> Session:
        """Take charge of processes that were brought back from images, suspended, with GPU memory where `regions` says."""
        session = cls(helper, found, limits, store=store)
        session.regions = regions
        session._group = machine.restored(session._processes)
        return session

    @classmethod
    def left_behind(cls, helper: Helper, found: Iterable[CudaProcess], limits: Limits) -> Session:
        """Take charge of processes that somebody who was killed left in states that are not known, to make them run."""
        session = cls(helper, found, limits)
        group, _ = machine.found(session._processes)
        session._group = msgspec.structs.replace(group, phase=Phase.SUSPENDED)  # as far as anybody knows: `resume` looks
        return session

    @property
    def processes(self) -> tuple[CudaProcess, ...]:
        """Those that use CUDA, as far as the driver was asked."""
        members = [member.pid for member in self._group.members] if self._group else list(self._processes)
        return tuple(self._processes[pid] for pid in members)

    def suspend(self, scan: Callable[[], Iterable[int]] = tuple) -> None:
        """Lock all, then move the GPU memory of all off the devices; then see that none of the processes `scan` returns holds a device.

        After a trouble that may pass, all run for a moment, and it is tried again. Raises `errors.GpuFailed`: all run; what is held is
        named. Raises `errors.GpuUnavailable`, and `errors.WorkloadLost`.
        """
        self._prepare()
        while True:
            problem, culprit = self._try_to_suspend()
            if problem is None:
                self._require_let_go(tuple(scan()))
                return
            self._attempts += 1
            if self._failed_directly:
                # Custom storage is new, and asks for more than the way through host memory: for whatever reason it fails, that one is left.
                self._folder, self._failed_directly = None, False
                continue
            if not machine.may_try_again(problem, self._attempts):
                raise self._failure(problem, culprit)
            time.sleep(_MOMENT_S)

    def resume(self, mapping: tuple[tuple[str, str], ...] = ()) -> None:
        """Move GPU memory back, onto other devices as `mapping` of UUIDs says, and let all run. Raises `errors.WorkloadLost`."""
        if self._group is None or self._group.phase is not Phase.SUSPENDED or self.was_suspended:
            return
        self._mapping = mapping
        group = self._drive(*machine.resume(self._group))
        if group.phase is Phase.LOST:
            raise self._lost(group)

    def _prepare(self) -> None:
        """Have the store opened; without one that can be, GPU memory goes into files."""
        if self._store is None or self._folder is None:
            return
        request = Request(number=0, operation=Operation.PREPARE, folder=str(self._folder), store=self._store)
        (answer,) = self._helper.ask((request,), _PREPARE_S)
        self._is_prepared = answer.problem is None

    def _try_to_suspend(self) -> tuple[Problem | None, int | None]:
        asked: list[Operation] = []
        group = self._drive(*machine.suspend(self._processes), note=asked.append)
        if group.phase is Phase.LOST:
            raise self._lost(group)
        self.was_suspended = group.phase is Phase.SUSPENDED and bool(group.members) and set(asked) == {Operation.STATE}
        return (None, None) if group.phase is Phase.SUSPENDED else (group.problem, group.culprit)

    def _require_let_go(self, pids: tuple[int, ...]) -> None:
        held = processes.held(pids)
        if not held:
            return
        self.was_suspended = False
        self.resume()
        raise errors.GpuFailed(
            f"a device is still held: {_name_held(held)}", hint="see perdure check: who forks after using CUDA holds it too"
        )

    def _drive(self, group: Group, ask: Ask | None, note: Callable[[Operation], None] = lambda _: None) -> Group:
        self._group = group
        while ask is not None:
            time.sleep(ask.pause_s)
            note(ask.operation)
            answers = self._ask(ask)
            self._group, ask = machine.step(self._group, answers)
        return self._group

    def _ask(self, ask: Ask) -> tuple[Told, ...]:
        began_s = time.monotonic()
        requests = tuple(self._request(ask.operation, self._processes[pid]) for pid in ask.pids)
        answers = self._helper.ask(requests, self._limit_s(ask.operation))
        for pid, answer in zip(ask.pids, answers, strict=True):
            self._note(pid, ask.operation, answer)
        phase = {Operation.STATE: None, Operation.UNLOCK: f"gpu-{Operation.RESTORE}"}.get(ask.operation, f"gpu-{ask.operation}")
        if phase is not None:
            self.durations_s[phase] = self.durations_s.get(phase, 0.0) + time.monotonic() - began_s
        return tuple(Told(pid, answer.problem, answer.state) for pid, answer in zip(ask.pids, answers, strict=True))

    def _request(self, operation: Operation, process: CudaProcess) -> Request:
        is_restore = operation is Operation.RESTORE
        return Request(
            number=0,
            operation=operation,
            pid=process.pid,
            start_ticks=process.start_ticks,
            time_limit_ms=max(1, int(self._limits.lock_s * 1000)) if operation is Operation.LOCK else 0,
            mapping=self._mapping if is_restore else (),
            folder=str(self._folder) if self._folder is not None and operation is Operation.CHECKPOINT else None,
            name=name_of(process, "") if self._is_prepared and self._folder is not None and operation is Operation.CHECKPOINT else "",
            regions=self._regions_of(process.pid) if is_restore else (),
            store=self._store if is_restore else None,
        )

    def _regions_of(self, pid: int) -> tuple[Region, ...]:
        unsure = self._unsure.get(pid)
        return self.regions.get(pid, ()) or (direct.written(str(unsure), pid) if unsure else ())

    def _note(self, pid: int, operation: Operation, answer: Answer) -> None:
        if answer.problem is not None and answer.problem.trouble in (Trouble.NO_DRIVER, Trouble.NO_BINDINGS) and self._is_untouched:
            raise unavailable(answer.problem)
        if answer.problem is not None and answer.problem.trouble is Trouble.DAMAGED:
            self.damage = answer.problem
        if operation is not Operation.CHECKPOINT:
            return
        self.regions.pop(pid, None)
        self._unsure.pop(pid, None)
        if answer.problem is not None and self._folder is not None:
            self._failed_directly = True
            self._unsure[pid] = self._folder
            return
        if answer.problem is None:
            self.moved_s[pid] = answer.elapsed_s
        if answer.regions:
            self.regions[pid] = answer.regions

    @property
    def _is_untouched(self) -> bool:
        """Tell whether nothing has been done to any process yet."""
        return self._group is not None and self._group.phase is Phase.SUSPENDING and self._group.asked is Operation.STATE

    def _limit_s(self, operation: Operation) -> float:
        match operation:
            case Operation.LOCK:
                return self._limits.lock_s + self._limits.answer_s
            case Operation.CHECKPOINT | Operation.RESTORE:
                return self._limits.move_s
        return self._limits.answer_s

    def _name(self, pid: int | None) -> str:
        process = self._processes.get(pid or 0)
        return f"process {process.inner_pid} ({process.command})" if process else "the workload"

    def _failure(self, problem: Problem, culprit: int | None) -> errors.GpuFailed:
        return errors.GpuFailed(
            f"the GPU state of {self._name(culprit)} cannot be saved: {problem.message}; it runs on",
            hint=_REMEDIES.get(problem.trouble, ""),
        )

    def _lost(self, group: Group) -> errors.WorkloadLost:
        said = group.problem.message if group.problem else "the driver says nothing"
        return errors.WorkloadLost(
            f"the CUDA driver does not bring {self._name(group.culprit)} back: {said}", hint="it can go on from its last checkpoint"
        )


def name_of(process: CudaProcess, uuid: str) -> str:
    """Return the name, in a checkpoint, of what `process` had on the GPU `uuid`."""
    return f"{FOLDER}/{process.inner_pid}-{uuid}"


def _name_held(held: tuple[HeldDevice, ...]) -> str:
    shown = [f"{one.path} by process {one.pid} ({one.command})" for one in held[:3]]
    return ", ".join(shown) + (f", and {len(held) - 3} more" if len(held) > 3 else "")
