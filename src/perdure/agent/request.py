"""What a user's process asks of a seat: the command to run, and all that only that process knows. Called by `seat` and `client`.

One message, so that a client in C is short. ``PSR1``, the payload's length (u32, little-endian, at most `MOST_BYTES`), and the payload:
fields that each end with a NUL byte: umask (octal), working directory, number of arguments, the arguments, number of variables, each as
``K=V``, number of options, each as ``key=value``. The first byte brings the descriptors 0, 1 and 2 of the client (SCM_RIGHTS).

All of it is a user's words: who that user is comes from the kernel, never from here.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import time

import msgspec

from perdure import errors

MAGIC = b"PSR1"
MOST_BYTES = 4 << 20
"""Linux takes no more of arguments and environment together either, with its usual stack limit of 8 MiB."""

_HEADER = struct.Struct("<4sI")
_STREAMS = 3
_MOST_FIELDS = 1 << 20
_MOST_OPTIONS = 256
_CHUNK_BYTES = 1 << 16
_HINT = "use the same Perdure on both sides"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. Text may hold surrogates for bytes that are no UTF-8."""

    umask: int
    working_directory: str
    argv: tuple[str, ...]
    """Empty: go on with what is known."""
    environment: dict[str, str]
    options: tuple[tuple[str, str], ...]
    """Keys may repeat."""


def encode(request: Request) -> bytes:
    """Return `request` as one message. Raises `errors.UsageError` when it is too long, or holds a NUL byte."""
    variables = [f"{name}={value}" for name, value in request.environment.items()]
    options = [f"{key}={value}" for key, value in request.options]
    fields = [f"{request.umask:o}", request.working_directory]
    for words in (request.argv, variables, options):
        fields += [str(len(words)), *words]
    if any("\0" in field for field in fields):
        raise errors.UsageError("an argument, a variable or the working directory holds a NUL byte", hint="no program can be given one")
    payload = b"".join(os.fsencode(field) + b"\0" for field in fields)
    if len(payload) > MOST_BYTES:
        raise errors.UsageError(
            f"arguments and environment are {len(payload)} bytes, more than {MOST_BYTES}", hint="set fewer variables, or pass a file"
        )
    return _HEADER.pack(MAGIC, len(payload)) + payload


def decode(payload: bytes) -> Request:
    """Read the payload of a message. Raises `errors.UsageError` for anything but exactly what `encode` makes."""
    if not payload.endswith(b"\0") or payload.count(b"\0") > _MOST_FIELDS:
        raise _malformed("its end is missing, or it has too many fields")
    fields = _Fields(payload[:-1].split(b"\0"))
    mask, directory = fields.next(), fields.next()
    if not 1 <= len(mask) <= 4 or set(mask) - set("01234567") or int(mask, 8) > 0o777:
        raise _malformed("its umask is none")
    if not directory.startswith("/"):
        raise _malformed("its working directory is not absolute")
    argv = fields.take(fields.count(_MOST_FIELDS))
    variables = fields.take(fields.count(_MOST_FIELDS))
    options = fields.take(fields.count(_MOST_OPTIONS))
    if fields.left:
        raise _malformed("there is something behind its end")
    return Request(
        umask=int(mask, 8),
        working_directory=directory,
        argv=argv,
        environment=_variables(variables),
        options=tuple(_pair(option) for option in options),
    )


class _Fields:
    """The fields of a payload, taken one after the other."""

    def __init__(self, fields: list[bytes]) -> None:
        self._fields = fields
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._fields) - self._at

    def next(self) -> str:
        return self.take(1)[0]

    def count(self, most: int) -> int:
        text = self.next()
        if not text.isascii() or not text.isdigit() or len(text) > 7 or int(text) > most:
            raise _malformed("a number in it is none, or too large")
        return int(text)

    def take(self, count: int) -> tuple[str, ...]:
        if count > self.left:
            raise _malformed("it ends too early")
        found = self._fields[self._at : self._at + count]
        self._at += count
        return tuple(os.fsdecode(field) for field in found)


def _variables(entries: tuple[str, ...]) -> dict[str, str]:
    """Return the variables; as for getenv(3), the first of a name counts, and an entry without a name or a ``=`` is none."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if name and equals:
            found.setdefault(name, value)
    return found


def _pair(option: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not key or not equals:
        raise _malformed("an option is not key=value")
    return key, value


def _malformed(why: str) -> errors.UsageError:
    return errors.UsageError(f"this is no request: {why}", hint=_HINT)


def send(channel: socket.socket, request: Request, streams: tuple[int, int, int]) -> None:
    """Send `request` with the descriptors `streams`. Raises `errors.UsageError` as `encode` does, and OSError."""
    message = encode(request)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
    sent = channel.sendmsg([message], [rights])
    channel.sendall(message[sent:])


def receive(channel: socket.socket, *, within_s: float) -> tuple[Request, tuple[int, int, int]]:
    """Take a request and its three descriptors, close-on-exec, from a client that has `within_s` seconds for all of it.

    Descriptors are closed again when the request is not as it should be. Raises `errors.UsageError` then, and when time is up or the
    client goes away.
    """
    until_s = time.monotonic() + within_s
    descriptors: list[int] = []
    try:
        head = _receive_exactly(channel, _HEADER.size, until_s, descriptors)
        magic, size = _HEADER.unpack(head)
        if magic != MAGIC:
            raise _malformed("it does not begin as one")
        if size > MOST_BYTES:
            raise _malformed(f"it is {size} bytes long, more than {MOST_BYTES}")
        if len(descriptors) != _STREAMS:
            raise _malformed(f"it brings {len(descriptors)} descriptors instead of {_STREAMS}")
        request = decode(_receive_exactly(channel, size, until_s, descriptors))
        if len(descriptors) != _STREAMS:
            raise _malformed("it brings descriptors in its middle")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return request, (descriptors[0], descriptors[1], descriptors[2])


def _receive_exactly(channel: socket.socket, size: int, until_s: float, descriptors: list[int]) -> bytes:
    """Return the next `size` bytes; descriptors that come along are added to `descriptors`."""
    content = bytearray()
    room = socket.CMSG_SPACE(_STREAMS * array.array("i").itemsize)
    while len(content) < size:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise _malformed("it did not come in time")
        channel.settimeout(left_s)
        try:
            piece, ancillary, flags, _ = channel.recvmsg(min(size - len(content), _CHUNK_BYTES), room, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            continue
        except OSError as error:
            raise _malformed(f"its sender went away: {error.strerror}") from error
        descriptors += _descriptors(ancillary)
        if flags & socket.MSG_CTRUNC:
            raise _malformed("it brings too many descriptors")
        if not piece:
            raise _malformed("it ends too early")
        content += piece
    channel.settimeout(None)
    return bytes(content)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return list(found)
