"""The outside world of the effects' tests: a server in a process of its own that counts what it is asked to do."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time

from children import exit_status, in_child

LIMIT_S = 120.0
"""For what takes moments, on a machine that is busy with something else."""


class Recorder:
    """A server on loopback. With `dedupes`, it does what it is asked once a key, as a provider with idempotency keys does."""

    def __init__(self, *, dedupes: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._child = in_child(lambda: _serve(self._listener, dedupes=dedupes))
        self._listener.close()

    def send(self, key: str) -> int:
        """Do the effect of `key`. Returns the number of effects that the server had done."""
        return self._ask({"do": key})["number"]

    def find(self, key: str) -> int | None:
        """Return what `send` returned for `key`; None when it never happened."""
        return self._ask({"find": key})["number"]

    def counts(self) -> dict[str, int]:
        """Return how often each effect happened."""
        return self._ask({"counts": True})

    def close(self) -> None:
        """End the server."""
        os.kill(self._child, signal.SIGTERM)
        exit_status(self._child)

    def _ask(self, request: dict) -> dict:
        with socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S) as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            return json.loads(stream.readline())


def _serve(listener: socket.socket, *, dedupes: bool) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    counts: dict[str, int] = {}
    numbers: dict[str, int] = {}
    lock = threading.Lock()
    unanswered: list[threading.Event] = []

    def do(key: str) -> int:
        time.sleep(random.uniform(0, 0.002))  # a sender may die while its request is on its way
        with lock:
            if not (dedupes and key in counts):
                counts[key] = counts.get(key, 0) + 1
                numbers[key] = sum(counts.values())
        time.sleep(random.uniform(0, 0.002))  # or before it hears of it
        return numbers[key]

    def answer(connection: socket.socket, earlier: tuple[threading.Event, ...], answered: threading.Event) -> None:
        try:
            with connection:
                reply(connection, earlier)
        finally:
            answered.set()
            unanswered.remove(answered)

    def reply(connection: socket.socket, earlier: tuple[threading.Event, ...]) -> None:
        with connection.makefile("rwb") as stream:
            try:
                request = json.loads(stream.readline() or b"{}")
                if "do" not in request:
                    # What a sender that is gone has asked for is done or will not be: not a moment later, however busy the machine is.
                    for each in earlier:
                        each.wait(LIMIT_S)
                match request:
                    case {"do": key}:
                        told = {"number": do(key)}
                    case {"find": key}:
                        told = {"number": numbers.get(key)}
                    case _:
                        told = counts
                stream.write(json.dumps(told).encode() + b"\n")
                stream.flush()
            except (OSError, ValueError):
                return  # the sender is gone

    while True:
        connection, _ = listener.accept()
        earlier, answered = tuple(unanswered), threading.Event()
        unanswered.append(answered)
        threading.Thread(target=answer, args=(connection, earlier, answered), daemon=True).start()
