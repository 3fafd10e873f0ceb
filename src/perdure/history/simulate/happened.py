"""All that happened in one simulation, handed to those who judge it afterwards (`ledger`, `policies`)."""

from __future__ import annotations

import dataclasses

from perdure.history.simulate.endings import Ending
from perdure.history.simulate.hazards import Hazards
from perdure.history.simulate.jobs import Row, Workload
from perdure.history.simulate.spec import FleetSpec


@dataclasses.dataclass(frozen=True)
class Happened:
    """One simulated history, complete."""

    spec: FleetSpec
    seed: int
    workloads: list[Workload]
    rows: list[Row]
    """Accounting records, by DBIndex."""
    attempts: list[tuple[Row, Ending]]
    """Each attempt that started, once, with what was decided about it; heterogeneous jobs as a whole."""
    hazards: Hazards
