"""The line from a supervisor to the process of a user that waits for the workload, where the two are not the same. Called by `start`.

Signals come over it, a byte each, and its end: whoever waited is gone, and the workload ends at once. Lines of JSON go the other way.
Telling never waits: who does not listen is told less.
"""

from __future__ import annotations

import contextlib
import signal
import socket

from perdure.supervisor import signals

_MOST_WAITING_BYTES = 1 << 20
_LAST_S = 10.0

GONE = signal.SIGKILL
"""Stands for the end of the line: the workload is to end at once."""
_TAKEN = frozenset({*signals.HANDLED, *signals.OF_THE_JOB, GONE})
_MOST_AT_ONCE = 256


class Line:
    """One end of a stream socket, whose other end belongs to the user's process."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._waiting = bytearray()

    def fileno(self) -> int:
        """Return the descriptor to wait at, -1 once it is closed."""
        return self._channel.fileno()

    def take(self) -> tuple[int, ...]:
        """Return the signals that came. `GONE` is the last one at the end of the line; bytes that are no signal are passed over."""
        try:
            content = self._channel.recv(_MOST_AT_ONCE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ()
        except OSError:
            content = b""
        if not content:
            return (GONE,)
        return tuple(number for number in content if number in _TAKEN)

    def tell(self, line: bytes) -> None:
        """Send `line`, without its end, as far as there is room; what there is none for is left out."""
        if len(self._waiting) + len(line) < _MOST_WAITING_BYTES:
            self._waiting += line + b"\n"
        self._send(socket.MSG_DONTWAIT)

    def tell_last(self, line: bytes) -> None:
        """Send `line` as the last one, and wait a while for the other side to take it."""
        self._waiting += line + b"\n"
        with contextlib.suppress(OSError):
            self._channel.settimeout(_LAST_S)
            self._send(0)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _send(self, flags: int) -> None:
        try:
            while self._waiting:
                sent = self._channel.send(self._waiting, flags | socket.MSG_NOSIGNAL)
                del self._waiting[:sent]
        except BlockingIOError:
            return
        except OSError:
            # Nobody is there any more; `take` says so.
            self._waiting.clear()
