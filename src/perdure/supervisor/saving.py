"""The supervisor's side of the saver: start it, hear what it says, end it. Called by `keeper`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from perdure import errors
from perdure.supervisor import saver, wire
from perdure.supervisor.reactor import READ, Reactor

_LINE_BYTES = 1 << 26
"""The manifest of a tree with very many files is one line."""
_CHUNK_BYTES = 1 << 16
_STDERR_BYTES = 4096


class Saving:
    """One run of the saver.

    `heard` is told of its progress. `ended` is called once, with the manifest that was committed, or the error that it ended with; an
    error after the commit does not take the checkpoint back and is told as the second argument beside the manifest.
    """

    def __init__(
        self,
        reactor: Reactor,
        request: saver.Request,
        work: Path,
        *,
        heard: Callable[[saver.Progress], None],
        ended: Callable[[saver.Committed | None, errors.PerdureError | None], None],
    ) -> None:
        self._reactor = reactor
        self._heard = heard
        self._ended = ended
        self._got = bytearray()
        self._committed: saver.Committed | None = None
        self._error: errors.PerdureError | None = None
        self._cancelled = ""
        self.checkpoints: int | None = None
        """How many checkpoints the workload has, once that is known."""
        path = work / saver.REQUEST
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as handle:
            handle.write(wire.encode(request))
        self._stderr = work / "saver.stderr"
        self._stdout, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(theirs, True)
        with open(self._stderr, "wb") as stderr:
            # Isolated: neither the working directory nor PYTHON* variables of whoever typed the command may choose what is imported.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "perdure.supervisor.saver", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=stderr,
                cwd="/",
                start_new_session=True,
            )
        self.pidfd = os.pidfd_open(self._process.pid)
        os.close(theirs)
        reactor.watch(self._stdout, READ, self._listen)

    def cancel(self, reason: str) -> None:
        """End the saver now. `ended` is called all the same, soon."""
        self._cancelled = self._cancelled or reason
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _listen(self) -> None:
        try:
            content = os.read(self._stdout, _CHUNK_BYTES)
        except BlockingIOError:
            return
        self._got += content
        while True:
            line, end, rest = self._got.partition(b"\n")
            if not end:
                break
            self._got = rest
            self._hear(bytes(line))
        if not content or len(self._got) > _LINE_BYTES:
            self._finish()

    def _hear(self, line: bytes) -> None:
        match wire.decode(line, saver.Said):
            case saver.Progress() as progress:
                self._heard(progress)
            case saver.Committed() as committed:
                self._committed = committed
            case saver.Pruned(checkpoints):
                self.checkpoints = checkpoints
            case saver.Failed(error):
                self._error = wire.error(error)

    def _finish(self) -> None:
        self._reactor.forget(self._stdout)
        status = self._process.wait()
        os.close(self._stdout)
        os.close(self.pidfd)
        if self._committed is None and self._error is None:
            self._error = self._unexplained(status)
        self._ended(self._committed, self._error)

    def _unexplained(self, status: int) -> errors.CheckpointFailed:
        if self._cancelled:
            return errors.CheckpointFailed(f"storing was ended: {self._cancelled}")
        said = self._stderr.read_bytes()[-_STDERR_BYTES:].decode("utf-8", "replace").strip().rpartition("\n")[2]
        if status < 0:
            what = f"the process that stores it was ended by {signal.Signals(-status).name}"
            return errors.CheckpointFailed(what, hint="see whether memory ran out: dmesg" if status == -signal.SIGKILL else "")
        return errors.CheckpointFailed(f"the process that stores it ended with {status}: {said}")
