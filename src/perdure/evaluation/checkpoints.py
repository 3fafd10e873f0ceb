"""From what Perdure tells to the events of a run: checkpoints with what they hold and cost, and restores. Called by `conduct`.

Perdure tells by the clock of the day; the times are brought onto the evaluation's clock when they are read, and never lie after that.

A checkpoint may be durable although nobody could tell of it any more, because the workload or `perdure run` was killed in that moment. A
restore from it then tells, and it counts from when it was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perdure.evaluation.arms import Said, Size
from perdure.model.evaluation import Event, EventKind

Signals = Callable[[float, float], tuple[tuple[float, float], ...]]
"""Returns the signals of progress between two times, with the one before them: (time, counter) in order."""


class Checkpoints:
    """Turns the events of ``perdure run`` into ours."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._frozen_s: float | None = None
        self._thawed_s: float | None = None
        self._known: set[str] = set()

    @property
    def committed(self) -> int:
        """How many checkpoints are known to be durable."""
        return len(self._known)

    def hear(self, said: Said, at_s: float) -> Iterator[Event]:
        """Yield what `said`, at `at_s` by the evaluation's clock, means."""
        match said.phase:
            case "check":
                self._frozen_s = self._thawed_s = None
                yield Event(at_s, EventKind.CHECKPOINT_BEGUN)
            case "freeze":
                self._frozen_s = at_s
            case "committed" if said.checkpoint is not None:
                checkpoint = f"{said.checkpoint.id.get('epoch')}.{said.checkpoint.id.get('sequence')}"
                yield self._done(said, said.checkpoint, checkpoint, at_s)
                yield from self._recoverable(checkpoint, at_s, {})
                self._frozen_s = None
            case "failed":
                yield Event(at_s, EventKind.CHECKPOINT_DONE, data={"failed": said.text})
            case "fetch" | "restore" | "verify":
                if self._thawed_s is None:
                    self._frozen_s = None  # what a life was being frozen for when it ended was never saved
            case "running" if said.text:
                checkpoint = said.text.rpartition("@")[2]
                if checkpoint not in self._known and self._thawed_s is not None:
                    yield from self._recoverable(checkpoint, self._thawed_s, {"told": "by the restore"})
                yield Event(at_s, EventKind.RESTORED, data={"from": said.text})
            case _ if self._frozen_s is not None and self._thawed_s is None:
                self._thawed_s = at_s

    def _done(self, said: Said, size: Size, checkpoint: str, at_s: float) -> Event:
        data = {
            "id": checkpoint,
            "stopped_s": size.stopped_s,
            "logical_bytes": size.logical_bytes,
            "stored_bytes": size.stored_bytes,
            "new_bytes": size.new_bytes,
            "cost_s": size.cost_s,
            "durations_s": said.durations_s,
        }
        return Event(at_s, EventKind.CHECKPOINT_DONE, data=data)

    def _recoverable(self, checkpoint: str, at_s: float, more: dict[str, str]) -> Iterator[Event]:
        """Yield the counter that the checkpoint taken last holds, if the workload had counted at all."""
        self._known.add(checkpoint)
        if self._frozen_s is None:
            return
        thawed_s = at_s if self._thawed_s is None else self._thawed_s
        counter = held(self._signals(self._frozen_s, thawed_s), self._frozen_s, thawed_s)
        if counter is not None:
            yield Event(at_s, EventKind.RECOVERABLE, counter, {"source": "perdure", "id": checkpoint} | more)


def held(signals: tuple[tuple[float, float], ...], begin_s: float, end_s: float) -> float | None:
    """Return the counter that a workload had when it stood still somewhere between `begin_s` and `end_s`.

    `signals` are times and counters from the last one before `begin_s` on. A workload that stands still is silent: the counter is the one
    before the longest silence in that time, the earlier of two. None: it had not counted.
    """
    longest_s, counter = -1.0, None
    for index, (at_s, value) in enumerate(signals):
        next_s = signals[index + 1][0] if index + 1 < len(signals) else end_s
        silence_s = min(next_s, end_s) - max(at_s, begin_s)
        if at_s > end_s:
            break
        if silence_s > longest_s:
            longest_s, counter = silence_s, value
    if signals and signals[0][0] > begin_s and signals[0][0] - begin_s > longest_s:
        return None
    return counter
