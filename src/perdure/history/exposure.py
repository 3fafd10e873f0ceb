"""The history before any decision: who used what, how it ended, and what cannot be told. Called by `advisor.advise` and `history show`.

Works on the tables of `chains.build`. Totals are plain sums over all attempts that consumed time, whatever became of them.
"""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any, Literal

from perdure.history import cells
from perdure.history.evidence import MS_PER_HOUR, Workloads
from perdure.history.runs import LIMIT_TOLERANCE
from perdure.model import advice
from perdure.model.attempt import Outcome
from perdure.stats import size_bins

if TYPE_CHECKING:
    import duckdb

TRUNCATED_SHARE = 0.01
"""Where more than this part of the runs (and at least ten) start in the very second in which the history starts, the
accounting tool seems to have cut them there (`sacct -T`)."""


def measure(connection: duckdb.DuckDBPyConnection, workloads: Workloads) -> advice.Exposure:
    """Return the exposure table, shares, bounds and what the history cannot tell.

    Hours are of nodes and of GPUs; `destroyed_gpu_hours`, `walltime_exposed_gpu_hours` and the shares count node-hours for
    work without GPUs.
    """
    totals = _one(connection, _TOTALS)
    shares = _one(connection, _SHARES)
    start_s, end_s = totals["start_s"] or 0, totals["end_s"] or 0
    cost = totals["cost_ms"]
    jobs = shares["jobs"]
    return advice.Exposure(
        attempts=totals["attempts"],
        jobs=totals["jobs"],
        start=_iso(start_s),
        end=_iso(end_s),
        days=(end_s - start_s) / 86400.0,
        rows=_rows(connection),
        node_hours=totals["node_s"] / 3600.0,
        gpu_hours=totals["gpu_ms"] / MS_PER_HOUR,
        destroyed_gpu_hours=advice.Bounds(*(math.fsum(bound) for bound in workloads.destroyed())),
        walltime_exposed_gpu_hours=totals["near_limit_ms"] / MS_PER_HOUR,
        shares=advice.Shares(
            infrastructure_jobs=_ratio(shares["infrastructure_jobs"], jobs),
            infrastructure_gpu_hours=_ratio(shares["infrastructure_ms"], cost),
            walltime_jobs=_ratio(shares["walltime_jobs"], jobs),
            walltime_gpu_hours=_ratio(shares["walltime_ms"], cost),
            resubmitted_jobs=_ratio(shares["resubmitted_jobs"], jobs),
        ),
        cannot_tell=_cannot_tell(connection, totals),
    )


_TOTALS = """
    SELECT count(*) AS attempts, (SELECT count(*) FROM jobs) AS jobs,
           min(coalesce(start_s, submit_s)) AS start_s,
           max(greatest(coalesce(end_s, 0), coalesce(start_s, 0) + elapsed_s, coalesce(submit_s, 0))) AS end_s,
           sum(node_s) AS node_s, sum(gpu_ms) AS gpu_ms, sum(cost_ms) AS cost_ms,
           coalesce(sum(cost_ms) FILTER (near_limit), 0) AS near_limit_ms,
           count(*) FILTER (elapsed_s > 0) AS ran, count(*) FILTER (elapsed_s > 0 AND is_gpu) AS ran_with_gpus,
           count(*) FILTER (elapsed_s > 0 AND NOT is_gpu AND milli_size = 1000) AS on_one_node,
           count(*) FILTER (elapsed_s > 0 AND limit_s IS NULL) AS no_limit,
           count(*) FILTER (outcome = 'walltime') AS walltime,
           count(*) FILTER (outcome = 'requeued' AND ending = 'requeued') AS requeued,
           count(*) FILTER (outcome = 'suspected_infrastructure') AS suspected,
           count(*) FILTER (ending = 'infrastructure' AND milli_size = 0) AS sizeless_events,
           count(*) FILTER (outcome = 'censored') AS running,
           count(*) FILTER (NOT last AND ending = 'success' AND NOT near_limit) AS after_success
    FROM ordered"""

# A job is touched when any of its attempts ended so; the hours are those of all its attempts.
_SHARES = """
    WITH repeated AS (
        SELECT job, bool_or(ending = 'infrastructure') AS infrastructure, bool_or(ending = 'walltime') AS walltime, sum(cost_ms) AS cost_ms,
               bool_or(elapsed_s > 0 OR ending = 'infrastructure') AS ran
        FROM ordered WHERE NOT (no = 1 AND last) GROUP BY job),
    every AS (
        SELECT ending = 'infrastructure' AS infrastructure, ending = 'walltime' AS walltime, cost_ms,
               elapsed_s > 0 OR ending = 'infrastructure' AS ran
        FROM ordered WHERE no = 1 AND last
        UNION ALL BY NAME SELECT * EXCLUDE (job) FROM repeated)
    SELECT count(*) FILTER (ran) AS jobs,
           count(*) FILTER (infrastructure) AS infrastructure_jobs, coalesce(sum(cost_ms) FILTER (infrastructure), 0) AS infrastructure_ms,
           count(*) FILTER (walltime) AS walltime_jobs, coalesce(sum(cost_ms) FILTER (walltime), 0) AS walltime_ms,
           (SELECT count(*) FROM links WHERE undone) AS resubmitted_jobs
    FROM every"""


