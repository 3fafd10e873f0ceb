"""The job control of a shell, carried through to the workload: Ctrl-C, Ctrl-Z, fg and bg, the window's size. Called by `keeper`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from perdure import errors
from perdure.base.proc import process
from perdure.supervisor import terminal
from perdure.supervisor.console import Console
from perdure.supervisor.line import Line
from perdure.supervisor.reactor import Reactor, Timer

_LOOK_AGAIN_S = 1.0
"""In the background nothing tells that the shell made us its foreground job, unless it had stopped us."""

SUSPENDED = b'{"suspended":true}'
"""Told over the line when the workload stopped for its terminal's user, as by Ctrl-Z."""


class Foreground:
    """Ties our terminal, if there is one, to the workload whose init is `pid` (by the host)."""

    def __init__(
        self, reactor: Reactor, console: Console, pid: int, *, before_going_on: Callable[[], None], line: Line | None = None
    ) -> None:
        self._reactor = reactor
        self._console = console
        self._pid = pid
        self._before_going_on = before_going_on
        self._line = line
        self._is_suspended = False
        # The other end of the line sees to it that nobody else reads what it lent us.
        self._terminal = terminal.Terminal(lent=line is not None)
        self._raw = False
        self._timer: Timer | None = None

    @property
    def is_raw(self) -> bool:
        """Tell whether our terminal is raw now."""
        return self._raw

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Take the terminal while the block runs, and give it back whatever happens."""
        try:
            self._begin()
            yield
        finally:
            self._give_back()

    def resized(self) -> None:
        """Our window has another size."""
        if self._console.master is not None:
            self._terminal.fit(self._console.master)

    def asked_to_stop(self) -> None:
        """SIGTSTP came, from the shell or its terminal: stop with the workload."""
        for group in self._groups():
            _signal_group(group, signal.SIGSTOP)
        self._suspend()

    def continued(self) -> None:
        """SIGCONT came: we may be the foreground job again."""
        if self._is_suspended:
            self._go_on()
        else:
            self._begin()

    def _begin(self) -> None:
        if not _is_terminal():
            return
        if self._console.plan.terminal:
            self._console.may_read = self._terminal.is_ours
            self._console.on_input = self._typed
            self._raw = self._terminal.enter()
            self.resized()
        else:
            self._console.may_read = self._terminal.is_ours
        self._console.listen()
        if self._timer is not None:
            self._timer.cancel()
        if not self._terminal.is_ours():
            self._timer = self._reactor.after(_LOOK_AGAIN_S, self._begin)

    def _give_back(self) -> None:
        self._terminal.leave()
        self._raw = False

    def _typed(self, content: bytes) -> None:
        if terminal.may_suspend(content):
            for pause_s in terminal.LOOKS_S:
                self._reactor.after(pause_s, self._look)

    def _look(self) -> None:
        """Stop with the workload's main process, if that has stopped."""
        main = self._main()
        if main is not None and main.state == "T":
            self._suspend()

    def _suspend(self) -> None:
        if self._line is not None:
            # It is the process at the other end that stops, and its shell that lets it go on; we keep the workload meanwhile.
            if not self._is_suspended:
                self._is_suspended = True
                self._line.tell(SUSPENDED)
            return
        self._give_back()
        terminal.stop_ourselves()
        self._go_on()

    def _go_on(self) -> None:
        self._is_suspended = False
        # Somebody may have taken the workload over while we stood still: it must not move before that is known.
        self._before_going_on()
        self._begin()
        for group in self._groups():
            _signal_group(group, signal.SIGCONT)

    def _main(self) -> process.Stat | None:
        try:
            children = process.children(self._pid)
            return process.stat(children[0]) if children else None
        except errors.ProcessGone:
            return None

    def _groups(self) -> list[int]:
        main = self._main()
        return [main.group] if main is not None and main.group > 0 else []


def _is_terminal() -> bool:
    try:
        return os.isatty(0)
    except OSError:
        return False


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
