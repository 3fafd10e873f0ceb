"""The user's side of the agent: ask it something. Called by the everyday commands of whoever is not root; `waiting` asks for a seat.

The other side has to be root: a socket that another user made would be told what is in this one's environment.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec

from perdure import errors
from perdure.agent import asked
from perdure.agent.asked import Asked, Reply
from perdure.supervisor import wire
from perdure.supervisor.messages import Event

SOCKET = "/run/perdure/agent.sock"
PATIENCE_S = 15.0
"""So long an agent that does not listen is waited for: one that is started anew, with a newer Perdure for example, takes a few seconds."""

_CREDENTIALS = struct.Struct("iII")
_CONNECT_S = 30
_AGAIN_S = 0.2
_HINT = "see whether perdure agent runs: systemctl status perdure-agent"
_CHUNK_BYTES = 1 << 16


def connect(path: str, *, patience_s: float = 0.0, on_wait: Callable[[], None] = lambda: None) -> socket.socket:
    """Connect to the agent that listens at `path`; where none does, as while it is started anew, wait for one for at most `patience_s`.

    `on_wait` is called once, before that. Raises `errors.AgentUnavailable`, and `errors.InputDenied` when it is not root's.
    """
    until_s = time.monotonic() + patience_s
    has_waited = False
    while True:
        try:
            return _connect(path)
        except errors.AgentUnavailable as error:
            if not isinstance(error.__cause__, (ConnectionRefusedError, FileNotFoundError)) or time.monotonic() >= until_s:
                raise
        if not has_waited:
            has_waited = True
            on_wait()
        time.sleep(_AGAIN_S)


def forget(path: str) -> None:
    """Remove the socket that an agent has left at `path`; one that an agent listens at stays."""
    try:
        connect(path).close()
    except errors.AgentUnavailable as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            with contextlib.suppress(OSError):
                os.unlink(path)
    except errors.InputDenied:
        pass  # nobody's but that other user's


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # A connection that waits for its turn is told by the socket's own limit: Python's would give up at once.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _CONNECT_S, 0))
        connection.connect(path)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))
        _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != 0:
            raise errors.InputDenied(f"at {path} listens user {uid}, and not root", hint="give the agent's socket: setting agent-socket")
    except OSError as error:
        connection.close()
        raise errors.AgentUnavailable(f"no agent answers at {path}: {error.strerror or error}", hint=_HINT) from error
    except errors.PerdureError:
        connection.close()
        raise
    return connection


class UnheardError(Exception):
    """The agent ended, or was ended, before it took the request: nothing was done."""


class Answering:
    """A request that was sent, until it is answered; use it in a ``with`` statement.

    An agent that ends before it has taken the request has done nothing: the next one is asked. That is known where the agent says so,
    and where the kernel tells that it never read all of it; a request that was read is not sent again.
    """

    def __init__(self, path: str, what: asked.What, *, user: int | None = None) -> None:
        self._path = path
        self._message = asked.encode(Asked(what=what, user=user))
        self._connection = connect(path)
        self._buffer = bytearray()
        self._descriptors: list[int] = []

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def answer(self, on_event: Callable[[Event], None] = lambda _event: None) -> dict[str, Any]:
        """Return the answer. Raises what the agent refuses with, and `errors.AgentUnavailable` when it goes away."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._answer(on_event)
            except UnheardError as unheard:
                if time.monotonic() >= until_s:
                    raise errors.AgentUnavailable(str(unheard), hint=_HINT) from unheard
            except (OSError, msgspec.DecodeError) as error:
                raise errors.AgentUnavailable(f"the agent does not answer: {error}", hint=_HINT) from error
            self._connection.close()
            self._buffer.clear()
            self._connection = connect(self._path, patience_s=until_s - time.monotonic())

    def _answer(self, on_event: Callable[[Event], None]) -> dict[str, Any]:
        is_sent = self._send()
        while True:
            reply = self._reply(is_sent=is_sent)
            if reply.event is not None:
                on_event(reply.event)
            if reply.refused is not None:
                if reply.is_ending:
                    raise UnheardError(reply.refused.message)
                raise wire.error(reply.refused)
            if reply.answer is not None:
                return reply.answer

    def descriptor(self) -> int:
        """Return the descriptor that came with the answer, the caller's to close. Raises `errors.AgentUnavailable` when there was none."""
        if not self._descriptors:
            raise errors.AgentUnavailable("the agent handed nothing over", hint="use the same Perdure on both sides")
        return self._descriptors.pop()

    def is_over(self, patience_s: float) -> bool:
        """Wait at most `patience_s` for the agent to hang up, and tell whether it has."""
        self._connection.settimeout(patience_s)
        try:
            while self._connection.recv(_CHUNK_BYTES):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def _send(self) -> bool:
        """Send the request; returns whether all of it is on its way."""
        try:
            self._connection.sendall(self._message, socket.MSG_NOSIGNAL)
        except OSError:
            return False  # it may have said why it does not listen
        return True

    def _reply(self, *, is_sent: bool) -> Reply:
        while b"\n" not in self._buffer:
            if len(self._buffer) > asked.MOST_LINE_BYTES:
                raise errors.AgentUnavailable("the agent says too much at once", hint="use the same Perdure on both sides")
            try:
                piece, found, _, _ = socket.recv_fds(self._connection, _CHUNK_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except ConnectionResetError as error:
                # Closed with something unread in it, which can only be the request.
                raise UnheardError("the agent ended before it took the request: nothing was done") from error
            self._descriptors += found
            if not piece and not is_sent:
                raise UnheardError("the agent ended before it took the request: nothing was done")
            if not piece:
                raise errors.AgentUnavailable("the agent hung up without an answer", hint="its log says why")
            self._buffer += piece
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return asked.decode_reply(line)


def ask(path: str, what: asked.What, *, user: int | None = None, on_event: Callable[[Event], None] = lambda _event: None) -> dict[str, Any]:
    """Ask the agent at `path` for `what`, about the workloads of `user` (None: one's own), and return its answer.

    Raises what it refuses with, and `errors.AgentUnavailable`.
    """
    with Answering(path, what, user=user) as answering:
        return answering.answer(on_event)


def listens(path: str) -> bool:
    """Tell whether there is an agent's socket at `path`."""
    return os.path.exists(path)
