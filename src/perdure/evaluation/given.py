"""What a run is given, wherever it is made. Called by `harness`, `conduct` and `slurm_run`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from perdure.evaluation.places import Places
from perdure.evaluation.plan import Plan
from perdure.evaluation.schedule import Planned
from perdure.model.evaluation import Arm


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is given."""

    plan: Plan
    arm: Arm
    places: Places
    planned: tuple[Planned, ...]
    """Faults to come, in order."""
    clock: Callable[[], float]
    """Seconds of the evaluation's clock, which is CLOCK_MONOTONIC."""
    end_unix_s: float | None
    """When the window closes."""
    stop: threading.Event
    """Set to break the run off."""
