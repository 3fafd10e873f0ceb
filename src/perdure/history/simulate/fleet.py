"""A simulated fleet as callers see it: make one, read its rows and its truth, write both. The door to this package."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.base import files
from perdure.history.simulate import ledger, render, spec, truth, workloads
from perdure.history.simulate.draws import Stream
from perdure.history.simulate.engine import Engine
from perdure.history.simulate.happened import Happened

if TYPE_CHECKING:
    import duckdb

SACCT_NAME = "sacct.txt"
TRUTH_NAME = "truth.json"


def simulate(fleet_spec: spec.FleetSpec, seed: int, *, report_day: Callable[[int], None] = lambda _day: None) -> Fleet:
    """Simulate a fleet. The same `fleet_spec` and `seed` give the same fleet, on every Python from 3.11.

    `report_day` is called with the number of each simulated day that is done. Raises `errors.UsageError` for a fleet that cannot be.
    """
    spec.check(fleet_spec)
    families = workloads.make_workloads(fleet_spec, Stream(seed, "workloads"))
    engine = Engine(fleet_spec, seed, families)
    engine.run(report_day)
    # As sacct prints them: in the order in which the records were made.
    rows = sorted(engine.recorder.rows, key=lambda row: row.db_index)
    return Fleet(fleet_spec, seed, families, rows, engine.recorder.attempts, engine.hazards)


def prepare_folder(directory: str | os.PathLike[str], *, force: bool = False) -> None:
    """Make `directory` ready for `Fleet.write`: absent, it is made for its owner alone; with something in it, it needs `force`.

    Raises `errors.UsageError` for a folder that is not empty and `errors.OutputError` for one that cannot be made or read.
    """
    folder = Path(directory)
    try:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise errors.OutputError(f"cannot use {folder}: {error.strerror}", hint="name a folder that you may write to") from error
    if occupied and not force:
        raise errors.UsageError(
            f"{folder} is not empty", hint=f"choose another folder, or add --force to replace {SACCT_NAME} and {TRUTH_NAME}"
        )


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

    def fill(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make a new table ``attempts`` with this fleet's rows, the same as importing the text gives, but for source and line."""
        from perdure.history.simulate import filling

        filling.fill(connection, self)

    def write(self, directory: str | os.PathLike[str], *, delimiter: str = "|") -> tuple[Path, Path]:
        """Write ``sacct.txt`` and ``truth.json`` into `directory`, which exists, each atomically and readable by its owner alone.

        Returns the two paths. Raises `errors.OutputError`.
        """
        sacct, truth_path = Path(directory) / SACCT_NAME, Path(directory) / TRUTH_NAME
        with files.replacing(sacct) as temporary, open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as handle:
            handle.writelines(self.lines(delimiter=delimiter))
        files.write_bytes(truth_path, msgspec.json.format(msgspec.json.encode(self.truth), indent=1) + b"\n")
        return sacct, truth_path
