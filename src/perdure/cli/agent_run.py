"""`perdure run` and `perdure restore` of an ordinary user: a seat is asked of the agent, and waited for. Called by `run` and `restore`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from perdure.agent import waiting
from perdure.agent.request import Request
from perdure.cli import console
from perdure.supervisor import wire
from perdure.supervisor.messages import Event

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
    given += [("events", "1")] if common.json or events is not None else []
    mask = os.umask(0)
    os.umask(mask)
    request = Request(umask=mask, working_directory=os.getcwd(), argv=command, environment=environment, options=tuple(given))
    told = _Told(common, events)
    detach = ("detach", "1") in given
    return waiting.run(path, request, say=told.say, on_event=told.event, detach=detach)


class _Told:
    """Writes down what the seat says, as a supervisor of our own would."""

    def __init__(self, common: console.Common, events: Path | None) -> None:
        self._as_json = common.json
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._events = os.open(events, flags, 0o600) if events is not None else None

    def say(self, words: str) -> None:
        """Show `words`, which bring their line's end, to a person."""
        sys.stderr.write(words)
        sys.stderr.flush()

    def event(self, event: Event) -> None:
        """Tell programs of `event`."""
        line = wire.encode(event) + b"\n"
        if self._as_json:
            os.write(2, line)
        if self._events is not None:
            os.write(self._events, line)


def flag(value: bool) -> str | None:
    """Return an option's word for a flag that was given."""
    return "1" if value else None
