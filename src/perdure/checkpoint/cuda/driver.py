"""The helper: the one process that speaks to the CUDA driver, and the only module that imports its bindings.

Started by `helper` as ``python -P -m perdure.checkpoint.cuda.driver DESCRIPTOR``. It reads one `Request` a line from the socket,
answers each with one `Answer`, several at a time, and decides nothing: whoever kills it loses no more than the calls that were under way,
whose outcome the driver's own state then tells. When its parent dies, it first lets run what it had suspended for it: nobody else would.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from perdure import errors
from perdure.checkpoint.cuda import direct, machine, processes, restriction, stretches
from perdure.checkpoint.cuda.contract import Answer, Driver, Facts, Operation, Problem, Region, Request, State, Store, Trouble
from perdure.checkpoint.cuda.stretches import Refused
from perdure.checkpoint.cuda.vault import Vault
from perdure.checkpoint.host import gpu_nvml

_BINDINGS = "cuda.bindings.driver"
_AT_ONCE = 64
"""Processes that are worked on at the same time: as many as share a machine's GPUs."""
_LINE_BYTES = 1 << 20
_BEAT_S = 1.0
_LAST_S = 600.0
"""How long it may take to let run what was suspended, once the parent is dead."""
_CHECKPOINT_SINCE, _REMAP_SINCE, _CUSTOM_SINCE = 12080, 13000, 13040
"""CUDA versions, 1000 × major + 10 × minor, that brought the functions: drivers 570 and 580, and custom storage."""

_TROUBLES = {
    1: Trouble.INVALID,
    2: Trouble.NO_MEMORY,
    3: Trouble.NO_DRIVER,
    100: Trouble.NO_DRIVER,
    304: Trouble.SYSTEM,
    401: Trouble.WRONG_STATE,
    600: Trouble.TIMED_OUT,
    801: Trouble.UNSUPPORTED,
    803: Trouble.NO_DRIVER,
}
"""By CUresult. 803: the library and the kernel's driver have different versions."""

_NOT_INITIALIZED = 3

_STATES = tuple(State)
"""In the order of CUprocessState."""


def _trouble(function: str, number: int) -> Trouble:
    # Of a process: we are initialised ourselves. It has loaded the library, and never used it.
    if number == _NOT_INITIALIZED and function.startswith("cuCheckpointProcess"):
        return Trouble.INVALID
    return _TROUBLES.get(number, Trouble.OTHER)


