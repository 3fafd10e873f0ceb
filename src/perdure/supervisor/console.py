"""The workload's standard streams: pipes or a pseudo-terminal whose other ends are ours, so that they outlive it. Called by `keeper`.

Everything written is appended to the log and passed on to our own stdout and stderr. A reader of ours that is slow holds the workload
back, and one that goes away is told to the workload, both as without us in between.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

from perdure.supervisor.log import Log
from perdure.supervisor.outward import Outward
from perdure.supervisor.pump import MOST_PENDING_BYTES, Inlet, Outlet
from perdure.supervisor.reactor import READ, WRITE, Reactor
from perdure.supervisor.wiring import Plan, is_open

_SETTLE_MS = 10
"""A pseudo-terminal hands over what was written a moment later, by a worker of the kernel."""


class Console:
    """All streams of one life. `drain` may be called from another thread; everything else belongs to the reactor's."""

    def __init__(self, wiring: Plan, log: Log, reactor: Reactor, say: Callable[[str], None]) -> None:
        self.plan = wiring
        self.log = log
        self._reactor = reactor
        self._say = say
        self._lock = threading.Lock()
        self._outlets: list[Outlet] = []
        self._inlet: Inlet | None = None
        self._theirs: list[int] = []
        self.master: int | None = None
        """Our side of the workload's terminal."""
        self.on_input: Callable[[bytes], None] = lambda _content: None
        """Told of everything typed, in terminal mode."""
        self.may_read: Callable[[], bool] = lambda: True
        """Asked before our terminal is read: a background job must not."""

    def open(self) -> tuple[int, int, int]:
        """Make the streams; returns the workload's descriptors for 0, 1 and 2, to be closed with `release`."""
        if self.plan.terminal:
            self.master, theirs = os.openpty()
            os.set_blocking(self.master, False)
            self._theirs = [theirs]
            target = self._target(1)
            self._outlets = [Outlet(1, self.master, target, self.log, self._say)]
            self._inlet = Inlet(0, self.master, terminal=True)
            return theirs, theirs, theirs
        stdin = self._open_stdin()
        stdout = self._open_outlet(1)
        stderr = stdout if self.plan.one_output else self._open_outlet(2)
        return stdin, stdout, stderr

    def _open_stdin(self) -> int:
        if self.plan.stdin == "file":
            return 0
        if self.plan.stdin == "null":
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            self._theirs.append(null)
            return null
        theirs, ours = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._theirs.append(theirs)
        self._inlet = Inlet(0, ours, terminal=False)
        return theirs

    def _open_outlet(self, stream: int) -> int:
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._theirs.append(theirs)
        self._outlets.append(Outlet(stream, ours, self._target(stream), self.log, self._say))
        return theirs

    def _target(self, stream: int) -> Outward | None:
        return Outward(stream) if self.plan.passed_on and is_open(stream) else None

    def release(self) -> None:
        """Close the workload's ends: it has them. From then on the end of a stream is seen."""
        for descriptor in self._theirs:
            os.close(descriptor)
        self._theirs.clear()

    def start(self) -> None:
        """Begin to pump."""
        for outlet in self._outlets:
            self._arm(outlet)
        self.listen()

    def listen(self) -> None:
        """Read our stdin, as far as the workload takes it."""
        inlet = self._inlet
        if inlet is None:
            return
        if not inlet.open:
            self._close_inlet(inlet)
            return
        reading = not inlet.ended and len(inlet.pending) < MOST_PENDING_BYTES and self.may_read()
        with contextlib.suppress(PermissionError):
            self._reactor.watch(inlet.source, READ if reading else 0, self._input)
        if not inlet.terminal:
            self._reactor.watch(inlet.sink, WRITE if inlet.pending else 0, self._feed)
        elif inlet.pending:
            self._arm(self._outlets[0])

    def drain(self) -> int:
        """Take everything out of the streams, with all writers standing still; returns the length of the log, to the byte."""
        with self._lock:
            for outlet in self._outlets:
                while outlet.open and (outlet.take() or (self.plan.terminal and _is_ready(outlet.source))):
                    pass
            for outlet in self._outlets:
                self._reactor.post(lambda outlet=outlet: self._arm(outlet))  # type: ignore[misc]
            return self.log.size_bytes

    def finish(self) -> None:
        """The workload is gone: take what it wrote last and pass all of it on, waiting for the reader."""
        with self._lock:
            for outlet in self._outlets:
                while outlet.open and outlet.take():
                    pass
                while outlet.pending and outlet.target is not None and outlet.is_passed_on:
                    outlet.target.wait_for_room()
                    outlet.give()

    def close(self) -> None:
        """Close all of our ends. Pending output is lost, but for the log."""
        self.release()
        if self._inlet is not None:
            self._close_inlet(self._inlet)
        for outlet in self._outlets:
            self._close_outlet(outlet)
        self._outlets.clear()

    def _pump(self, outlet: Outlet) -> None:
        with self._lock:
            if outlet.open and len(outlet.pending) < MOST_PENDING_BYTES:
                outlet.take()
            outlet.give()
        if self.plan.terminal and self._inlet is not None and self._inlet.pending:
            self._inlet.give()
        self._arm(outlet)

    def _arm(self, outlet: Outlet) -> None:
        if outlet not in self._outlets:
            return
        if not outlet.open and not outlet.pending:
            with self._lock:
                self._close_outlet(outlet)
                self._outlets.remove(outlet)
            return
        wanted = READ if outlet.open and len(outlet.pending) < MOST_PENDING_BYTES else 0
        if self.plan.terminal and self._inlet is not None and self._inlet.pending:
            wanted |= WRITE
        if wanted != outlet.watched:
            self._reactor.watch(outlet.source, wanted, lambda: self._pump(outlet))
            outlet.watched = wanted
        self._arm_target(outlet)

    def _arm_target(self, outlet: Outlet) -> None:
        """Wait for room where there is something to be passed on, and only then."""
        target = outlet.target
        wanted = target.fileno() if target is not None and target.is_pollable and outlet.is_passed_on and outlet.pending else None
        if wanted == outlet.waits_for:
            return
        if outlet.waits_for is not None:
            self._reactor.forget(outlet.waits_for)
        outlet.waits_for = wanted
        if wanted is not None:
            with contextlib.suppress(PermissionError):
                self._reactor.watch(wanted, WRITE, lambda: self._pump(outlet))

    def _input(self) -> None:
        inlet = self._inlet
        if inlet is None or not self.may_read():
            self.listen()
            return
        content = inlet.take()
        inlet.give()
        if content and inlet.terminal:
            self.on_input(content)
        self.listen()

    def _feed(self) -> None:
        if self._inlet is not None:
            self._inlet.give()
            self.listen()

    def _close_inlet(self, inlet: Inlet) -> None:
        self._reactor.forget(inlet.source)
        if not inlet.terminal:
            self._reactor.forget(inlet.sink)
            os.close(inlet.sink)
        self._inlet = None

    def _close_outlet(self, outlet: Outlet) -> None:
        self._reactor.forget(outlet.source)
        if outlet.waits_for is not None:
            self._reactor.forget(outlet.waits_for)
        outlet.close()


def _is_ready(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(_SETTLE_MS))
