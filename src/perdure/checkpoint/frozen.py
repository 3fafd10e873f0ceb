"""The moment while the tasks of a dump or restore stand still: CRIU runs a few lines of shell then, which wake us and wait. Called by
`dump` and `restore`.

Nothing else is started in that moment, and what is to be done in it is done in this process. The lines open two pipes of ours through
/proc, so that they end at once, and CRIU with them, when this process does.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).with_name("frozen.sh")
MEETING = "PERDURE_MEETING"
"""Variable that tells the script the folder where to look for us, with the machine's /proc in it; else it is beside the images."""

_ADDRESS = "frozen"
_MOST_SAID_BYTES = 64


def write_address(path: Path, go: int, say: int, *, is_inside: bool = False) -> None:
    """Write where the script finds the pipes `go`, which it reads, and `say`: ours by PID, or CRIU's own."""
    path.write_text(f"{'-' if is_inside else os.getpid()} {go} {say}\n", "ascii")


AtFreeze = Callable[[], None]
"""What is done while the tasks stand still. What it raises ends the dump."""


class Frozen:
    """Two pipes: one that says that the tasks stand still, one that lets CRIU go on. A context manager; use one for one dump or restore.

    `work` is where the script looks for the pipes: the folder ``criu`` beside the one of the images, or what `MEETING` says. `is_inside`:
    CRIU works in the tree's PID namespace, and gets `pass_fds`.
    """

    root: int = 0
    """PID of the first task by the host, when they stand still."""

    def __init__(self, work: Path, *, is_inside: bool = False) -> None:
        self._said, self._say = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._go, self._let_go = os.pipe2(os.O_CLOEXEC)
        write_address(work / _ADDRESS, self._go, self._say, is_inside=is_inside)

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """Descriptors that a CRIU needs which works in the tree's PID namespace, in which we are not."""
        return self._go, self._say

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
        said = os.read(self._said, _MOST_SAID_BYTES) if self._said in found else b""
        _, _, root = said.decode("ascii", "replace").strip().partition(" ")
        self.root = int(root) if root.isdecimal() else 0
        return bool(said)

    def release(self) -> None:
        """Let CRIU go on: the dump or restore succeeds."""
        os.write(self._let_go, b"go\n")

    def refuse(self) -> None:
        """Let CRIU go on and fail: what was to be dumped runs again, what was restored is ended. Harmless after `release`, and twice."""
        if self._let_go >= 0:
            os.close(self._let_go)
            self._let_go = -1
