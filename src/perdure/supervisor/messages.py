"""What is said over a supervisor's socket: one JSON document a line. A request goes in; events and then one answer come out.

Called by `control` on both of its sides.
"""

from __future__ import annotations

import msgspec

from perdure.model.finding import Finding
from perdure.supervisor import wire
from perdure.supervisor.record import LastCheckpoint
from perdure.supervisor.wire import ErrorDocument

MAX_LINE_BYTES = 1 << 16


class Status(msgspec.Struct, frozen=True, tag="status"):
    """How is the workload?"""


class Checkpoint(msgspec.Struct, frozen=True, tag="checkpoint"):
    """Save it now; with `stop`, give it up once that is durable."""

    stop: bool = False


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End it without saving: first by SIGTERM, after `grace_s` seconds by SIGKILL."""

    grace_s: float = 10.0


class Suspend(msgspec.Struct, frozen=True, tag="suspend"):
    """Move its GPU memory into the machine's, and free the GPU. Work on the GPU has to come to rest within `within_s` seconds."""

    within_s: float = 60.0


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Move the GPU memory of a suspended one back, and let it go on."""


Request = Status | Checkpoint | Stop | Suspend | Resume


class Event(msgspec.Struct, frozen=True, tag="event", omit_defaults=True):
    """Something that goes on. `phase`: check, freeze, store, commit, committed, failed, ended, …; a ``warning`` is no step of it."""

    phase: str
    workload: str
    at_ns: int
    text: str = ""
    done_bytes: int | None = None
    total_bytes: int | None = None
    checkpoint: LastCheckpoint | None = None
    durations_s: dict[str, float] = {}
    code: str = ""
    """Of a warning and of a failure: what kind it is, a finding's or an error's code."""
    about: str = ""
    """The thing that a warning is about."""
    remedy: str = ""
    """What can be done; empty: nothing, or nobody knows."""


class Answer(msgspec.Struct, frozen=True, tag="answer", omit_defaults=True):
    """The end of a request that was met."""

    state: str
    epoch: int
    pid: int | None = None
    phase: str | None = None
    """What is going on besides: a checkpoint's phase; None: nothing."""
    next_s: float | None = None
    """Seconds until the next checkpoint by itself."""
    checkpoint: LastCheckpoint | None = None
    warnings: tuple[Finding, ...] = ()
    """What may not come back as expected from the last checkpoint of this life, as far as an answer has room for it."""
    warnings_in_all: int = 0
    """How many there are."""
    gpu_bytes: int | None = None
    """GPU memory that was moved; None: none was, or the driver does not tell how much."""
    took_s: float | None = None
    """Seconds that moving GPU memory took; None: there was nothing to do."""


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """The end of a request that was not met."""

    error: ErrorDocument


Reply = Event | Answer | Refusal


def encode(message: Request | Reply) -> bytes:
    """Return `message` as a line."""
    return wire.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Read a request. Raises `msgspec.DecodeError`."""
    request: Request = wire.decode(line, Request)
    return request


def decode_reply(line: bytes) -> Reply:
    """Read a reply. Raises `msgspec.DecodeError`."""
    reply: Reply = wire.decode(line, Reply)
    return reply
