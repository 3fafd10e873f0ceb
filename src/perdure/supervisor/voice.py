"""What a supervisor says: few plain lines on stderr, how far it is, or events for programs. Called by all of `supervisor`.

Saying never fails and never waits for long: a terminal that hung up or a full disk must not stop a workload.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from perdure.base import text
from perdure.supervisor import wire
from perdure.supervisor.messages import Event
from perdure.supervisor.progress import Readout


class Voice:
    """Speaks for one workload. `is_raw` tells whether our terminal is raw, where a line end does not return the cursor.

    With `shows_progress`, what takes long is shown while stderr is a terminal, in a line that is overwritten and goes again.
    """

    def __init__(self, *, quiet: bool, as_json: bool, events: Path | None = None, shows_progress: bool = False) -> None:
        self._quiet = quiet
        self._readout = Readout() if shows_progress and not quiet and not as_json else None
        self._is_shown = False
        self._as_json = as_json
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._events = os.open(events, flags, 0o600) if events else None
        self.is_raw: Callable[[], bool] = lambda: False
        self.listeners: list[Callable[[Event], None]] = []
        """Told of every event."""

    def say(self, words: str) -> None:
        """Say `words` to a person."""
        self.clear()
        if not self._quiet and not self._as_json:
            _write(2, f"perdure: {text.printable(words)}" + ("\r\n" if self.is_raw() else "\n"))

    def progress(self, event: Event) -> None:
        """Tell programs of `event`, and show a person how far it is."""
        self.event(event)
        # Asked each time: in the background stderr has become a file meanwhile.
        if self._readout is not None and os.isatty(2):
            self._is_shown = True
            _write(2, f"\r\x1b[K{self._readout.of(event, time.monotonic())}")

    def clear(self) -> None:
        """Take away what `progress` shows."""
        if self._is_shown:
            self._is_shown = False
            _write(2, "\r\x1b[K")

    def event(self, event: Event) -> None:
        """Tell programs of `event`, where they asked for it."""
        for listener in self.listeners:
            listener(event)
        line = wire.encode(event).decode() + "\n"
        if self._as_json:
            _write(2, line)
        if self._events is not None:
            _write(self._events, line)


def _write(descriptor: int, words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, words.encode("utf-8", "surrogateescape"))
