"""Exposure and events by size and day, as `stats.rates` wants them. Called by `advisor.advise` after `chains.build`.

Every run that consumed time is exposure, on the days on which it ran, however it ended; a run still going counts up to the
reading. An event counts on the day of its end. A heterogeneous job is one run and one event.

Exposed to preemption are the runs of partitions and qualities of service in which preemption was seen, no others: a normal job
would else inherit the preemptions of low-priority ones of its size. A start that failed before any work ran (BOOT_FAIL, a
NODE_FAIL of 0 s) is no interruption of work and follows starts, not hours: it is no event here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from perdure.history import compact
from perdure.model.attempt import INCLUSIVE, STRICT, Cause, Outcome
from perdure.stats import size_bins
from perdure.stats.rates import ExposureCells

if TYPE_CHECKING:
    import duckdb

Unit = Literal["gpu", "node"]
Classification = Literal["strict", "inclusive"]

RATED: tuple[Cause, ...] = (Cause.INFRASTRUCTURE, Cause.PREEMPTION, Cause.OPERATOR)
"""Causes that have a rate; wall time is a certainty, not a rate."""
UNITS: tuple[Unit, ...] = ("gpu", "node")
CLASSIFICATIONS: tuple[Classification, ...] = ("strict", "inclusive")


@dataclasses.dataclass(frozen=True)
class CauseCells:
    """What one estimate is made from."""

    cause: Cause
    classification: Classification
    unit: Unit
    cells: ExposureCells
    event_times_h: NDArray[np.float64]
    """Ends of the interrupted runs, hours since 1970, ascending."""


def endings_of(cause: Cause, classification: Classification) -> tuple[str, ...]:
    """Return the endings that count as `cause`."""
    table: dict[Outcome, Cause] = STRICT if classification == "strict" else INCLUSIVE
    return tuple(outcome.value for outcome, its_cause in table.items() if its_cause is cause)


def in_sql(values: tuple[str, ...]) -> str:
    """Write constants of our own as an SQL list."""
    return "(" + ", ".join(f"'{value}'" for value in values) + ")"


def size_bin_sql() -> str:
    """Return the SQL for the size bin of a run, as `stats.size_bins` numbers them."""
    edges = [(round(edge * 1000), place) for place, edge in enumerate(size_bins.LOWER_EDGES) if edge > 0]
    return f"CASE {' '.join(f'WHEN milli_size >= {edge} THEN {place}' for edge, place in reversed(edges))} ELSE 0 END"


def read_cells(connection: duckdb.DuckDBPyConnection) -> list[CauseCells]:
    """Return the cells of each cause, classification and unit that has any exposure, in that fixed order."""
    kinds = [(cause, classification) for cause in RATED for classification in CLASSIFICATIONS]
    found = _fetch(connection, kinds)
    ends = _event_ends(connection, kinds)
    result = []
    for unit in UNITS:
        member = found["is_gpu"] == (unit == "gpu")
        if not member.any():
            continue
        for number, (cause, classification) in enumerate(kinds):
            exposed = member & found["preemptible"].astype(bool) if cause is Cause.PREEMPTION else member
            cells = _cells(found, exposed, number)
            codes = [compact.ENDING_CODES[ending] for ending in endings_of(cause, classification)]
            struck = np.isin(ends["ending"], codes) & (ends["is_gpu"] == (unit == "gpu"))
            result.append(CauseCells(cause, classification, unit, cells, ends["end_h"][struck]))
    return result


def _cells(found: dict[str, NDArray[Any]], exposed: NDArray[np.bool_], number: int) -> ExposureCells:
    """Take the `exposed` rows, one entry for each size and day."""
    key = np.stack([found["milli_size"][exposed].astype(np.int64), found["day"][exposed].astype(np.int64)])
    distinct, place = np.unique(key, axis=1, return_inverse=True)

    def total(column: str) -> NDArray[np.float64]:
        summed: NDArray[np.float64] = np.zeros(distinct.shape[1])
        np.add.at(summed, place.ravel(), found[column][exposed].astype(np.float64))
        return summed

    return ExposureCells(
        size=distinct[0] / 1000.0,
        block=distinct[1],
        attempts=total("attempts").astype(np.int64),
        events=total(f"events_{number}").astype(np.int64),
        job_hours=total("job_s") / 3600.0,
        node_hours=total("node_s") / 3600.0,
        gpu_hours=total("gpu_ms") / 3_600_000.0,
    )


_FROM_S = "coalesce(start_s, end_s - elapsed_s, submit_s, 0)"
_EVENT = "elapsed_s > 0"


def _fetch(connection: duckdb.DuckDBPyConnection, kinds: list[tuple[Cause, Classification]]) -> dict[str, NDArray[Any]]:
    counts = ", ".join(
        f"count(*) FILTER (ending IN {in_sql(endings_of(cause, classification))} AND {_EVENT}) AS events_{number}"
        for number, (cause, classification) in enumerate(kinds)
    )
    zeros = ", ".join(f"0 AS events_{number}" for number in range(len(kinds)))
    totals = ", ".join(f"sum(events_{number})::BIGINT AS events_{number}" for number in range(len(kinds)))
    # A run's seconds fall to its days in proportion to the wall time it spent there (suspension is spread evenly); whole
    # seconds, cut at cumulated points so that they add up to what the run took.
    return connection.execute(
        f"""
        WITH spans AS (
            SELECT is_gpu, preemptible, milli_size, elapsed_s, node_s, gpu_ms, {_FROM_S} AS from_s,
                   greatest(coalesce(end_s, 0), {_FROM_S} + elapsed_s) AS to_s
            FROM ordered WHERE elapsed_s > 0 AND milli_size > 0),
        parts AS (
            SELECT is_gpu, preemptible, milli_size, from_s // 86400 AS day, elapsed_s AS job_s, node_s, gpu_ms
            FROM spans WHERE from_s // 86400 = (to_s - 1) // 86400
            UNION ALL
            SELECT is_gpu, preemptible, milli_size, day, reached(day + 1) - reached(day) AS job_s,
                   (reached(day + 1) - reached(day)) * (node_s // elapsed_s), (reached(day + 1) - reached(day)) * (gpu_ms // elapsed_s)
            FROM (SELECT *, unnest(range(from_s // 86400, (to_s - 1) // 86400 + 1)) AS day
                  FROM spans WHERE from_s // 86400 < (to_s - 1) // 86400)),
        ends AS (
            SELECT is_gpu, preemptible, milli_size, coalesce(end_s - 1, {_FROM_S}) // 86400 AS day, count(*) AS attempts, {counts}
            FROM ordered WHERE milli_size > 0 AND {_EVENT} GROUP BY ALL),
        together AS (
            SELECT is_gpu, preemptible, milli_size, day, 0 AS attempts, sum(job_s) AS job_s, sum(node_s) AS node_s,
                   sum(gpu_ms) AS gpu_ms, {zeros}
            FROM parts GROUP BY ALL
            UNION ALL BY NAME
            SELECT *, 0 AS job_s, 0 AS node_s, 0 AS gpu_ms FROM ends)
        SELECT is_gpu, preemptible, milli_size, day, sum(attempts)::BIGINT AS attempts, sum(job_s)::BIGINT AS job_s,
               sum(node_s)::DOUBLE AS node_s, sum(gpu_ms)::DOUBLE AS gpu_ms, {totals}
        FROM together GROUP BY ALL ORDER BY is_gpu, preemptible, milli_size, day""".replace(
            "reached(day + 1)", _reached("day + 1")
        ).replace("reached(day)", _reached("day"))
    ).fetchnumpy()


def _reached(day: str) -> str:
    """Seconds of its `elapsed_s` that a run has behind it at the beginning of `day`."""
    return f"(least(greatest(({day}) * 86400 - from_s, 0), to_s - from_s) * elapsed_s // (to_s - from_s))"


def _event_ends(connection: duckdb.DuckDBPyConnection, kinds: list[tuple[Cause, Classification]]) -> dict[str, NDArray[Any]]:
    """Return what ended with an event of any of `kinds`, in the order of time: how, when, and with GPUs or without."""
    endings = tuple(sorted({ending for kind in kinds for ending in endings_of(*kind)}))
    return connection.execute(f"""
        SELECT enum_code(ending) AS ending, is_gpu, (coalesce(end_s, {_FROM_S}) / 3600.0)::DOUBLE AS end_h FROM ordered
        WHERE ending IN {in_sql(endings)} AND milli_size > 0 AND {_EVENT} ORDER BY end_h""").fetchnumpy()