class Cuda:
    """The driver, initialised. Every method raises `Refused`."""

    def __init__(self) -> None:
        try:
            self.api: Any = importlib.import_module(_BINDINGS)
        except ImportError as error:
            raise Refused(Trouble.NO_BINDINGS, f"the CUDA bindings cannot be imported: {error}") from error
        try:
            self.api.cuDriverGetVersion()
        except RuntimeError as error:
            # What the bindings raise when there is no libcuda.
            raise Refused(Trouble.NO_DRIVER, f"there is no CUDA driver here: {error}") from error
        self.call("cuInit", 0)
        self.version = int(self.call("cuDriverGetVersion"))

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the driver; returns what it gives besides its result."""
        entry = getattr(self.api, function, None)
        if entry is None:
            raise Refused(Trouble.UNSUPPORTED, f"these CUDA bindings have no {function}", 801)
        try:
            result, *rest = entry(*arguments)
        except RuntimeError as error:
            # What the bindings raise for a function that this driver lacks.
            raise Refused(Trouble.UNSUPPORTED, f"this driver cannot do it: {error}", 801) from error
        if int(result) != 0:
            raise Refused(_trouble(function, int(result)), f"{function}: {self._name(result)}", int(result))
        return rest[0] if rest else None

    def has(self, function: str, since: int) -> bool:
        """Tell whether this driver has `function`, which came with CUDA `since`."""
        if self.version < since or not hasattr(self.api, function):
            return False
        result, address, _ = self.api.cuGetProcAddress(function.encode("ascii"), since, 0)
        return int(result) == 0 and bool(int(address))

    def _name(self, result: Any) -> str:
        told, text = self.api.cuGetErrorString(result)
        words = f" ({text.decode('utf-8', 'replace')})" if int(told) == 0 and text else ""
        return f"{getattr(result, 'name', result)}{words}"


class _Helper:
    """Answers requests. `cuda` is the driver, or why there is none."""

    def __init__(self, cuda: Cuda | Refused) -> None:
        self._cuda = cuda
        self._suspended: dict[int, int] = {}
        """Start time by PID of all that were locked."""
        self._regions: dict[int, tuple[Region, ...]] = {}
        self._vault = Vault()
        self._store: Store | None = None
        """That was prepared last: what is only there may have to be brought back."""

    def revive(self) -> None:
        """Let run what was suspended and is still there, as far as the driver does it."""
        there = [pid for pid, ticks in self._suspended.items() if processes.is_same(pid, ticks)]
        _, ask = now = machine.found(there)
        while ask is not None:
            time.sleep(ask.pause_s)
            now = machine.step(now[0], [self._tell(ask.operation, pid) for pid in ask.pids])
            ask = now[1]

    def _tell(self, operation: Operation, pid: int) -> machine.Told:
        regions = self._regions.get(pid, ()) if operation is Operation.RESTORE else ()
        answer = self.answer(
            Request(number=0, operation=operation, pid=pid, start_ticks=self._suspended[pid], regions=regions, store=self._store)
        )
        return machine.Told(pid, answer.problem, answer.state)

    def answer(self, request: Request) -> Answer:
        """Do what is asked."""
        began_s = time.monotonic()
        try:
            if isinstance(self._cuda, Refused):
                raise self._cuda
            answer = self._do(self._cuda, request)
        except Refused as refused:
            answer = Answer(number=request.number, problem=refused.problem, state=self._state_now(request))
        except Exception as error:  # noqa: BLE001 - the top of a request: a fault of ours is told, or its asker would wait in vain
            fault = Problem(trouble=Trouble.OTHER, message=f"a fault in Perdure: {type(error).__name__}: {error}")
            answer = Answer(number=request.number, problem=fault)
        return msgspec.structs.replace(answer, elapsed_s=time.monotonic() - began_s)

    def _do(self, cuda: Cuda, request: Request) -> Answer:
        if request.operation is Operation.FACTS:
            return Answer(number=request.number, facts=_facts(cuda))
        if request.operation is Operation.PREPARE:
            return self._prepare(request)
        _require(request)
        regions: tuple[Region, ...] = ()
        match request.operation:
            case Operation.LOCK:
                self._suspended[request.pid] = request.start_ticks
                _lock(cuda, request)
            case Operation.CHECKPOINT if request.folder is not None:
                self._regions[request.pid] = regions = direct.checkpoint(cuda, request, self._vault)
            case Operation.CHECKPOINT:
                self._regions.pop(request.pid, None)
                cuda.call("cuCheckpointProcessCheckpoint", request.pid, None)
            case Operation.RESTORE:
                direct.restore(cuda, request)
            case Operation.UNLOCK:
                cuda.call("cuCheckpointProcessUnlock", request.pid, None)
        state = _state(cuda, request.pid) if request.operation is Operation.STATE else self._state_now(request)
        return Answer(number=request.number, state=state, regions=regions)

    def _prepare(self, request: Request) -> Answer:
        if request.store is None or request.folder is None:
            raise Refused(Trouble.STORE, "nobody says which store is to be prepared")
        self._vault.prepare(request.store, request.folder)
        self._store = request.store
        return Answer(number=request.number)

    def _state_now(self, request: Request) -> State | None:
        if isinstance(self._cuda, Refused) or not request.pid:
            return None
        try:
            _require(request)
            return _state(self._cuda, request.pid)
        except Refused:
            return None


def _require(request: Request) -> None:
    """Raise `Refused` unless the driver may be asked about the process: whoever has no CUDA can be killed by the question."""
    gone = Refused(Trouble.GONE, f"process {request.pid} is not there any more, or has no CUDA")
    if not processes.is_same(request.pid, request.start_ticks):
        raise gone
    try:
        if processes.is_initialised(request.pid):
            return
    except errors.ProcessGone:
        raise gone from None
    raise Refused(Trouble.INVALID, f"process {request.pid} has loaded CUDA, and does not use it")


def _lock(cuda: Cuda, request: Request) -> None:
    arguments = cuda.api.CUcheckpointLockArgs()
    arguments.timeoutMs = max(1, request.time_limit_ms)
    cuda.call("cuCheckpointProcessLock", request.pid, arguments)


def _state(cuda: Cuda, pid: int) -> State:
    number = int(cuda.call("cuCheckpointProcessGetState", pid))
    return _STATES[number] if number < len(_STATES) else State.FAILED


def _facts(cuda: Cuda) -> Facts:
    told = gpu_nvml.ask()
    driver = Driver(
        version=told.driver,
        cuda=f"{cuda.version // 1000}.{cuda.version % 1000 // 10}",
        has_checkpoint=cuda.has("cuCheckpointProcessCheckpoint", _CHECKPOINT_SINCE),
        has_remap=cuda.version >= _REMAP_SINCE,
        has_custom_storage=cuda.has("cuCheckpointOperationComplete", _CUSTOM_SINCE),
    )
    return Facts(driver=driver, devices=told.devices, uses=told.uses)


def serve(connection: socket.socket, answer: Callable[[Request], Answer]) -> None:
    """Answer every request that comes over `connection`, until its other side is closed."""
    writing = threading.Lock()
    under_way: set[int] = set()
    ended = threading.Event()

    def send(told: Answer) -> None:
        content = msgspec.json.encode(told) + b"\n"
        with writing:
            connection.sendall(content)

    def respond(line: bytes) -> None:
        request = msgspec.json.decode(line, type=Request)
        under_way.add(request.number)
        told = answer(request)
        under_way.discard(request.number)
        send(told)

    def beat() -> None:
        """Say of all that is under way that it is, as long as memory is being moved."""
        before_bytes = stretches.MOVED.total_bytes
        while not ended.wait(_BEAT_S):
            now_bytes = stretches.MOVED.total_bytes
            if now_bytes != before_bytes:
                with contextlib.suppress(OSError):
                    for number in tuple(under_way):
                        send(Answer(number=number, moved_bytes=now_bytes))
            before_bytes = now_bytes

    beating = threading.Thread(target=beat, name="beat", daemon=True)
    beating.start()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="cuda") as pool, connection.makefile("rb") as lines:
        while line := lines.readline(_LINE_BYTES):
            pool.submit(respond, line)
    ended.set()


def _end_with(connection: socket.socket, helper: list[_Helper]) -> None:
    """End this process as soon as the other side of `connection` is closed, even while the driver hangs."""
    hung_up = select.poll()
    hung_up.register(connection, select.POLLRDHUP)
    hung_up.poll()
    threading.Timer(_LAST_S, os._exit, (1,)).start()
    for one in helper:
        one.revive()
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Serve the socket with descriptor number `arguments[0]`. Returns the exit status."""
    with socket.socket(fileno=int(arguments[0])) as connection:
        made: list[_Helper] = []
        watch = threading.Thread(target=_end_with, args=(connection, made), name="parent", daemon=True)
        watch.start()
        if restriction.is_restricted(restriction.nodes()):
            restriction.leave()
        cuda: Cuda | Refused
        try:
            cuda = Cuda()
        except Refused as refused:
            cuda = refused
        made.append(_Helper(cuda))
        serve(connection, made[0].answer)
        watch.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
