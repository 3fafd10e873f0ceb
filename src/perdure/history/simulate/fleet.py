"""A simulated fleet as callers see it: make one, read its rows and its truth, write both. The door to this package."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure.base import files
from perdure.history.simulate import ledger, render, spec, truth, workloads
from perdure.history.simulate.draws import Stream
from perdure.history.simulate.engine import Engine
from perdure.history.simulate.happened import Happened

SACCT_NAME = "sacct.txt"
TRUTH_NAME = "truth.json"


def simulate(fleet_spec: spec.FleetSpec, seed: int) -> Fleet:
    """Simulate a fleet. The same `fleet_spec` and `seed` give the same fleet, on every Python from 3.11.

    Raises `errors.QuantityError` for a fleet that cannot be.
    """
    spec.check(fleet_spec)
    families = workloads.make_workloads(fleet_spec, Stream(seed, "workloads"))
    engine = Engine(fleet_spec, seed, families)
    engine.run()
    # As sacct prints them: in the order in which the records were made.
    rows = sorted(engine.recorder.rows, key=lambda row: row.db_index)
    return Fleet(fleet_spec, seed, families, rows, engine.recorder.attempts, engine.hazards)


@dataclasses.dataclass(frozen=True)
class Fleet(Happened):
    """A simulated history that can be written, filled into a table, and held against its truth."""

    @functools.cached_property
    def truth(self) -> truth.Truth:
        """What an estimator should find. Worked out when it is first asked for."""
        return ledger.work_out(self)

    def lines(self, *, delimiter: str = "|") -> Iterator[str]:
        """Yield the accounting text line by line, newlines included; bytes that are not UTF-8 are surrogates."""
        return render.Renderer(self.spec).lines(self.rows, delimiter)

    def write(self, directory: str | os.PathLike[str], *, delimiter: str = "|") -> tuple[Path, Path]:
        """Write ``sacct.txt`` and ``truth.json`` into `directory`, which exists, each atomically and readable by its owner alone.

        Returns the two paths. Raises `errors.OutputError`.
        """
        sacct, truth_path = Path(directory) / SACCT_NAME, Path(directory) / TRUTH_NAME
        with files.replacing(sacct) as temporary, open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as handle:
            handle.writelines(self.lines(delimiter=delimiter))
        files.write_bytes(truth_path, msgspec.json.format(msgspec.json.encode(self.truth), indent=1) + b"\n")
        return sacct, truth_path
