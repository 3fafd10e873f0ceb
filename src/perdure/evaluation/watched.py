"""A life whose output is kept in a file while others look at it: what cold starts and the matrix start commands with. Called by both.

A thread reads what the command prints, so that a full pipe never holds it up, and learns how it ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.evaluation.local import Life, Told

_LOOK_S = 0.01
"""Between two looks at a condition; what is timed here is known to this."""


class Watched:
    """One life of a command in `working_directory`; all that it prints goes to the file `log`, which must not exist.

    Raises `errors.CommandMissing` and `errors.EnvironmentUnfit` when it cannot be started.
    """

    def __init__(self, command: tuple[str, ...], *, working_directory: str, environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._lines = 0
        self._told = b""
        self._over = threading.Event()
        self.exit_status: int | None = None
        """How the command ended, minus the signal that ended it; None while it runs, or when it was ended from here."""
        self._failed: Told | None = None
        try:
            self._life = Life(command, working_directory=working_directory, environment=environment, is_node=False)
        except errors.PerdureError:
            os.close(self._log)
            raise
        self._reader = threading.Thread(target=self._read, daemon=True, name="perdure-watched")
        self._reader.start()

    @property
    def lines(self) -> int:
        """How many lines it has printed."""
        return self._lines

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self._over.is_set()

    def wait(self, is_met: Callable[[], bool], *, patience_s: float) -> bool:
        """Wait until `is_met`; False when the command ended before, or after `patience_s` seconds.

        Raises `errors.CommandMissing` when the command could not be started.
        """
        deadline_s = time.monotonic() + patience_s
        while not is_met():
            if self._over.is_set() or time.monotonic() >= deadline_s:
                self._check_started()
                return is_met()
            self._over.wait(_LOOK_S)
        return True

    def finish(self, *, patience_s: float) -> int | None:
        """Wait for its end and return the exit status; None when it did not end in time. Raises `errors.CommandMissing`."""
        self._over.wait(patience_s)
        self._check_started()
        return self.exit_status

    def close(self) -> None:
        """End it with all that it started, by SIGKILL, and wait until nothing is left. Raises `errors.EnvironmentUnfit`."""
        self._life.end()
        self._reader.join(60.0)
        self._life.close()
        os.close(self._log)

    def _check_started(self) -> None:
        if self._failed is not None:
            raise errors.CommandMissing(f"{self._command[0]} cannot be started: {self._failed.failed}", hint="correct the command")

    def _read(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._life.output, selectors.EVENT_READ, self._hear)
            waiting.register(self._life.told, selectors.EVENT_READ, self._listen)
            while waiting.get_map():
                for key, _ in waiting.select():
                    with contextlib.suppress(BlockingIOError):
                        content = os.read(key.fd, 1 << 16)
                        if content:
                            key.data(content)
                        else:
                            waiting.unregister(key.fileobj)
        self._over.set()

    def _hear(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            left = left[os.write(self._log, left) :]
        self._lines += content.count(b"\n")

    def _listen(self, content: bytes) -> None:
        *whole, self._told = (self._told + content).split(b"\n")
        for line in whole:
            told = msgspec.json.decode(line, type=Told)
            if told.failed is not None:
                self._failed = told
            if told.ended is not None:
                self.exit_status = told.ended
