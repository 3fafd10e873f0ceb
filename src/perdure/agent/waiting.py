"""The user's process while a seat keeps its workload: its streams, its signals and its exit status are the workload's. Called by `run`.

It hands its standard streams over, passes signals on, shows what is said, stops and goes on with its shell's job control, and ends as
the workload ends. When it dies, the seat ends the workload.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from perdure import errors
from perdure.agent import client, replies
from perdure.agent import request as requests
from perdure.agent.relay import Relay
from perdure.agent.replies import Ended, Reply
from perdure.agent.request import Request
from perdure.base import text
from perdure.supervisor import signals, terminal, wire
from perdure.supervisor.messages import Event
from perdure.supervisor.reactor import READ, Reactor

PATIENCE_S = client.PATIENCE_S

_CHUNK_BYTES = 1 << 16


def run(
    path: str,
    request: Request,
    *,
    say: Callable[[str], None],
    on_event: Callable[[Event], None],
    on_wait: Callable[[], None],
    detach: bool = False,
) -> int:
    """Ask the agent at `path` for a seat, wait for the workload, and return what it ends with.

    `say` is told what a person should know, `on_event` of events where `request` asks for them; `on_wait` is called once where no agent
    listens, which is then waited for. With `detach` it returns 0 once the workload runs.

    An agent that ends before it has taken the request has started nothing: the next one is asked, for as long, unless a signal came.

    Raises what the agent refuses with, and `errors.AgentUnavailable` when the seat goes away.
    """
    until_s = time.monotonic() + PATIENCE_S
    patience_s = PATIENCE_S
    with contextlib.closing(Reactor()) as reactor, contextlib.ExitStack() as stack:
        while True:
            channel = client.connect(path, patience_s=patience_s, on_wait=on_wait)
            with channel:
                # Not before: while an agent is waited for there is nobody to pass signals on to.
                inbox = stack.enter_context(signals.delivered(reactor))
                waiting = _Waiting(channel, reactor, say, on_event)
                relay = Relay(reactor) if not detach and os.isatty(0) and os.isatty(1) else None
                try:
                    is_sent = _send(channel, request, (relay.theirs,) * 3 if relay is not None else _streams(detach=detach))
                    inbox.hand_to(waiting.pass_on)
                    waiting.wait(relay, is_sent=is_sent)
                finally:
                    if relay is not None:
                        try:
                            relay.finish()
                        finally:
                            relay.leave()
            patience_s = until_s - time.monotonic()
            if not waiting.is_unheard or waiting.has_passed_on or patience_s <= 0:
                break
            stack.close()
    if waiting.is_unheard and waiting.ended is None:
        raise errors.AgentUnavailable("the agent ended before it took the request: nothing was started", hint="try again in a moment")
    ended = waiting.ended
    if ended is None:
        raise errors.AgentUnavailable(
            "the workload's supervisor ended without a word, and the workload with it",
            hint="the next perdure run goes on from its checkpoint",
        )
    if ended.error is not None:
        raise wire.error(ended.error)
    return ended.status


def _streams(*, detach: bool) -> tuple[int, int, int]:
    """Return our standard streams; closed ones, and all of a workload in the background, lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)

    def stream(number: int) -> int:
        try:
            os.fstat(number)
        except OSError:
            return null
        return null if detach else number

    return stream(0), stream(1), stream(2)


def _send(channel: socket.socket, request: Request, streams: tuple[int, int, int]) -> bool:
    """Send the request; returns whether all of it is on its way. An agent that refuses may have hung up by now, and has said why."""
    try:
        requests.send(channel, request, streams)
    except (BrokenPipeError, ConnectionResetError):
        return False
    finally:
        sys.stdout.flush()
    return True


class _Waiting:
    """One workload that is waited for."""

    def __init__(self, channel: socket.socket, reactor: Reactor, say: Callable[[str], None], on_event: Callable[[Event], None]) -> None:
        self._channel = channel
        self._reactor = reactor
        self._say = say
        self._on_event = on_event
        self._relay: Relay | None = None
        self._buffer = bytearray()
        self._is_over = False
        self._has_heard = False
        self._is_sent = False
        self.ended: Ended | None = None
        self.is_unheard = False
        """The agent ended before it took the request: nothing was started."""
        self.has_passed_on = False
        """A signal came for the workload."""

    def wait(self, relay: Relay | None, *, is_sent: bool) -> None:
        """Wait until the workload has ended, or the seat is gone."""
        self._relay = relay
        self._is_sent = is_sent
        self._reactor.watch(self._channel.fileno(), READ, self._read)
        while self.ended is None and not self._is_over:
            self._reactor.turn()
        self._reactor.forget(self._channel.fileno())

    def pass_on(self, number: int) -> None:
        """A signal came: it is the workload's."""
        if number == signal.SIGWINCH and self._relay is not None:
            self._relay.fit()
        self.has_passed_on = True
        with contextlib.suppress(OSError):
            self._channel.send(bytes([number]), socket.MSG_NOSIGNAL)

    def _read(self) -> None:
        try:
            content = self._channel.recv(_CHUNK_BYTES)
        except OSError as error:
            content = b""
            # Closed with something unread in it: the request, where nothing else was sent.
            self.is_unheard = isinstance(error, ConnectionResetError) and not self._has_heard and not self.has_passed_on
        if not content:
            self.is_unheard = self.is_unheard or (not self._is_sent and not self._has_heard)
            self._is_over = True
            return
        self._has_heard = True
        self._buffer += content
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        if len(rest) > replies.MOST_LINE_BYTES:
            raise errors.AgentUnavailable("the seat says too much at once", hint="use the same Perdure on both sides")
        for line in lines:
            try:
                self._take(replies.decode(bytes(line)))
            except msgspec.DecodeError as error:
                raise errors.AgentUnavailable(
                    f"the seat says something unknown: {error}", hint="use the same Perdure on both sides"
                ) from error

    def _take(self, reply: Reply) -> None:
        if reply.said is not None:
            self._say_it(reply.said)
        if reply.event is not None:
            self._on_event(reply.event)
        if reply.started is not None and self._relay is not None:
            self._relay.enter()
        if reply.suspended:
            self._suspend()
        if reply.ended is not None:
            self.ended = reply.ended
        if reply.refused is not None:
            self.is_unheard = reply.is_ending
            self.ended = Ended(wire.error(reply.refused).exit_status, reply.refused)

    def _say_it(self, words: str) -> None:
        is_raw = self._relay is not None and self._relay.is_raw
        self._say(f"perdure: {text.printable(words)}" + ("\r\n" if is_raw else "\n"))

    def _suspend(self) -> None:
        """The workload has stopped for its user: stop with it, and go on with it."""
        if self._relay is not None:
            self._relay.leave()
        terminal.stop_ourselves()
        if self._relay is not None:
            self._relay.enter()
        self.pass_on(signal.SIGCONT)
        self.pass_on(signal.SIGWINCH)
