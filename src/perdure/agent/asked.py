"""What a process asks of the agent, besides a seat: typed messages, read strictly. Called by `worker` and `client`.

One request a connection: ``ASK1``, its length (u32, little-endian, at most `MOST_BYTES`), and a JSON document. Lines of JSON come back:
events, and then one answer or one refusal. A field or a kind that is not known here is refused, not passed over.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any, Literal

import msgspec

from perdure import errors
from perdure.supervisor import wire
from perdure.supervisor.messages import Event
from perdure.supervisor.wire import ErrorDocument

MAGIC = b"ASK1"
MOST_BYTES = 1 << 16
MOST_LINE_BYTES = 64 << 20
"""Of an answer: a manifest of ten thousand processes and files is a few megabytes."""

_HEADER = struct.Struct("<4sI")
_HINT = "use the same Perdure on both sides"


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Ps(_Message, frozen=True, tag="ps"):
    """How are the workloads, or those of these names?"""

    names: tuple[str, ...] = ()


class Logs(_Message, frozen=True, tag="logs"):
    """The descriptor of the workload's log; the connection ends when the workload does."""

    name: str


class Checkpoint(_Message, frozen=True, tag="checkpoint"):
    """Save it now; with `stop`, end it then."""

    name: str
    stop: bool = False


class Stop(_Message, frozen=True, tag="stop"):
    """End it without saving."""

    name: str
    grace_s: float = 10.0


class Suspend(_Message, frozen=True, tag="suspend"):
    """Move its GPU memory away."""

    name: str
    within_s: float = 60.0


class Resume(_Message, frozen=True, tag="resume"):
    """Bring its GPU memory back."""

    name: str


class Remove(_Message, frozen=True, tag="remove"):
    """Forget it, and its checkpoints where that is asked for."""

    name: str
    checkpoints: bool = False


class Check(_Message, frozen=True, tag="check"):
    """What would prevent a checkpoint: of the workload `name`, or of the process `pid` that was started at `start_ticks`."""

    name: str | None = None
    pid: int | None = None
    start_ticks: int | None = None
    outputs: tuple[str, ...] = ()
    tcp: Literal["close", "keep"] = "close"


class CheckRestore(_Message, frozen=True, tag="check-restore"):
    """What would prevent restoring `checkpoint` (or the newest of a workload of that name) here."""

    checkpoint: str
    cpu_check: Literal["features", "strict", "off"] | None = None
    cuda_visible: str | None = None
    """CUDA_VISIBLE_DEVICES where it is asked, which a restore from there would be given; None: it is not set."""


class StoreList(_Message, frozen=True, tag="store-list"):
    """Which checkpoints are there, of all workloads or of one?"""

    name: str | None = None


class StoreShow(_Message, frozen=True, tag="store-show"):
    """Everything that one checkpoint says of itself."""

    checkpoint: str


class StoreVerify(_Message, frozen=True, tag="store-verify"):
    """Read all of the store again, and say what could not be restored."""


class StorePin(_Message, frozen=True, tag="store-pin"):
    """Keep a checkpoint whatever the rules say, or not any more."""

    checkpoint: str
    unpin: bool = False
    note: str = ""


class StorePrune(_Message, frozen=True, tag="store-prune"):
    """Remove checkpoints by rules."""

    names: tuple[str, ...] = ()
    keep_last: int | None = None
    keep_for_s: float | None = None
    max_bytes: int | None = None
    damaged: bool = False
    dry_run: bool = False


class StoreDelete(_Message, frozen=True, tag="store-delete"):
    """Remove one checkpoint."""

    checkpoint: str


class Status(_Message, frozen=True, tag="status"):
    """Which Perdure runs here, and how many seats of the caller's?"""


What = (
    Ps
    | Logs
    | Checkpoint
    | Stop
    | Suspend
    | Resume
    | Remove
    | Check
    | CheckRestore
    | StoreList
    | StoreShow
    | StoreVerify
    | StorePin
    | StorePrune
    | StoreDelete
    | Status
)


class Asked(_Message, frozen=True):
    """One request. `user`: whose workloads it is about, which only root may say; None: the caller's."""

    what: What
    user: int | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of what comes back; the last one is an answer or a refusal."""

    event: Event | None = None
    answer: dict[str, Any] | None = None
    refused: ErrorDocument | None = None
    is_ending: bool = False
    """The agent ends, and has not taken the request: the next one can be asked."""


def encode(asked: Asked) -> bytes:
    """Return `asked` as one message. Raises `errors.UsageError` when it is too long."""
    payload = wire.encode(asked)
    if len(payload) > MOST_BYTES:
        raise errors.UsageError(f"a request of {len(payload)} bytes is longer than {MOST_BYTES}", hint="name fewer things at once")
    return _HEADER.pack(MAGIC, len(payload)) + payload


def decode(payload: bytes) -> Asked:
    """Read the payload of a message. Raises `errors.UsageError`."""
    try:
        asked: Asked = wire.decode(payload, Asked)
    except msgspec.DecodeError as error:
        raise errors.UsageError(f"this is no request: {error}", hint=_HINT) from error
    return asked


def receive(channel: socket.socket, *, within_s: float) -> Asked:
    """Take a request from a client that has `within_s` seconds for all of it. Raises `errors.UsageError`."""
    until_s = time.monotonic() + within_s
    magic, size = _HEADER.unpack(_exactly(channel, _HEADER.size, until_s))
    if magic != MAGIC or size > MOST_BYTES:
        raise errors.UsageError("this is no request: it does not begin as one, or is too long", hint=_HINT)
    return decode(_exactly(channel, size, until_s))


def reply(channel: socket.socket, said: Reply, *, within_s: float) -> None:
    """Send a line. Raises OSError when the other side is gone, or takes longer than `within_s`."""
    channel.settimeout(within_s)
    channel.sendall(wire.encode(said) + b"\n", socket.MSG_NOSIGNAL)


def decode_reply(line: bytes) -> Reply:
    """Read a line of what came back. Raises `msgspec.DecodeError`."""
    found: Reply = wire.decode(line, Reply)
    return found


def _exactly(channel: socket.socket, size: int, until_s: float) -> bytes:
    content = bytearray()
    while len(content) < size:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise errors.UsageError("this is no request: it did not come in time", hint=_HINT)
        channel.settimeout(left_s)
        try:
            piece = channel.recv(size - len(content))
        except TimeoutError:
            continue
        except OSError as error:
            raise errors.UsageError(f"this is no request: its sender went away: {error.strerror}", hint=_HINT) from error
        if not piece:
            raise errors.UsageError("this is no request: it ends too early", hint=_HINT)
        content += piece
    return bytes(content)
