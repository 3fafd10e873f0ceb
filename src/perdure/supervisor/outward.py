"""Descriptors of ours that others share, such as our stdout: written without waiting, with their flags left alone.

Called by `pump`, `voice` and the agent's `relay`.

A descriptor that is ready still blocks who writes more than there is room for, and a terminal that is stopped meanwhile blocks whatever is
written. Who blocks here could not save the workload until somebody reads on, or types Ctrl-Q.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat

_PIPE_BYTES = 4096
"""A pipe that is ready takes this much; so do devices that never block, such as /dev/null."""
_TERMINAL_BYTES = 32
"""A pseudo-terminal has room by multiples of 256, and no character becomes more than the eight of a tab."""


class Outward:
    """Writes to `descriptor`, which stays the caller's. A regular file is waited for, as always."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own: int | None = None
        self._socket: socket.socket | None = None
        kind = os.fstat(descriptor).st_mode
        self.is_pollable = not stat.S_ISREG(kind)
        """Whether room can be waited for."""
        self._most_bytes: int | None = None
        if stat.S_ISSOCK(kind):
            self._socket = socket.socket(fileno=os.dup(descriptor))
        elif stat.S_ISFIFO(kind) or os.isatty(descriptor):
            # An open file of our own has flags of its own. A pipe or terminal of another user may refuse that.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._own = os.open(f"/proc/self/fd/{descriptor}", flags)
            if self._own is None:
                self._most_bytes = _PIPE_BYTES if stat.S_ISFIFO(kind) else _TERMINAL_BYTES
        elif self.is_pollable:
            self._most_bytes = _PIPE_BYTES

    def fileno(self) -> int:
        """Return the descriptor whose room is to be waited for."""
        return self._descriptor if self._own is None else self._own

    def wait_for_room(self) -> None:
        """Return once there may be room, or never will be any."""
        if self.is_pollable:
            poll = select.poll()
            poll.register(self.fileno(), select.POLLOUT)
            poll.poll()

    def write(self, content: bytes | bytearray) -> int:
        """Write what there is room for, and return how much that was. Raises BlockingIOError when there is none."""
        if self._socket is not None:
            return self._socket.send(content, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if self._most_bytes is None:
            return os.write(self.fileno(), content)
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        if not poll.poll(0):
            raise BlockingIOError
        return os.write(self._descriptor, content[: self._most_bytes])

    def close(self) -> None:
        """Let go of what is ours. Closing twice is closing once."""
        if self._socket is not None:
            self._socket.close()
        if self._own is not None:
            own, self._own = self._own, None
            os.close(own)
