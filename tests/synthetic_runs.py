"""Runs of an evaluation that never took place: a workload whose every second is known, so that its measures are known exactly.

A life signals its counter once every `step_s`; faults strike at counters; what survives, how long each part of a recovery takes and how
long a checkpoint stops the workload are given. The events are those that the harness writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from perdure.model.evaluation import Arm, Environment, Event, EventKind, FaultKind, Run

ENVIRONMENT = Environment(
    host="node1",
    boot_id="b" * 32,
    kernel="6.18.0",
    cpu_model="a processor",
    cores=64,
    memory_bytes=1 << 38,
    perdure_version="0.1.0",
    gpus=("GPU A",) * 4,
    driver_version="570.1",
    cuda_version="12.8",
    versions={"python": "Python 3.11.2"},
)
PLAN_HASH = "a" * 64


@dataclasses.dataclass(frozen=True)
class Script:
    """How a run goes. Durations in seconds; counters in steps."""

    steps: int = 100
    step_s: float = 2.0
    start_s: float = 5.0
    """From a command until the first life's first step begins."""
    faults: tuple[tuple[int, FaultKind], ...] = ()
    """After which step, counted in the run and not in the life, and what."""
    every: int | None = None
    """Steps between checkpoints, Perdure's own in the managed arm, the application's in the other."""
    stopped_s: float = 0.0
    detection_s: float = 3.0
    scheduling_s: float = 4.0
    restart_s: float = 6.0
    warm_up_s: float = 1.0
    """From restored to the first step's begin."""
    end_s: float = 2.0
    """From the last step to the end."""
    completes: bool = True
    noise: Callable[[], float] = lambda: 0.0
    """Share by which each duration of a recovery is longer, and for the run as a whole each step."""


def play(script: Script, arm: Arm = Arm.UNMANAGED, *, pair: int = 0, gpus: int = 4, nodes: int = 2, **changes: object) -> Run:
    """Return the run that follows a script."""
    story = _Story(script, arm)
    story.tell()
    fields: dict[str, object] = {
        "id": f"{arm.value}-{pair}",
        "arm": arm,
        "pair": pair,
        "repetition": pair,
        "node": "node1",
        "nodes": nodes,
        "gpus": gpus,
        "begun_unix_s": 1_800_000_000.0 + 1000 * pair,
        "environment": ENVIRONMENT,
        "command": ("python3", "train.py"),
        "events": tuple(story.events),
        "plan_hash": PLAN_HASH,
    }
    return Run(**(fields | changes))  # type: ignore[arg-type]


def pairs(
    count: int,
    unmanaged: Callable[[int], Script],
    managed: Callable[[int], Script],
    *,
    arms: tuple[Arm, Arm] = (Arm.UNMANAGED, Arm.MANAGED),
) -> tuple[Run, ...]:
    """Return `count` pairs; `arms` says as what each script is played, and the second is always recorded as managed."""
    runs = []
    for pair in range(count):
        runs.append(play(unmanaged(pair), arms[0], pair=pair))
        second = play(managed(pair), arms[1], pair=pair)
        runs.append(
            Run(**({name: getattr(second, name) for name in second.__struct_fields__} | {"arm": Arm.MANAGED, "id": f"managed-{pair}"}))
        )
    return tuple(runs)


class _Story:
    def __init__(self, script: Script, arm: Arm) -> None:
        self.script, self.arm = script, arm
        self.events: list[Event] = []
        self.now_s = 0.0
        self.step_s = script.step_s * (1 + script.noise())
        self.saved = 0

    def say(self, event: EventKind, value: float | None = None, /, **data: object) -> None:
        self.events.append(Event(self.now_s, event, value, data))

    def wait(self, duration_s: float) -> None:
        self.now_s += max(0.0, duration_s)

    def tell(self) -> None:
        script = self.script
        self.say(EventKind.LAUNCHED)
        self.wait(script.start_s)
        counter, faults = 0, list(script.faults)
        useful = False
        while counter < script.steps:
            self.wait(self.step_s)
            counter += 1
            if not useful and counter > 0 and any(event.kind is EventKind.RESTARTED for event in self.events):
                self.say(EventKind.USEFUL, counter)
            if not useful:
                self.say(EventKind.READY)
            useful = True
            self.say(EventKind.PROGRESS, counter)
            if faults and counter == faults[0][0]:
                counter, useful = self.strike(counter, faults.pop(0)[1]), False
                continue
            if script.every and counter % script.every == 0 and counter > self.saved:
                self.save(counter)
        self.wait(script.end_s)
        self.say(EventKind.ENDED, exit_status=0 if script.completes else 1, completed=script.completes)

    def save(self, counter: int) -> None:
        managed = self.arm is Arm.MANAGED
        if managed:
            self.say(EventKind.CHECKPOINT_BEGUN)
        self.wait(self.script.stopped_s)
        self.saved = counter
        if managed:
            self.say(EventKind.CHECKPOINT_DONE, id=f"c{counter}", stopped_s=self.script.stopped_s, stored_bytes=1000 * counter)
        self.say(EventKind.RECOVERABLE, counter, source="perdure" if managed else "own")

    def strike(self, counter: int, kind: FaultKind) -> int:
        script = self.script
        self.say(EventKind.FAULT_PLANNED, counter, kind=kind.value)
        self.say(EventKind.FAULT_INJECTED, counter, kind=kind.value)
        self.wait(script.detection_s * (1 + script.noise()))
        self.say(EventKind.DETECTED)
        self.wait(script.scheduling_s * (1 + script.noise()))
        self.say(EventKind.RESTARTED, how="restore" if self.saved and self.arm is Arm.MANAGED else "start")
        self.wait(script.restart_s * (1 + script.noise()))
        if self.arm is Arm.MANAGED:
            self.say(EventKind.RESTORED)
        self.wait(script.warm_up_s)
        return self.saved


def noise(seed: int, scale: float) -> Callable[[], float]:
    """Return a source of normal noise."""
    generator = np.random.default_rng(seed)
    return lambda: float(generator.normal(0, scale))
