"""What Perdure tells of its checkpoints in a job's output, parted from what the job wrote. Called by `slurm_run`.

The managed job's comment asks for it: each event is a line ``perdure: event {…}``, which may stand in the middle of one of the workload's.
It is timed as progress is, by when the harness reads it, so that one clock times all and none of a node's has to be trusted. Only how far
events that were read at once lie apart is taken from the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from perdure.evaluation.arms import Said

ASKED = ("events", "1")
"""The option of Perdure's that asks for it."""
_LINE = re.compile(rb"perdure: event (\{[^\n]*\})\n")
_BEGINNING = b"perdure: event {"
_LONGEST_BYTES = 1 << 16


class Parted(msgspec.Struct, frozen=True):
    """A piece of a job's output."""

    own: bytes
    """What the workload, Slurm and Perdure itself wrote otherwise."""
    said: tuple[Said, ...]


class Parting:
    """Takes Perdure's events out of a job's output as it is read."""

    def __init__(self) -> None:
        self._rest = b""
        self.lives = 0
        """How many lives told that they run."""

    def feed(self, content: bytes) -> Parted:
        """Return what was added; the beginning of a line that may become an event waits for its end."""
        content = self._rest + content
        said: list[Said] = []
        for found in _LINE.finditer(content):
            try:
                said.append(msgspec.json.decode(found[1], type=Said))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # torn where a node was lost
        self.lives += sum(one.phase == "running" for one in said)
        own = _LINE.sub(b"", content)
        whole = len(own) - _waits(own)
        self._rest = own[whole:]
        return Parted(own[:whole], tuple(said))


def times(said: Sequence[Said], *, since_s: float, now_s: float) -> Iterator[tuple[Said, float]]:
    """Yield each of `said` with its time: the newest is of `now_s`, when it was read, the others lie before it as the node says.

    None lies before `since_s`, when the output was read before.
    """
    newest_ns = max((one.at_ns for one in said), default=0)
    for one in said:
        yield one, max(min(since_s, now_s), now_s - (newest_ns - one.at_ns) / 1e9)


def _waits(own: bytes) -> int:
    """Return how many bytes at the end of `own` may be the beginning of an event."""
    last = own[own.rfind(b"\n") + 1 :]
    begun = last.find(_BEGINNING)
    if begun >= 0:
        return 0 if len(last) - begun > _LONGEST_BYTES else len(last) - begun
    return next((size for size in range(min(len(_BEGINNING) - 1, len(last)), 0, -1) if _BEGINNING.startswith(last[-size:])), 0)
