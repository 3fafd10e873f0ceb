"""A supervisor's socket: who may ask, how much, and for how long. Called by `supervise` (serving) and the everyday commands (asking).

Only root and the supervisor's own user are listened to. Lines, clients and what waits for a slow one are bounded.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.supervisor import messages, wire
from perdure.supervisor.reactor import READ, WRITE, Reactor, Timer

_MOST_CLIENTS = 16
_MOST_WAITING_BYTES = 1 << 20
_ASK_S = 10.0
"""A client that connects has so long to say what it wants."""
_OVER_S = 10.0
"""A supervisor that has said its last word ends within this time, or hangs."""
_CREDENTIALS = struct.Struct("iII")


class Client:
    """Somebody who asked, on the supervisor's side."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        self.connection = connection
        self.got = bytearray()
        self._waiting = bytearray()
        self._last = False
        """Whether all was said, or waits to be sent."""
        self.timer: Timer | None = None

    def tell(self, message: messages.Reply) -> None:
        """Send `message`; anything but an event is the last one."""
        if self._last or self.connection.fileno() < 0:
            return
        self._waiting += messages.encode(message)
        self._last = not isinstance(message, messages.Event)
        if len(self._waiting) > _MOST_WAITING_BYTES:
            self._server.drop(self)
            return
        self.flush()

    def refuse(self, error: errors.PerdureError) -> None:
        """Send `error` as the answer."""
        self.tell(messages.Refusal(wire.document(error)))

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        try:
            while self._waiting:
                sent = self.connection.send(self._waiting)
                del self._waiting[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._server.drop(self)
            return
        if self._last and not self._waiting:
            self._server.drop(self)
        else:
            self._server.arm(self, bool(self._waiting))


class Server:
    """Listens at `path` and hands each request with its client to `handle`."""

    def __init__(self, reactor: Reactor, path: Path, handle: Callable[[messages.Request, Client], None]) -> None:
        self._reactor = reactor
        self._path = path
        self._handle = handle
        self._clients: set[Client] = set()
        self._is_holding = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        with _short(path) as short:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(short)  # left behind by one that died: the workload's lock says that no one listens
            self._socket.bind(short)
            os.chmod(short, stat.S_IRUSR | stat.S_IWUSR)
        self._socket.listen(_MOST_CLIENTS)
        reactor.watch(self._socket.fileno(), READ, self._accept)

    def hold(self) -> None:
        """Keep connections open from now on until the reactor is closed.

        That comes last: whoever reads to the end of what is said knows then that this life is over, and its lock free.
        """
        self._is_holding = True

    def close(self) -> None:
        """Stop listening; clients are left to their end."""
        for client in list(self._clients):
            client.connection.setblocking(True)
            client.connection.settimeout(1.0)
            client.flush()
            self.drop(client)
        self._reactor.forget(self._socket.fileno())
        self._socket.close()
        with contextlib.suppress(FileNotFoundError), _short(self._path) as short:
            os.unlink(short)

    def drop(self, client: Client) -> None:
        """Let go of `client`."""
        if client not in self._clients:
            return
        self._clients.discard(client)
        if client.timer is not None:
            client.timer.cancel()
        self._reactor.forget(client.connection.fileno())
        if self._is_holding:
            self._reactor.keep(client.connection)
        else:
            client.connection.close()

    def arm(self, client: Client, writing: bool) -> None:
        """Wait for `client`: for what it says, for its going away, and, when `writing`, for room."""
        if client in self._clients:
            self._reactor.watch(client.connection.fileno(), READ | (WRITE if writing else 0), lambda: self._serve(client))

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        uid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
        if uid not in (0, os.geteuid()) or len(self._clients) >= _MOST_CLIENTS:
            connection.close()
            return
        connection.setblocking(False)
        client = Client(self, connection)
        client.timer = self._reactor.after(_ASK_S, lambda: self.drop(client))
        self._clients.add(client)
        self.arm(client, False)

    def _serve(self, client: Client) -> None:
        try:
            content = client.connection.recv(messages.MAX_LINE_BYTES)
        except BlockingIOError:
            client.flush()
            return
        except OSError:
            content = b""
        if not content:
            self.drop(client)
            return
        if client.timer is None:
            return  # it has asked; what else it says is not listened to
        client.got += content
        line, end, _ = client.got.partition(b"\n")
        if not end:
            if len(client.got) > messages.MAX_LINE_BYTES:
                self.drop(client)
            return
        client.timer.cancel()
        client.timer = None
        try:
            request = messages.decode_request(bytes(line))
        except msgspec.DecodeError as error:
            client.refuse(errors.UsageError(f"this is no request: {error}", hint="use the same Perdure on both sides"))
            return
        try:
            self._handle(request, client)
        except errors.PerdureError as error:
            client.refuse(error)


def ask(path: Path, request: messages.Request, *, on_event: Callable[[messages.Event], None], patience_s: float | None) -> messages.Answer:
    """Ask the supervisor that listens at `path`, and wait for its answer.

    `patience_s` is the longest silence; None: for ever, as long as the supervisor lives. Raises `errors.WorkloadMissing` when nobody
    listens there, what the supervisor refuses with, and `errors.WorkloadMissing` when it ends in between.
    """
    gone = errors.WorkloadMissing("its supervisor is gone", hint="see perdure ps; the next perdure run goes on from the newest checkpoint")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(patience_s)
    with connection:
        try:
            with _short(path) as short:
                connection.connect(short)
            connection.sendall(messages.encode(request))
            with connection.makefile("rb") as lines:
                while line := lines.readline(messages.MAX_LINE_BYTES * 2):
                    reply = messages.decode_reply(line)
                    match reply:
                        case messages.Event():
                            on_event(reply)
                        case messages.Answer():
                            _await_end(connection)
                            return reply
                        case messages.Refusal():
                            _await_end(connection)
                            raise wire.error(reply.error)
        except TimeoutError as error:
            raise errors.WorkloadBusy(f"the supervisor did not answer within {patience_s:g} s", hint="try again later") from error
        except (OSError, msgspec.DecodeError) as error:
            raise gone from error
    raise gone


def _await_end(connection: socket.socket) -> None:
    """Wait until the supervisor closes `connection`: one whose workload has ended does so when others may have its lock."""
    connection.settimeout(_OVER_S)
    with contextlib.suppress(OSError):
        while connection.recv(messages.MAX_LINE_BYTES):
            pass


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name of `path` that fits into a socket's address (107 bytes)."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
