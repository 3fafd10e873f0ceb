"""What a restore proves of the checkpoint that it went on from: the counter that it held. Called by `harness` and `slurm_course`. Pure.

While a run goes on, the counter of a checkpoint is the one before the workload stood still, as the harness heard it: on a busy machine, or
where output is read now and then, that is a few signals off. The counter from which the restored life goes on leaves no doubt.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.evaluation.stretches import SIGNALS
from perdure.model.evaluation import Event, EventKind

_PROVED = {"told": "by the restore"}


def prove(events: Sequence[Event], *, is_each_heard: bool) -> tuple[Event, ...]:
    """Return `events` by time, with the recoverable point of each restore as that proves it.

    Where Perdure told of the checkpoint, it counts from then, and what was thought before stands beside it as ``thought``. Else it counts
    from when its counter was first seen. With `is_each_heard` every signal of the workload is; without, as over HTTP, the first one after
    a restore may come from later on, and a counter is only ever made lower by it.
    """
    kept = list(events)
    proved: list[Event] = []
    for place, event in enumerate(events):
        if event.kind is not EventKind.RESTORED:
            continue
        held = _held(events, place)
        if held is None:
            continue
        checkpoint = str(event.data.get("from", "")).rpartition("@")[2]
        told = [at for at, one in enumerate(kept) if _is_of(one, checkpoint)]
        for at in told:
            kept[at] = _corrected(kept[at], held, is_each_heard=is_each_heard)
        if not told:
            data = {"source": "perdure", "id": checkpoint} | _PROVED
            proved.append(Event(held.at_s, EventKind.RECOVERABLE, held.value, data))
    return tuple(sorted((*kept, *proved), key=lambda event: event.at_s))


def _corrected(told: Event, held: Event, *, is_each_heard: bool) -> Event:
    thought, value = told.value or 0.0, held.value or 0.0
    if value == thought or (value > thought and not is_each_heard):
        return told
    return msgspec.structs.replace(told, value=value, data=told.data | _PROVED | {"thought": thought})


def _held(events: Sequence[Event], place: int) -> Event | None:
    """Return the signal of the counter that the restore at `place` went on from, None where the counters do not tell."""
    first = next((later for later in events[place + 1 :] if later.kind in SIGNALS and later.value is not None), None)
    if first is None or first.value is None:
        return None
    before = [one for one in events[:place] if one.kind in SIGNALS and one.value is not None and one.value < first.value]
    return max(before, key=lambda one: (one.value or 0.0, -one.at_s), default=None)


def _is_of(event: Event, checkpoint: str) -> bool:
    return event.kind is EventKind.RECOVERABLE and event.data.get("source") == "perdure" and event.data.get("id") == checkpoint