def _rows(connection: duckdb.DuckDBPyConnection) -> tuple[advice.ExposureRow, ...]:
    """Sum by outcome and size bin; what was never given nodes has size 0."""
    bin_sql = f"CASE WHEN milli_size = 0 THEN -1 ELSE {cells.size_bin_sql()} END"
    found = connection.execute(f"""
        SELECT outcome, is_gpu, {bin_sql} AS bin, count(*), sum(node_s) / 3600.0, sum(gpu_ms) / {MS_PER_HOUR}, min(milli_size) / 1000.0
        FROM ordered GROUP BY ALL""").fetchall()
    order = {outcome.value: place for place, outcome in enumerate(Outcome)}
    records = []
    for outcome, is_gpu, place, attempts, node_hours, gpu_hours, smallest in sorted(
        found, key=lambda row: (order.get(row[0], 99), not row[1], row[2])
    ):
        low, high = (0.0, 0.0) if place < 0 else size_bins.bounds(place)
        unit: Literal["gpu", "node"] = "gpu" if is_gpu else "node"
        records.append(advice.ExposureRow(outcome, min(low, smallest), high, unit, attempts, float(node_hours), float(gpu_hours)))
    return tuple(records)


def _cannot_tell(connection: duckdb.DuckDBPyConnection, totals: dict[str, Any]) -> tuple[str, ...]:
    """Say, a sentence each, what this history cannot answer and how that bears on the figures."""
    source = _one(connection, "FROM source_facts")
    ran = max(totals["ran"], 1)
    no_gpus = totals["ran"] - totals["ran_with_gpus"]
    sentences = [
        (
            True,
            (
                "Accounting holds no checkpoints: destroyed work is given as bounds, from all of an "
                "attempt to what it did since a checkpoint "
                "of its own."
            ),
        ),
        (
            totals["walltime"] > 0,
            (
                f"Not every job that hit its limit lost all its work: {totals['walltime']} attempts ended "
                "at their limit; some will have saved "
                "what they had, or were sessions that had served their purpose."
            ),
        ),
        (
            totals["near_limit_ms"] > 0,
            f"Attempts that ended within {LIMIT_TOLERANCE:.0%} of their limit count as exposed to it, cut off or not.",
        ),
        (
            totals["requeued"] > 0,
            (
                f"Why {totals['requeued']} attempts were requeued is not recorded: strict rates leave them "
                "out, inclusive ones count them as "
                "infrastructure."
            ),
        ),
        (
            totals["suspected"] > 0,
            (
                f"{totals['suspected']} failed attempts may have been the infrastructure's doing (a failed "
                "node is named, or a signal they did "
                "not send themselves): only the inclusive rates count them."
            ),
        ),
        (
            source["missing_earlier"] > 0,
            (
                f"{source['missing_earlier']} jobs were restarted more often than the history holds attempts of them: earlier records were "
                "purged, or pulled without --duplicates."
            ),
        ),
        (
            source["users"] == 1 and source["rows"] > 1,
            "All jobs belong to one user: accounting shows others' jobs only to operators, so this may not be the whole cluster.",
        ),
        (
            totals["ran_with_gpus"] == 0 and totals["ran"] > 0,
            "No attempt has a GPU count: sizes are counted in nodes, and GPU-hours stand for node-hours.",
        ),
        (
            0 < totals["ran_with_gpus"] < totals["ran"],
            f"{no_gpus} attempts have no GPUs: where losses are compared, their node-hours stand beside GPU-hours.",
        ),
        (
            totals["on_one_node"] > 0,
            (
                f"{totals['on_one_node']} attempts ran without GPUs on one node: each counts as a whole node, even if others ran beside it,"
                " so that node-hours may be more than the nodes had."
            ),
        ),
        (source["no_nodes"] > 0, f"{source['no_nodes']} attempts that ran have no node count: each is counted as one node."),
        (
            totals["no_limit"] > 0,
            f"{totals['no_limit']} of {ran} attempts have no known wall-time limit: whether they would have met it cannot be told.",
        ),
        (
            totals["sizeless_events"] > 0,
            f"{totals['sizeless_events']} failures came before any node was given: they have no size and are in no rate.",
        ),
        (
            source["at_start"] >= 10 and source["at_start"] > TRUNCATED_SHARE * ran,
            (
                f"{source['at_start']} attempts start in the very second in which the history starts: it "
                "looks cut off there (sacct -T), which "
                "makes their time and their loss too short."
            ),
        ),
        (
            totals["running"] > 0,
            f"{totals['running']} attempts were still running when the history was read: their time is exposure, their end is open.",
        ),
        (
            source["runaway"] > 0,
            (
                f"{source['runaway']} attempts run a day or more beyond their limit: records without an end (sacctmgr show runawayjobs), "
                "of which only the limit counts as run."
            ),
        ),
        (
            totals["after_success"] > 0,
            f"{totals['after_success']} attempts ended well and were run again under the same id: why is not recorded.",
        ),
        (source["submit_lines"] == 0, "There are no submit lines: whether jobs ask for a signal before their limit cannot be seen."),
        (source["names"] == 0, "There are no job names: jobs of a user and account of one size are taken for one workload."),
    ]
    return tuple(text for applies, text in sentences if applies)


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> dict[str, Any]:
    """Return the single row of `query`; a sum over nothing is 0, an instant of nothing None."""
    found = connection.execute(query)
    names = [column[0] for column in found.description or ()]
    (row,) = found.fetchall()
    return {name: 0 if value is None and name not in ("start_s", "end_s") else value for name, value in zip(names, row, strict=True)}


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _iso(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
