"""The workload's standard streams: pipes or a pseudo-terminal whose other ends are ours, so that they outlive it. Called by `supervise`.

Everything written is appended to the log and passed on to our own stdout and stderr. A reader of ours that is slow holds the workload
back, and one that goes away is told to the workload, both as without us in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading
from collections.abc import Callable
from typing import Literal

import msgspec

from perdure.model.checkpoint import Stream
from perdure.supervisor.log import Log
from perdure.supervisor.reactor import READ, WRITE, Reactor

_CHUNK_BYTES = 1 << 16
_MOST_PENDING_BYTES = 1 << 18
_SMALL_WRITE_BYTES = 4096
"""A pipe or terminal that is ready takes this much without blocking; its flags are shared with others, so that they are left alone."""

_SETTLE_MS = 10
"""A pseudo-terminal hands over what was written a moment later, by a worker of the kernel."""


class Plan(msgspec.Struct, frozen=True):
    """How the three streams are to be wired, decided from what ours are."""

    terminal: bool
    """Ours are a terminal: the workload gets one of its own."""
    stdin: Literal["pipe", "file", "null"]
    """``file``: ours is handed over as it is; it needs no one in between."""
    one_output: bool
    """Ours are the same file: one pipe keeps the order of what is written."""
    passed_on: bool = True
    """Our stdout and stderr want what is written; not so in the background."""


def plan(*, background: bool) -> Plan:
    """Decide from this process's descriptors 0, 1 and 2."""
    if background:
        return Plan(terminal=False, stdin="null", one_output=False, passed_on=False)
    if _is_terminal(0) and _is_terminal(1):
        return Plan(terminal=True, stdin="pipe", one_output=True)
    return Plan(terminal=False, stdin=_stdin_kind(), one_output=_are_same(1, 2))


def plan_again(saved: tuple[Stream, ...], *, background: bool) -> Plan:
    """Decide for a workload that comes back with the streams `saved`: what was a terminal stays one, and one pipe stays one pipe."""
    by_number = {stream.fd: stream for stream in saved}
    kinds = {stream.kind for stream in saved}
    first, second = by_number.get(1), by_number.get(2)
    stdin = by_number.get(0)
    return Plan(
        terminal="tty" in kinds,
        stdin="pipe" if stdin is not None and stdin.kind == "pipe" else "null",
        one_output=first is not None and second is not None and first.external is not None and first.external == second.external,
        passed_on=not background,
    )


def _stdin_kind() -> Literal["pipe", "file", "null"]:
    try:
        found = os.fstat(0)
    except OSError:
        return "null"
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(1, 3):
        return "null"
    pumped = stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode) or os.isatty(0)
    return "pipe" if pumped else "file"


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _are_same(first: int, second: int) -> bool:
    try:
        one, other = os.fstat(first), os.fstat(second)
    except OSError:
        return False
    return (one.st_dev, one.st_ino, one.st_rdev) == (other.st_dev, other.st_ino, other.st_rdev)


class Outlet:
    """One stream out of the workload: from `source`, into the log, and on to `target` (None: nowhere else)."""

    def __init__(self, stream: int, source: int, target: int | None, log: Log, say: Callable[[str], None]) -> None:
        self.stream = stream
        self.source = source
        self.target = target
        self.log = log
        self.pending = bytearray()
        self.open = True
        self.pollable = target is not None and not stat.S_ISREG(os.fstat(target).st_mode)
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
        if self.target is not None:
            self.pending += content
        return True

    def give(self) -> None:
        """Pass on what is pending, as far as it goes without waiting. A reader that is gone closes the outlet."""
        if self.target is None:
            return
        poll = select.poll()
        poll.register(self.target, select.POLLOUT)
        try:
            while self.pending:
                if self.pollable and not poll.poll(0):
                    return
                size = _SMALL_WRITE_BYTES if self.pollable else len(self.pending)
                written = os.write(self.target, self.pending[:size])
                del self.pending[:written]
        except BlockingIOError:
            return
        except OSError as error:
            self.pending.clear()
            if error.errno == errno.EPIPE:
                self.open = False
                return
            # A terminal that hung up, a full disk: the log still has it all.
            self.target = None
            if error.errno != errno.EIO:
                self._say(f"cannot pass on what the workload writes: {error.strerror}; the log has it")


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
            target = 1 if self.plan.passed_on and _is_open(1) else None
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
        target = stream if self.plan.passed_on and _is_open(stream) else None
        self._outlets.append(Outlet(stream, ours, target, self.log, self._say))
        return theirs

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
        reading = not inlet.ended and len(inlet.pending) < _MOST_PENDING_BYTES and self.may_read()
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
                while outlet.pending and outlet.target is not None:
                    if outlet.pollable:
                        select.select([], [outlet.target], [])
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
            if outlet.open and len(outlet.pending) < _MOST_PENDING_BYTES:
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
        wanted = READ if outlet.open and len(outlet.pending) < _MOST_PENDING_BYTES else 0
        if self.plan.terminal and self._inlet is not None and self._inlet.pending:
            wanted |= WRITE
        self._reactor.watch(outlet.source, wanted, lambda: self._pump(outlet))
        if outlet.target is not None and outlet.pollable:
            with contextlib.suppress(PermissionError):
                self._reactor.watch(outlet.target, WRITE if outlet.pending else 0, lambda: self._pump(outlet))

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
        if outlet.target is not None:
            self._reactor.forget(outlet.target)
        os.close(outlet.source)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _is_ready(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(_SETTLE_MS))
