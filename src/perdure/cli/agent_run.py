"""`perdure run` and `perdure restore` of an ordinary user: a seat is asked of the agent, and waited for. Called by `run` and `restore`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from perdure.agent import waiting
from perdure.agent.request import Request
from perdure.cli import console
from perdure.supervisor import wire
from perdure.supervisor.messages import Event
from perdure.supervisor.progress import RESTORE, Readout

Option = tuple[str, str | None]


def run(
    path: str,
    command: tuple[str, ...],
    environment: dict[str, str],
    options: Iterable[Option],
    common: console.Common,
    *,
    events: Path | None,
) -> int:
    """Ask the agent at `path` for a seat for `command` (none: for what is known of the name), and return what the workload ends with.

    Of `options`, those that are None were not given. Events go to the file `events`, opened as this user, and with --json to stderr.
    """
    given = [(key, value) for key, value in options if value is not None]
    given += [("quiet", "1")] if common.quiet or common.json else []
    told = _Told(common, events)
    given += [("events", "1")] if told.wants_events else []
    mask = os.umask(0)
    os.umask(mask)
    request = Request(umask=mask, working_directory=os.getcwd(), argv=command, environment=environment, options=tuple(given))
    detach = ("detach", "1") in given
    return waiting.run(path, request, say=told.say, on_event=told.event, on_wait=lambda: _tell_of_wait(common, path), detach=detach)


def _tell_of_wait(common: console.Common, path: str) -> None:
    if not common.json:
        console.note(common, f"perdure: waiting for the node's agent, which does not listen at {path} just now")


class _Told:
    """Writes down what the seat says, as a supervisor of our own would."""

    def __init__(self, common: console.Common, events: Path | None) -> None:
        self._as_json = common.json
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._events = os.open(events, flags, 0o600) if events is not None else None
        self._readout = Readout() if not common.quiet and not common.json and sys.stderr.isatty() else None
        self._is_shown = False

    @property
    def wants_events(self) -> bool:
        """Tell whether something is done with them."""
        return self._as_json or self._events is not None or self._readout is not None

    def say(self, words: str) -> None:
        """Show `words`, which bring their line's end, to a person."""
        self._clear()
        sys.stderr.write(words)
        sys.stderr.flush()

    def event(self, event: Event) -> None:
        """Tell programs of `event`."""
        line = wire.encode(event) + b"\n"
        if self._as_json:
            os.write(2, line)
        if self._events is not None:
            os.write(self._events, line)
        if event.phase == "running":
            # From now on the terminal is the workload's.
            self._clear()
            self._readout = None
        elif event.phase in RESTORE:
            self._show(event)

    def _show(self, event: Event) -> None:
        if self._readout is not None:
            self._is_shown = True
            sys.stderr.write(f"\r\x1b[K{self._readout.of(event, time.monotonic())}")
            sys.stderr.flush()

    def _clear(self) -> None:
        if self._is_shown:
            self._is_shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def flag(value: bool) -> str | None:
    """Return an option's word for a flag that was given."""
    return "1" if value else None
