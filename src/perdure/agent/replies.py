"""What a seat tells the user's process: one JSON document a line. Called by `seat`, `told` and `client`; a client in C reads it too.

``{"said": "text"}`` is for the user's stderr; ``{"suspended": true}`` says that the workload stopped as by Ctrl-Z; ``{"started": {…}}``
comes once; ``{"event": {…}}`` only where events were asked for; ``{"ended": {"status": N, "error": …}}`` is the last one, and
``{"unmanaged": "text"}`` may come instead of all others.
"""

from __future__ import annotations

import msgspec

from perdure.supervisor import wire
from perdure.supervisor.messages import Event
from perdure.supervisor.wire import ErrorDocument

MOST_LINE_BYTES = 1 << 20


class Started(msgspec.Struct, frozen=True, omit_defaults=True):
    """The workload runs."""

    name: str
    restored_from: str | None = None
    """The checkpoint it goes on from."""


class Ended(msgspec.Struct, frozen=True, omit_defaults=False):
    """The end of the workload, or why it never began."""

    status: int
    """What the user's process ends with: the workload's exit status, 128+n for a signal, or an error's."""
    error: ErrorDocument | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: exactly one of these is there."""

    said: str | None = None
    unmanaged: str | None = None
    """Why the command is to be run as if Perdure did not exist. Of schedulers' seats alone."""
    started: Started | None = None
    event: Event | None = None
    suspended: bool = False
    ended: Ended | None = None
    refused: ErrorDocument | None = None
    """What the agent says that starts no seat."""
    is_ending: bool = False
    """It starts none because it ends, and has not taken the request: the next one can be asked."""


def encode(reply: Reply) -> bytes:
    """Return `reply` as a line, without its end."""
    return wire.encode(reply)


def decode(line: bytes) -> Reply:
    """Read a line. Raises `msgspec.DecodeError`."""
    reply: Reply = wire.decode(line, Reply)
    return reply
