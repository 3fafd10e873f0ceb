"""What the history says of each workload: how long its work is, what befell it, whether it resumes by itself.

Called by `advisor` and by `exposure` after `chains.build`; works on the tables that it made. A *story* is a thread of linked
jobs, or a single job: what a person wanted done, however many attempts and ids it took.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perdure.history import cells, chains, medians, tallies
from perdure.history.evidence import SOURCES, Workloads
from perdure.history.runs import LIMIT_TOLERANCE

if TYPE_CHECKING:
    import duckdb

SHORTER = 0.7
"""A run after an interruption that took less than this part of the usual time did not begin at the beginning."""
ENOUGH_SIBLINGS = 3
ENOUGH_RESTARTS = 5
"""Restarts of a workload's own from which its wait is read; below, those of all workloads stand in."""


def build(connection: duckdb.DuckDBPyConnection, *, classification: cells.Classification = "strict") -> Workloads:
    """Make ``stories`` and return the evidence of every workload that ever ran.

    Columns are NumPy arrays, NaN where a figure is not known. `classification` decides which endings count as causes in
    `lost_by_cause` and `interruptions`; nothing else depends on it.
    """
    _make_stories(connection)
    every = connection.execute("FROM workloads ORDER BY wid").fetchnumpy()
    count = len(every["wid"])
    every |= tallies.count(connection, count) | _restarts(connection, count)
    every |= _shortened(connection, every) | {"resubmissions": _resubmissions(connection, count)}
    ever_ran = (every["milli_size"] > 0) & (every["attempts"] > 0) & (every["stories"] > 0) & (every["jobs"] > 0)
    columns = {name: column[ever_ran] for name, column in every.items()}
    resumes = _resumes(columns)
    work_s, source = _work(columns, resumes)
    return Workloads(columns, classification, work_s, source, resumes, _measure_durable(columns))


def _make_stories(connection: duckdb.DuckDBPyConnection) -> None:
    own = f"CASE WHEN ending IN {cells.in_sql(tallies.OWN_ENDS)} THEN 0 ELSE elapsed_s END"
    # A segment that was withdrawn before it started, as nothing was left to do, is not how the work ended.
    withdrawn = "(ordered.ending = 'never_started' AND ordered.end_s IS NOT NULL)"
    connection.execute(f"""
        CREATE OR REPLACE TABLE long_stories AS
        SELECT story, coalesce(min(job_wid) FILTER (elapsed_s > 0), min(job_wid)) AS wid,
               count(*) FILTER (elapsed_s > 0)::INTEGER AS started, arg_min(ending, back) AS ending, arg_min(elapsed_s, back) AS last_s,
               sum({own})::BIGINT AS work_s, sum(elapsed_s)::BIGINT AS run_s,
               count(*) FILTER (back > 1 AND ending IN {chains.STOCHASTIC} AND elapsed_s > 0)::INTEGER AS interrupted,
               count(*) FILTER (back > 1 AND near_limit)::INTEGER AS segments,
               count(*) FILTER (
                   back > 1 AND near_limit AND (outcome = 'requeued' OR kind IN ('dependency', 'advanced')))::INTEGER AS continued,
               max(limit_s) AS limit_s
        FROM (
            SELECT ordered.*, CASE WHEN last THEN links.kind END AS kind, coalesce(long_jobs.wid, ordered.wid) AS job_wid,
                   coalesce(thread, ordered.job) AS story,
                   row_number() OVER (
                       PARTITION BY coalesce(thread, ordered.job) ORDER BY {withdrawn}, coalesce(seq, 0) DESC, no DESC) AS back
            FROM ordered LEFT JOIN threads ON threads.job = ordered.job LEFT JOIN long_jobs ON long_jobs.job = ordered.job
            LEFT JOIN links ON links.predecessor = ordered.job
            WHERE NOT (no = 1 AND last) OR thread IS NOT NULL)
        GROUP BY story""")
    connection.execute(f"""
        CREATE OR REPLACE VIEW stories AS
        SELECT job AS story, wid, (elapsed_s > 0)::INTEGER AS started, ending, elapsed_s AS last_s, {own} AS work_s,
               elapsed_s AS run_s, 0 AS interrupted, 0 AS segments, 0 AS continued, limit_s
        FROM ordered ANTI JOIN threads USING (job) WHERE no = 1 AND last
        UNION ALL FROM long_stories""")


_RESTART = f"prev_ending IN {chains.STOCHASTIC} AND start_s >= prev_end_s AND elapsed_s > 0"


def _restarts(connection: duckdb.DuckDBPyConnection, count: int) -> dict[str, NDArray[Any]]:
    """Return the number of restarts after an interruption and their median wait in seconds, by workload."""
    found = connection.execute(f"SELECT wid, start_s - prev_end_s AS waited_s FROM ordered WHERE {_RESTART}").fetchnumpy()
    return {
        "restarts": np.bincount(found["wid"], minlength=count),
        "restart_s": medians.by_group(found["wid"], found["waited_s"], count),
    }


def _resubmissions(connection: duckdb.DuckDBPyConnection, count: int) -> NDArray[np.int64]:
    found = connection.execute("SELECT wid FROM links JOIN jobs USING (job) WHERE undone").fetchnumpy()
    return np.bincount(found["wid"], minlength=count)


