"""The moment while a dump's tasks stand still: CRIU runs a few lines of shell then, which wake us and wait. Called by `dump`.

Nothing else is started in that moment, and what is to be done in it is done in this process. The lines open two pipes of ours through
/proc, so that they end at once, and CRIU with them, when this process does.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).with_name("frozen.sh")

_ADDRESS = "frozen"
_MOST_SAID_BYTES = 64

AtFreeze = Callable[[], None]
"""What is done while the tasks stand still. What it raises ends the dump."""


class Frozen:
    """Two pipes: one that says that the tasks stand still, one that lets CRIU go on. A context manager; use one for one dump.

    `work` is the folder ``criu`` beside the one of the images, where the script looks for the pipes.
    """

    def __init__(self, work: Path) -> None:
        self._said, self._say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._go, self._let_go = os.pipe2(os.O_CLOEXEC)
        own = f"/proc/{os.getpid()}/fd"
        (work / _ADDRESS).write_text(f"{own}/{self._go} {own}/{self._say}\n", "ascii")

    def __enter__(self) -> Frozen:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        for descriptor in (self._said, self._say, self._go):
            os.close(descriptor)

    def wait(self, criu: int, limit_s: float) -> bool:
        """Wait until the tasks stand still, or CRIU (the pidfd `criu`) ends. Returns whether they do."""
        ready = select.poll()  # not select(): descriptors may have numbers above 1023
        for descriptor in (self._said, criu):
            ready.register(descriptor, select.POLLIN)
        found = {descriptor for descriptor, _ in ready.poll(limit_s * 1000.0)}
        return self._said in found and bool(os.read(self._said, _MOST_SAID_BYTES))

    def release(self) -> None:
        """Let CRIU go on: the dump succeeds."""
        os.write(self._let_go, b"go\n")

    def refuse(self) -> None:
        """Let CRIU go on, and the dump fail: the tasks run again. Harmless after `release`, and when called twice."""
        if self._let_go >= 0:
            os.close(self._let_go)
            self._let_go = -1
