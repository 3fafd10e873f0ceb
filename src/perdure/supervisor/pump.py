"""One stream between the workload and us: out of it into the log and on to ours, or from ours into it. Called by `console`.

Nothing here waits: each call does what can be done now.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from perdure.supervisor.log import Log
from perdure.supervisor.outward import Outward

MOST_PENDING_BYTES = 1 << 18
"""With so much not yet passed on, a stream is not read."""

_CHUNK_BYTES = 1 << 16


class Outlet:
    """One stream out of the workload: from `source`, into the log, and on to `target` (None: nowhere else)."""

    def __init__(self, stream: int, source: int, target: Outward | None, log: Log, say: Callable[[str], None]) -> None:
        self.stream = stream
        self.source = source
        self.target = target
        self.log = log
        self.is_passed_on = target is not None
        """Cleared when the target can take nothing any more."""
        self.pending = bytearray()
        self.open = True
        self.watched = 0
        """What of `source` the reactor waits for: a line is passed on with fewer system calls when that need not be told again."""
        self.waits_for: int | None = None
        """Descriptor whose room the reactor waits for."""
        self._say = say
        self._said = False

    def take(self) -> bool:
        """Read one piece. Returns whether there was one; the end of the stream closes the outlet."""
        try:
            content = os.read(self.source, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # what a terminal says when nobody has its other side open
                raise
            content = b""
        if not content:
            self.open = False
            return False
        lost = self.log.write(self.stream, content)
        if lost and not self._said:
            self._said = True
            self._say(f"the console's log cannot take what the workload writes: {lost}")
        if self.is_passed_on:
            self.pending += content
        return True

    def give(self) -> None:
        """Pass on what is pending, as far as it goes without waiting. A reader that is gone closes the outlet."""
        if self.target is None or not self.is_passed_on:
            return
        try:
            while self.pending:
                del self.pending[: self.target.write(self.pending)]
        except BlockingIOError:
            return
        except OSError as error:
            self.pending.clear()
            if error.errno == errno.EPIPE:
                self.open = False
                return
            # A terminal that hung up, a full disk: the log still has it all.
            self.is_passed_on = False
            if error.errno != errno.EIO:
                self._say(f"cannot pass on what the workload writes: {error.strerror}; the log has it")

    def close(self) -> None:
        """Let go of both sides. Neither may be waited for any more."""
        os.close(self.source)
        if self.target is not None:
            self.target.close()


class Inlet:
    """The stream into the workload: from our `source` to `sink`."""

    def __init__(self, source: int, sink: int, *, terminal: bool) -> None:
        self.source = source
        self.sink = sink
        self.terminal = terminal
        self.pending = bytearray()
        self.ended = False
        self.open = True

    def take(self) -> bytes:
        """Read one piece from our side and return it. The end of it is remembered."""
        try:
            content = os.read(self.source, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            content = b""
        if not content:
            self.ended = True
        self.pending += content
        return content

    def give(self) -> None:
        """Pass on what is pending, as far as it goes."""
        try:
            while self.pending:
                written = os.write(self.sink, self.pending)
                del self.pending[:written]
        except BlockingIOError:
            return
        except OSError:
            self.open = False  # the workload closed its side
            return
        if self.ended and not self.terminal:
            self.open = False
