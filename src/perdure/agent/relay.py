"""A terminal of our own between the user's and the seat: the seat may read and change it, whatever the user's shell does with the real one.

Called by `waiting`. A seat that read the real terminal would take away what is typed for the shell while the job is stopped, and the
kernel lets no process outside the session change its modes.
"""

from __future__ import annotations

import contextlib
import os
import select

from perdure.supervisor.outward import Outward
from perdure.supervisor.reactor import READ, WRITE, Reactor, Timer
from perdure.supervisor.terminal import Terminal

_CHUNK_BYTES = 1 << 14
_MOST_PENDING_BYTES = 1 << 16
_LOOK_AGAIN_S = 1.0
_LAST_MS = 1000


class Relay:
    """Passes everything on between our terminal, descriptors 0 and 1, and a new one, whose other side `theirs` goes to the seat."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._terminal = Terminal()
        self._master, self.theirs = os.openpty()
        os.set_blocking(self._master, False)
        self._typed = bytearray()
        self._shown = Outward(1)
        self._pending = bytearray()
        self._timer: Timer | None = None
        self._is_open = True
        self.is_raw = False
        """Ours is raw now: a line end does not return the cursor."""
        self._terminal.adopt(self.theirs)
        self._terminal.fit(self._master)
        reactor.watch(self._master, READ, self._written)

    def enter(self) -> None:
        """Take our terminal, once we are its foreground job."""
        if self._timer is not None:
            self._timer.cancel()
        self.is_raw = self._terminal.enter()
        self.fit()
        self._arm()
        if not self._terminal.is_ours():
            self._timer = self._reactor.after(_LOOK_AGAIN_S, self.enter)

    def leave(self) -> None:
        """Give our terminal back."""
        self._terminal.leave()
        self.is_raw = False
        self._reactor.forget(0)

    def fit(self) -> None:
        """Give the other terminal the size of ours."""
        self._terminal.fit(self._master)

    def finish(self) -> None:
        """Pass on what was written last, and close."""
        self._reactor.forget(self._master)
        os.close(self.theirs)
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        # The seat has written everything by now, and lets go of its side as it ends.
        self._show_all()
        while self._is_open and poll.poll(_LAST_MS):
            self._read_written()
            self._show_all()
        self._reactor.forget(self._shown.fileno())
        self._shown.close()
        os.close(self._master)

    def _arm(self) -> None:
        reading = self._terminal.is_ours() and len(self._typed) < _MOST_PENDING_BYTES
        self._reactor.watch(0, READ if reading else 0, self._read_typed)
        if self._is_open:
            wanted = READ if len(self._pending) < _MOST_PENDING_BYTES else 0
            self._reactor.watch(self._master, wanted | (WRITE if self._typed else 0), self._written)
        self._reactor.watch(self._shown.fileno(), WRITE if self._pending else 0, self._room)

    def _read_typed(self) -> None:
        if not self._terminal.is_ours():
            self._arm()
            return
        with contextlib.suppress(BlockingIOError, OSError):
            self._typed += os.read(0, _CHUNK_BYTES)
        self._arm()

    def _room(self) -> None:
        self._show()
        self._arm()

    def _written(self) -> None:
        if len(self._pending) < _MOST_PENDING_BYTES:
            self._read_written()
        try:
            while self._typed:
                del self._typed[: os.write(self._master, self._typed)]
        except BlockingIOError:
            pass
        except OSError:
            self._typed.clear()
        if self._is_open:
            self._arm()
        else:
            self._reactor.forget(self._master)

    def _read_written(self) -> None:
        try:
            content = os.read(self._master, _CHUNK_BYTES)
        except BlockingIOError:
            # With our own side open, this is all there is until something is written; with it closed, its end is an error.
            return
        except OSError:
            content = b""
        if not content:
            self._is_open = False
            return
        self._pending += content
        self._show()

    def _show_all(self) -> None:
        while self._pending:
            self._shown.wait_for_room()
            self._show()

    def _show(self) -> None:
        try:
            while self._pending:
                del self._pending[: self._shown.write(self._pending)]
        except BlockingIOError:
            pass
        except OSError:
            self._pending.clear()