def _shortened(connection: duckdb.DuckDBPyConnection, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return what stories show that were interrupted and then ended well in far less time than their untroubled siblings.

    The work before the interruption was not lost. What was: the time beyond the siblings' own.
    """
    found = connection.execute(
        "SELECT wid, last_s, work_s FROM long_stories WHERE ending = 'success' AND interrupted > 0 AND segments = 0"
    ).fetchnumpy()
    usual = columns["single_s"][found["wid"]]
    judged = columns["singles"][found["wid"]] >= ENOUGH_SIBLINGS
    wid, usual = found["wid"][judged], usual[judged]
    last, work = (found[name][judged].astype(float) for name in ("last_s", "work_s"))

    def total(weights: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(wid, weights, minlength=len(columns["wid"])).astype(np.float64)

    short = total(last < SHORTER * usual).astype(np.int64)
    return {"short": short, "lost_s": total(np.maximum(work - usual, 0.0)), "interrupted_s": total(work - last)}


def _resumes(columns: dict[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Return where the history shows that the application resumes by itself.

    One of: it asks for a signal before its limit; at least two runs, and half of those after an interruption, were much shorter
    than their siblings; more stories were done in segments of a limit than in one run (a hung run that was repeated and went
    well is no such sign), or, with nothing done yet, two segments went on from each other: by a dependency, a counter
    in the name, or a requeue that the job asked for itself.
    """
    shortened = (columns["short"] >= 2) & (2 * columns["short"] >= columns["interrupted_successes"])
    segmented = (columns["limit_chains"] > columns["singles"]) | ((columns["successes"] == 0) & (columns["continued"] >= 2))
    return np.asarray(columns["signalled"].astype(bool) | shortened | segmented)


def _work(columns: dict[str, NDArray[Any]], resumes: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return W in seconds and the index of its source in `SOURCES`.

    Completed siblings first: the median of their last runs, which began at the beginning unless the workload resumes; of those
    done in one run when it does. Where work was done in segments of the limit more often than in one run: the median sum over
    such a chain. Where more runs were cut off at the limit than ended well, half of the work is longer than the limit, and the
    limit is all that is known; as it is where nothing was ever completed. Runs that were cut off and repeated, mostly in
    vain, say that the work is longer than the limit: just beyond it then.
    """
    limit = np.where(np.isfinite(columns["limit_s"]) & (columns["limit_s"] > 0), columns["limit_s"], np.nan)
    at_once = np.where(resumes & (columns["singles"] > 0), columns["single_s"], np.where(resumes, columns["total_s"], columns["final_s"]))
    in_segments = np.where(columns["limit_chains"] > 0, columns["limit_chain_s"], columns["open_chain_s"])
    unsegmented = columns["successes"] - columns["limit_chains"]
    in_vain = ~resumes & (columns["repeated"] > 0) & (columns["cut_off"] > columns["successes"])
    beyond = np.where(in_vain, limit * (1 + LIMIT_TOLERANCE), limit)
    chain, known, capped, longest = (SOURCES.index(source) for source in ("chain", "completed", "limit", "longest"))
    summed = np.where(resumes & (columns["singles"] == 0), chain, known)
    conditions: list[NDArray[np.bool_]] = [
        in_vain & ~np.isnan(limit),
        resumes & ((columns["limit_chains"] > columns["singles"]) | ((columns["successes"] == 0) & (columns["continued"] >= 1))),
        (columns["cut_off"] > unsegmented) & ~np.isnan(limit),
        unsegmented > 0,
        ~np.isnan(limit),
        columns["longest_s"] > 0,
    ]
    choices: list[NDArray[np.float64]] = [beyond, in_segments, limit, at_once, limit, columns["longest_s"]]
    sources: list[Any] = [capped, chain, capped, summed, capped, longest]
    # A run may end well within its first second.
    work = np.maximum(np.select(conditions, choices, default=1.0), 1.0)
    return work, np.asarray(np.select(conditions, sources), np.int64)


def _measure_durable(columns: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return 1 − (time beyond the siblings' own) / (time that interrupted runs took), where at least two interruptions show it."""
    measured = (columns["short"] >= 2) & (columns["interrupted_s"] > 0)
    kept = 1.0 - columns["lost_s"] / np.where(measured, columns["interrupted_s"], 1.0)
    return np.where(measured, np.clip(kept, 0.0, 1.0), np.nan)


@dataclasses.dataclass(frozen=True)
class Restarts:
    """How long it took from an interruption to the job's next start: detection, requeue delay and queue together."""

    median_s: float | None
    """Of all; None where no job was ever restarted."""
    count: int
    by_size: dict[tuple[bool, int], float]
    """Median by (has GPUs, size bin), where `ENOUGH_RESTARTS` were seen."""


def measure_restarts(connection: duckdb.DuckDBPyConnection) -> Restarts:
    """Return the waits of all jobs that were started again after an interruption, under their own id."""
    found = connection.execute(f"""
        SELECT is_gpu, {cells.size_bin_sql()} AS bin, median(start_s - prev_end_s)::DOUBLE, count(*)
        FROM ordered WHERE {_RESTART} GROUP BY GROUPING SETS ((), (is_gpu, bin))""").fetchall()
    by_size = {
        (bool(gpu), int(bin_)): float(median_s) for gpu, bin_, median_s, count in found if gpu is not None and count >= ENOUGH_RESTARTS
    }
    ((overall_s, total),) = [(median_s, count) for gpu, _, median_s, count in found if gpu is None]
    return Restarts(overall_s, int(total), by_size)
