"""Our side of the helper: start it, ask it, and replace it when it hangs. Called by `session`, and by whoever wants the driver's facts.

Initialising CUDA takes seconds, so that one helper lives as long as its supervisor. It must see every GPU, whatever the workload is
allowed: what restricts CUDA is kept out of its environment.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Self

import msgspec

from perdure import errors
from perdure.checkpoint.cuda import restriction
from perdure.checkpoint.cuda.contract import Answer, Facts, Operation, Problem, Request, Trouble

_START_S = 60.0
"""Without persistence mode the driver wakes every GPU at first: seconds for each."""
_KILLED_S = 2.0
SILENT_S = 60.0
"""How long a helper that moves memory, and says so each second, may be without a word before it is taken to hang."""
_CHUNK_BYTES = 1 << 16
_MOST_ANSWER_BYTES = 16 << 20


class Helper:
    """One helper, started when it is first asked something. May be used from several threads; one asks at a time."""

    def __init__(self, *, silent_s: float = SILENT_S) -> None:
        """Start nothing yet. After `silent_s` without a word, a helper that moves memory (and says so each second) hangs."""
        self._silent_s = silent_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._ended: list[subprocess.Popen[bytes]] = []
        """Killed ones that the driver has not let go of yet."""
        self._got = bytearray()
        self._number = 0
        self._asking = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def facts(self) -> Facts:
        """Return what the driver says of this machine. Raises `errors.GpuUnavailable`."""
        (answer,) = self.ask((Request(number=0, operation=Operation.FACTS),), _START_S)
        if answer.facts is None:
            raise unavailable(answer.problem)
        return answer.facts

    def ask(self, requests: tuple[Request, ...], limit_s: float) -> tuple[Answer, ...]:
        """Ask all `requests` at the same time; returns their answers in the same order, at most `limit_s` later.

        The numbers of the requests are set here. What is not answered by then has the trouble `HUNG`, and another helper answers
        what is asked next: the one that hangs is killed. One that is seen to move memory does not hang, however long it takes.
        The first question of a helper may take a minute longer.
        """
        with self._asking:
            end_s = time.monotonic() + limit_s
            if self._process is None:
                end_s += _START_S
                self._start()
            numbered = []
            for request in requests:
                self._number += 1
                numbered.append(msgspec.structs.replace(request, number=self._number))
            answers = self._exchange(numbered, end_s)
        return tuple(answers.get(request.number, _unanswered(request)) for request in numbered)

    def close(self) -> None:
        """End the helper. A call that is under way in it is broken off."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        self._got.clear()
        # Before it sees that nobody is there any more: it would begin to bring back what is suspended, and be killed half-way.
        if process is not None:
            process.send_signal(signal.SIGKILL)
        if connection is not None:
            connection.close()
        if process is not None:
            self._ended = [one for one in (*self._ended, process) if not _is_reaped(one)]

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        variables = restriction.without(os.environ)
        # CUDA and NVML count devices in the same order then.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "perdure.checkpoint.cuda.driver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=variables,
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        ours.setblocking(False)
        self._connection = ours

    def _exchange(self, requests: list[Request], end_s: float) -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        wanted = {request.number for request in requests}
        out = bytearray(b"".join(msgspec.json.encode(request) + b"\n" for request in requests))
        while wanted - found.keys():
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not self._pass_on(out, left_s):
                self.close()
                break
            for line in self._lines():
                answer = msgspec.json.decode(line, type=Answer)
                if answer.moved_bytes is None:
                    found[answer.number] = answer
                elif answer.number in wanted:
                    end_s = max(end_s, time.monotonic() + self._silent_s)  # slow, and at work: whoever ends it now loses what it has
        return found

    def _pass_on(self, out: bytearray, limit_s: float) -> bool:
        """Send and receive what can be, waiting at most `limit_s`. Returns whether the helper is there."""
        connection = self._connection
        if connection is None:
            return False
        with contextlib.suppress(BlockingIOError):
            waiting = select.poll()
            waiting.register(connection, select.POLLIN | (select.POLLOUT if out else 0))
            ready = sum(events for _, events in waiting.poll(limit_s * 1000))
            try:
                if ready & select.POLLOUT:
                    del out[: connection.send(out)]
                if ready & ~select.POLLOUT:
                    content = connection.recv(_CHUNK_BYTES)
                    self._got += content
                    return bool(content) and len(self._got) <= _MOST_ANSWER_BYTES
            except (BrokenPipeError, ConnectionResetError):
                return False
        return True

    def _lines(self) -> list[bytes]:
        *lines, rest = bytes(self._got).split(b"\n")
        self._got = bytearray(rest)
        return lines


def _is_reaped(process: subprocess.Popen[bytes]) -> bool:
    """Reap a killed helper. One that hangs inside the kernel's driver does not even die: it is not waited for longer than this."""
    try:
        process.wait(_KILLED_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _unanswered(request: Request) -> Answer:
    what = f"the CUDA driver did not answer {request.operation} of process {request.pid} in time, or its helper was killed"
    return Answer(number=request.number, problem=Problem(trouble=Trouble.HUNG, message=what))


def unavailable(problem: Problem | None) -> errors.GpuUnavailable:
    """Return the error for a driver that cannot be used at all."""
    message = problem.message if problem else "the CUDA driver told nothing of itself"
    if problem is not None and problem.trouble is Trouble.NO_BINDINGS:
        return errors.GpuUnavailable(message, hint=f"install the extra for GPUs: {sys.executable} -m pip install 'perdure[gpu]'")
    return errors.GpuUnavailable(message, hint="see perdure doctor --gpu")
