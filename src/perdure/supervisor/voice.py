"""What a supervisor says: few plain lines on stderr, how far it is, or events for programs. Called by all of `supervisor`.

Saying never fails and never waits: a terminal that is stopped or hung up, a reader that is slow, a full disk must not stop a workload.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from perdure import errors
from perdure.base import text
from perdure.model.finding import Finding
from perdure.supervisor import cautions, wire
from perdure.supervisor.messages import Event
from perdure.supervisor.outward import Outward
from perdure.supervisor.progress import Readout

_MOST_WAITING = 10_000
"""With so many lines that nobody read, further ones are lost."""


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
        self._stderr = _Lines(2)
        self._events = _Lines(os.open(events, flags, 0o600)) if events else None
        self.is_raw: Callable[[], bool] = lambda: False
        self.listeners: list[Callable[[Event], None]] = []
        """Told of every event."""

    def say(self, words: str) -> None:
        """Say `words` to a person."""
        self.clear()
        if not self._quiet and not self._as_json:
            self._stderr.write(f"perdure: {text.printable(words)}" + ("\r\n" if self.is_raw() else "\n"))

    def warn(self, workload: str, finding: Finding, *, words: str | None = None) -> None:
        """Warn of `finding`: a person in `words` (None: in its own; empty: not at all), and programs by an event."""
        told = cautions.words(finding) if words is None else words
        if told:
            self.say(told)
        remedy = finding.remedy or ""
        self.event(
            Event("warning", workload, time.time_ns(), text=finding.message, code=finding.code, about=finding.subject, remedy=remedy)
        )

    def warn_of(self, workload: str, error: errors.PerdureError, *, about: str, words: str) -> None:
        """Say `words` of an `error` that was met and is got over, and tell programs of it."""
        self.say(words)
        self.event(
            Event(
                "warning",
                workload,
                time.time_ns(),
                text=text.visible(str(error)),
                code=error.code,
                about=text.visible(about),
                remedy=text.visible(error.hint),
            )
        )

    def progress(self, event: Event) -> None:
        """Tell programs of `event`, and show a person how far it is."""
        self.event(event)
        # Asked each time: in the background stderr has become a file meanwhile.
        if self._readout is not None and os.isatty(2):
            self._is_shown = True
            self._stderr.write(f"\r\x1b[K{self._readout.of(event, time.monotonic())}", unless_late=True)

    def clear(self) -> None:
        """Take away what `progress` shows."""
        if self._is_shown:
            self._is_shown = False
            self._stderr.write("\r\x1b[K")

    def event(self, event: Event) -> None:
        """Tell programs of `event`, where they asked for it."""
        for listener in self.listeners:
            listener(event)
        line = wire.encode(event).decode() + "\n"
        if self._as_json:
            self._stderr.write(line)
        if self._events is not None:
            self._events.write(line)


class _Lines:
    """Writes whole lines in order to `descriptor`; what it cannot take at once is written by a thread, which lasts until all of it is."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._thread: threading.Thread | None = None

    def write(self, words: str, *, unless_late: bool = False) -> None:
        """Write `words`; with `unless_late`, not if others still wait to be written."""
        content = words.encode("utf-8", "surrogateescape")
        with self._lock:
            if self._waiting and self._thread is not None and self._thread.is_alive():
                if not unless_late and len(self._waiting) < _MOST_WAITING:
                    self._waiting.append(content)
                return
            # Else there is no thread, or it was left behind by a fork, and writes there.
            self._waiting.clear()
            content = self._write_now(content)
            if content:
                self._waiting.append(content)
                self._thread = threading.Thread(target=self._write_waiting, name="voice")
                self._thread.start()

    def _write_now(self, content: bytes) -> bytes:
        """Write what there is room for, and return the rest of it."""
        try:
            # Made anew each time: in the background stderr becomes another file.
            with contextlib.closing(Outward(self._descriptor)) as outward:
                while content:
                    content = content[outward.write(content) :]
        except BlockingIOError:
            return content
        except OSError:
            return b""
        return b""

    def _write_waiting(self) -> None:
        while True:
            content = self._waiting[0]
            with contextlib.suppress(OSError), contextlib.closing(Outward(self._descriptor)) as outward:
                while content:
                    outward.wait_for_room()
                    with contextlib.suppress(BlockingIOError):
                        content = content[outward.write(content) :]
            with self._lock:
                self._waiting.popleft()
                if not self._waiting:
                    self._thread = None
                    return
