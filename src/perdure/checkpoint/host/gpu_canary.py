"""Whether this driver really does what its version promises: a tiny CUDA process is locked, saved, brought back and unlocked.

Called by `perdure doctor --gpu`. Nobody's work is touched: the process is our own, and holds some mebibytes of one GPU.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import msgspec

from perdure.base.proc import process
from perdure.checkpoint.cuda.contract import Operation, Request, State, Trouble
from perdure.checkpoint.cuda.helper import Helper

SIZE_BYTES = 16 << 20
_PATIENCE_S = 120.0
"""For each step. Without persistence mode the driver wakes every GPU first."""
_STEPS = (
    (Operation.LOCK, State.LOCKED),
    (Operation.CHECKPOINT, State.CHECKPOINTED),
    (Operation.RESTORE, State.LOCKED),
    (Operation.UNLOCK, State.RUNNING),
)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the canary."""

    step: str
    """The last step that was begun: ``start``, one of the driver's operations, or ``content``."""
    failure: str | None
    """Why it ended there; None: all of it went well."""
    trouble: Trouble | None = None
    """The kind of the driver's refusal, where it is one."""
    size_bytes: int
    durations_s: dict[str, float]
    """By operation."""


class _Failed(Exception):
    """The canary did not come as far as it should."""

    def __init__(self, why: str, trouble: Trouble | None = None) -> None:
        super().__init__(why)
        self.trouble = trouble


class _Canary:
    """The process."""

    def __init__(self, uuid: str, size_bytes: int) -> None:
        command = [sys.executable, "-P", "-m", "perdure.checkpoint.host.gpu_buffers", uuid, str(size_bytes)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            cwd="/",
            start_new_session=True,
        )
        self._got = bytearray()

    def hear(self) -> str:
        """Return the next line that it says. Raises `_Failed`."""
        end_s = time.monotonic() + _PATIENCE_S
        while b"\n" not in self._got:
            out = self._process.stdout
            if out is None or not select.select([out], [], [], max(end_s - time.monotonic(), 0.0))[0]:
                raise _Failed(f"it did not answer within {_PATIENCE_S:g} s")
            content = os.read(out.fileno(), 1 << 16)
            if not content:
                status = self._process.wait()
                raise _Failed(f"it was ended by signal {-status}" if status < 0 else f"it ended with status {status}")
            self._got += content
        line, _, rest = bytes(self._got).partition(b"\n")
        self._got = bytearray(rest)
        return line.decode("utf-8", "replace")

    def digest(self) -> str:
        """Return what it says of the content of its GPU memory. Raises `_Failed`."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(b"digest\n")
                self._process.stdin.flush()
            except BrokenPipeError as error:
                raise _Failed("it has ended") from error
        return self.hear()

    def name(self) -> tuple[int, int]:
        """Return its PID and its start time in ticks. Raises `errors.ProcessGone`."""
        return self._process.pid, process.stat(self._process.pid).start_ticks

    def end(self) -> None:
        """End it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run(uuid: str, size_bytes: int = SIZE_BYTES) -> Outcome:
    """Put a process with `size_bytes` on the GPU `uuid` (``-``: the first) through all steps, and compare what is on the GPU afterwards."""
    durations_s: dict[str, float] = {}
    step = "start"
    canary = _Canary(uuid, size_bytes)
    try:
        said = canary.hear()
        if said != "ready":
            raise _Failed(said)
        before = canary.digest()
        pid, start_ticks = canary.name()
        with Helper() as helper:
            for operation, wanted in _STEPS:
                step = operation.value
                durations_s[step] = _ask(helper, operation, wanted, pid, start_ticks)
        step = "content"
        if canary.digest() != before:
            raise _Failed("its GPU memory does not hold what it held before")
    except _Failed as error:
        return Outcome(step=step, failure=str(error), trouble=error.trouble, size_bytes=size_bytes, durations_s=durations_s)
    finally:
        canary.end()
    return Outcome(step=step, failure=None, size_bytes=size_bytes, durations_s=durations_s)


def _ask(helper: Helper, operation: Operation, wanted: State, pid: int, start_ticks: int) -> float:
    """Have one step done; returns how long it took. Raises `_Failed`."""
    request = Request(number=0, operation=operation, pid=pid, start_ticks=start_ticks, time_limit_ms=int(_PATIENCE_S * 1000))
    (answer,) = helper.ask((request,), _PATIENCE_S * 1.5)
    if answer.problem is not None:
        raise _Failed(answer.problem.message, answer.problem.trouble)
    if answer.state is not wanted:
        raise _Failed(f"the driver says {answer.state.value if answer.state else 'nothing'} afterwards, not {wanted.value}")
    return answer.elapsed_s
