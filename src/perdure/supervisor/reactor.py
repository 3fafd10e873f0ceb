"""One thread that waits for everything: descriptors, times, and calls from other threads. It wakes for nothing else.

Called by `supervise`. Times are seconds of `CLOCK_BOOTTIME`, which no clock adjustment moves and which goes on while a machine sleeps.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import os
import selectors
import socket
import time
from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

_LONGEST_SLEEP_S = 60.0
"""A sleeping machine stops the clock that a selector waits by; after this long the other one is looked at again."""


def now_s() -> float:
    """Return the time by which deadlines are set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Timer:
    """A call that will be made at a time, unless it is cancelled."""

    __slots__ = ("call", "when_s")

    def __init__(self, when_s: float, call: Callable[[], None]) -> None:
        self.when_s = when_s
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call."""
        self.call = None


class Reactor:
    """Waits and calls. All methods but `post` belong to the one thread that runs it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._kept: list[socket.socket] = []
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.watch(self._wake, READ, self._run_posted)

    def watch(self, descriptor: int, events: int, call: Callable[[], None]) -> None:
        """Make `call` whenever `descriptor` is ready for `events`; replaces what was watched there. No events: `forget`.

        Raises PermissionError for a file that cannot be waited for, such as a regular one.
        """
        if not events:
            self.forget(descriptor)
            return
        # Not `modify`: it does not ask the kernel where only the call changes, and of a number that was closed and given out again the
        # kernel knows nothing.
        self.forget(descriptor)
        self._selector.register(descriptor, events, call)

    def forget(self, descriptor: int) -> None:
        """Watch `descriptor` no longer. Must come before it is closed."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def at(self, when_s: float, call: Callable[[], None]) -> Timer:
        """Make `call` once, not before `when_s`."""
        timer = Timer(when_s, call)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        return timer

    def after(self, pause_s: float, call: Callable[[], None]) -> Timer:
        """Make `call` once, `pause_s` from now."""
        return self.at(now_s() + pause_s, call)

    def post(self, call: Callable[[], None]) -> None:
        """Let the reactor's thread make `call` soon. From any thread."""
        self._posted.append(call)
        os.eventfd_write(self._wake, 1)

    def turn(self) -> None:
        """Wait until something is to be done, and do it."""
        for key, _ in self._selector.select(self._pause_s()):
            # A call before it in this turn may have ended the watch.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= now_s():
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()

    def keep(self, connection: socket.socket) -> None:
        """Keep `connection` open until the reactor is closed."""
        self._kept.append(connection)

    def close(self) -> None:
        """Let go of the reactor's own descriptors, and of what it keeps."""
        for connection in self._kept:
            connection.close()
        self._selector.close()
        os.close(self._wake)

    def _pause_s(self) -> float:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return _LONGEST_SLEEP_S
        return min(max(self._timers[0][0] - now_s(), 0.0), _LONGEST_SLEEP_S)

    def _run_posted(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()()
