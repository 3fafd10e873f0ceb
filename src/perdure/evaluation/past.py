"""What the accounting history says of the nodes of an evaluation: attempts, hours, and what interrupted them. Called by `report`.

It stands beside the baseline that was measured: what is broken in an evaluation on purpose happens there by itself, this often. DuckDB,
which reads it, belongs to `perdure.history`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.evaluation import evidence
from perdure.evaluation.standing import Standing
from perdure.history import table
from perdure.model.attempt import STRICT, Cause

_HOURS = "coalesce(elapsed_s, 0) / 3600.0 * {size}"
_ENDED = ", ".join(f"'{outcome.value}'" for outcome in STRICT)


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """A history, summed. Hours are of `unit`."""

    name: str
    lack: str = ""
    """Why nothing can be said of it, else empty."""
    is_as_locked: bool | None = None
    """Whether the file is the one that was there at the lock; None: nothing was locked."""
    nodes: tuple[str, ...] = ()
    """The evaluation's nodes that the figures are of; empty: none of them is named there, and the figures are of all nodes."""
    unit: Literal["GPU-hours", "node-hours"] = "node-hours"
    attempts: int = 0
    hours: float = 0.0
    begun_unix_s: float | None = None
    ended_unix_s: float | None = None
    interruptions: dict[str, int] = {}
    """By cause; only what is unmistakable counts."""
    destroyed_at_most: float = 0.0
    """Hours of the interrupted attempts: no record says how much of them a checkpoint of their own kept."""

    def describe(self) -> str:
        """Say it in a sentence."""
        if self.lack:
            return f"{self.name}: {self.lack}"
        where = f"on {', '.join(self.nodes)}" if self.nodes else "on all nodes (it names none of the evaluation's)"
        counted = ", ".join(f"{number} × {cause}" for cause, number in sorted(self.interruptions.items())) or "none"
        total = sum(self.interruptions.values())
        often = f", one in {self.hours / total:.4g} {self.unit}" if total and self.hours else ""
        changed = "; the file is not the one that was locked" if self.is_as_locked is False else ""
        return (
            f"{self.name}: {self.attempts:,} attempts {where}, {self.hours:.4g} {self.unit}; interruptions: {counted}{often}; "
            f"at most {self.destroyed_at_most:.4g} {self.unit} destroyed{changed}"
        )


def read(found: Standing) -> Past | None:
    """Return what the plan's history says, None for a plan without one. What cannot be read gives its reason in place of figures."""
    name = found.plan.baseline.history
    if name is None:
        return None
    try:
        digest = evidence.hash_file(found.folder, name)
        past = summarise(found.folder.path / name, found.plan.site.nodes, is_of_gpus=found.plan.workload.gpus > 0)
    except errors.PerdureError as error:
        return Past(name=name, lack=str(error))
    locked = None if found.lock is None else found.lock.baseline.history_sha256
    return msgspec.structs.replace(past, name=name, is_as_locked=None if locked is None else locked == digest)


def summarise(path: Path, nodes: Sequence[str], *, is_of_gpus: bool) -> Past:
    """Sum up the attempts table at `path`, over attempts that ran on one of `nodes` alone where it names any of them.

    Raises `errors.InputFormat` for another file, `errors.MissingExtra` without DuckDB.
    """
    with table.connect() as connection:
        table.open_attempts(connection, path)
        (known,) = connection.execute("SELECT count(*) FROM attempts WHERE list_contains($1, node_list)", [list(nodes)]).fetchone() or (0,)
        here = list(nodes) if known else []
        size = "coalesce(gpus, 0)" if is_of_gpus else "coalesce(nodes, 0)"
        hours = _HOURS.format(size=size)
        where = '"start" IS NOT NULL AND (len($1) = 0 OR list_contains($1, node_list))'
        sums = connection.execute(
            f'SELECT count(*), coalesce(sum({hours}), 0), min(epoch("start")), max(epoch("end")), '
            f"coalesce(sum({hours}) FILTER (outcome IN ({_ENDED})), 0) FROM attempts WHERE {where}",
            [here],
        ).fetchone() or (0, 0.0, None, None, 0.0)
        ends = connection.execute(
            f"SELECT outcome, count(*) FROM attempts WHERE {where} AND outcome IN ({_ENDED}) GROUP BY outcome",
            [here],
        ).fetchall()
    causes: dict[str, int] = dict.fromkeys((cause.value for cause in Cause), 0)
    for outcome, number in ends:
        causes[_CAUSES[outcome]] += number
    return Past(
        name=str(path),
        nodes=tuple(here),
        unit="GPU-hours" if is_of_gpus else "node-hours",
        attempts=sums[0],
        hours=float(sums[1]),
        begun_unix_s=sums[2],
        ended_unix_s=sums[3],
        interruptions={cause: number for cause, number in causes.items() if number},
        destroyed_at_most=float(sums[4]),
    )


_CAUSES = {outcome.value: cause.value for outcome, cause in STRICT.items()}
