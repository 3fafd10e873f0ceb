"""A run on Slurm after its end: its times by the accounting, and what its restores tell of checkpoints. Called by `slurm_run`. Pure.

While a run goes on, the harness looks at the job now and then, and writes down what it sees when it sees it. What counts is when it was:
the begin and the end of each attempt by the accounting, in both arms alike, on the harness's clock and with the controller's offset taken
off. An attempt's end is when Slurm knew of it, which is the detection; the next one's begin is the end of the scheduling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.evaluation import accounting, proof
from perdure.evaluation.accounting import Attempt
from perdure.evaluation.stretches import NEW_LIFE, SIGNALS
from perdure.model.evaluation import Event, EventKind, Run

_APART_S = 1e-6
"""Events of one instant are kept in their order by this."""
_OF_A_LIFE = SIGNALS | NEW_LIFE | {EventKind.CHECKPOINT_BEGUN, EventKind.CHECKPOINT_DONE}
"""No life ends before them."""


def settle(run: Run, found: Sequence[Attempt], *, origin_unix_s: float, is_each_heard: bool) -> Run:
    """Return `run` with the times of its attempts, and with what its restores prove (`proof.prove`).

    `origin_unix_s` is when the evaluation's clock stood at 0, by the controller's clock. Without an attempt for each life of the run, the
    times stay as they were seen, and the run's end says so (``accounting`` is missing there).
    """
    ran = accounting.ran(tuple(found))
    lives = sum(event.kind in (EventKind.LAUNCHED, EventKind.RESTARTED) for event in run.events)
    told = proof.prove(_how(run.events), is_each_heard=is_each_heard)
    if not ran or len(ran) != lives:
        return msgspec.structs.replace(run, events=told)
    moved = _moved(told, ran, origin_unix_s)
    return msgspec.structs.replace(run, events=tuple(sorted(moved, key=lambda event: event.at_s)))


def _how(events: Sequence[Event]) -> list[Event]:
    """Return `events`, each restart with what it turned out to be: a start or a restore."""
    found: list[Event] = []
    restored = False
    for event in reversed(events):
        restored = restored or event.kind is EventKind.RESTORED
        if event.kind is EventKind.RESTARTED:
            found.append(msgspec.structs.replace(event, data=event.data | {"how": "restore" if restored else "start"}))
            restored = False
        else:
            found.append(event)
    return found[::-1]


def _moved(events: Sequence[Event], ran: Sequence[Attempt], origin_unix_s: float) -> list[Event]:
    """Put the milestones of each life where the accounting has them; never before what had to come first."""
    found: list[Event] = []
    life, newest_s, fault_s = 0, -float("inf"), -float("inf")
    for event in events:
        at_s, data = event.at_s, event.data
        if event.kind is EventKind.LAUNCHED:
            at_s = min(at_s, _on_clock(ran[0].start_s, origin_unix_s, at_s))
            newest_s = at_s
            life = 1
        elif event.kind is EventKind.DETECTED and life:
            at_s = min(at_s, max(fault_s, newest_s, _on_clock(ran[life - 1].end_s, origin_unix_s, at_s)))
        elif event.kind is EventKind.RESTARTED:
            at_s = min(at_s, max(newest_s + _APART_S, fault_s, _on_clock(ran[life].start_s, origin_unix_s, at_s)))
            data = data | {"queued_s": _queued_s(ran[life - 1], ran[life])}
            newest_s = at_s
            life += 1
        elif event.kind is EventKind.ENDED:
            at_s = max(newest_s, min(at_s, _on_clock(ran[-1].end_s, origin_unix_s, at_s)))
            data = data | _accounts(ran)
        elif event.kind is EventKind.FAULT_INJECTED:
            fault_s = at_s
        if event.kind in _OF_A_LIFE:
            newest_s = max(newest_s, at_s)
        found.append(msgspec.structs.replace(event, at_s=at_s, data=data))
    return found


def _on_clock(unix_s: float | None, origin_unix_s: float, otherwise_s: float) -> float:
    return otherwise_s if unix_s is None else unix_s - origin_unix_s


def _queued_s(before: Attempt, after: Attempt) -> float:
    if before.end_s is None or after.start_s is None:
        return 0.0
    return max(0.0, after.start_s - before.end_s)


def _accounts(ran: Sequence[Attempt]) -> dict[str, Any]:
    device = accounting.device(tuple(ran))
    told: dict[str, Any] = {
        "accounting": [msgspec.structs.asdict(one) for one in ran],
        "allocated_s": accounting.allocated_s(tuple(ran)),
    }
    if device is not None:
        told["device_utilisation"] = device
    elif any(one.gpus for one in ran):
        told["device_lack"] = "the site's accounting does not hold how busy GPUs are (gres/gpuutil)"
    return told
