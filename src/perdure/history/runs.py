"""From attempts to runs: one narrow row for each attempt, heterogeneous components merged, with the numbers every analysis needs.

Called by `chains`. Only here are names, users and accounts looked at; everything after works on numbers, so that twenty
million attempts stay within memory. Hours are kept as whole numbers (node-seconds, thousandths of a GPU times seconds):
sums are then exact, and the same whatever the order of the rows.

Tables and views made
    ``compact``     what is needed of each attempt (`compact`); once heterogeneous components are one, `runs_sql` makes runs of it
    ``source_facts``  one row: what the attempts tell of the source that they came from
    ``raw_keys``    rk, wid: from the hash of those strings to the workload
    ``workloads``   wid, cluster, user, account, name (normalised), is_gpu, milli_size, partition ('' for several)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from perdure import errors
from perdure.history import compact, names, table

if TYPE_CHECKING:
    import duckdb

LIMIT_TOLERANCE = 0.05
"""An attempt that ran to within this part of its limit was exposed to being cut off there."""

RUN_COLUMNS: dict[str, str] = {
    "jkey": "hash of cluster and raw id (of the group, for a heterogeneous job)",
    "wid": "workload",
    "gkey": "hash of workload and working directory: what a resubmission has in common with its predecessor",
    "fkey": "the same without the size, which a job that never started does not have: what a dependency has in common",
    "owner": "hash of the user",
    "name, name_hash": "the name as given, and its hash",
    "submit_s, eligible_s, start_s, end_s": "seconds since 1970, UTC; end_s NULL while pending or running",
    "elapsed_s": "seconds run",
    "limit_s": "wall-time limit; NULL: unknown, +inf: none",
    "is_gpu": "it had GPUs: its size is counted in GPUs, else in nodes",
    "milli_size": "thousandths of a GPU or node",
    "node_s": "node-seconds",
    "gpu_ms": "thousandths of a GPU times seconds",
    "cost_ms": "gpu_ms with GPUs, else node_s × 1000",
    "outcome": "as the record says",
    "ending": "outcome, but `walltime` for whatever ended at its limit",
    "near_limit": "ended at its limit or within `LIMIT_TOLERANCE` of it",
    "boot": "the nodes never came up: an interruption that destroyed nothing",
    "signalled": "the submission asks for a signal before the limit",
    "preemptible": "preemption was seen in its partition and quality of service: only such runs are exposed to it",
    "depends_on": "job ids it waited for",
}

# An interruption of one component is an interruption of the whole: the gravest ending speaks for the group.
_GRAVEST = "list_position(['infrastructure', 'suspected_infrastructure', 'preempted', 'operator_cancel', 'walltime', 'requeued'], outcome)"

_MERGED: dict[str, str] = {
    "nodes": "sum(nodes)::BIGINT",
    "milli_gpus": "sum(milli_gpus)::BIGINT",
    "node_s": "sum(nodes * elapsed_s)::BIGINT",
    "gpu_ms": "sum(milli_gpus * elapsed_s)::BIGINT",
    "elapsed_s": "max(elapsed_s)",
    "start_s": "min(start_s)",
    "end_s": "CASE WHEN count(end_s) = count(*) THEN max(end_s) END",
    "outcome": f"coalesce(arg_min(outcome, {_GRAVEST}), arg_min(outcome, het_offset))",
    "boot": "bool_or(boot)",
    "signalled": "bool_or(signalled)",
    # The class of any component that can be preempted.
    "preemption_class": "coalesce(min(preemption_class) FILTER (preemption_class IN ({preempted})), arg_min(preemption_class, het_offset))",
    "jkey": "hash(coalesce(cluster, ''), '+', het_job)",
    "cluster": "cluster",
    "het_job": "NULL",
    "het_offset": "NULL",
}
"""How the components of a heterogeneous job become one row; of other columns the first component's value is taken."""


def build(connection: duckdb.DuckDBPyConnection, *, cluster: str | None = None) -> None:
    """Make ``raw_keys``, ``workloads`` and ``source_facts`` from ``attempts`` or the compact rows of a file; of one `cluster` when given.

    Raises `errors.InputEmpty` when there is no attempt, or none of that cluster.
    """
    read = compact.is_there(connection)
    _check_not_empty(connection, compact.VIEW if read else "attempts", cluster)
    named = None if cluster is None else "cluster = '" + cluster.replace("'", "''") + "'"
    if not read:
        compact.take(connection, where="" if named is None else f"WHERE {named}")
    elif named is not None:
        connection.execute(f"DELETE FROM {compact.ROWS} WHERE ({named}) IS NOT true")
    connection.execute(f"CREATE OR REPLACE TABLE source_facts AS {_SOURCE_FACTS}")
    _merge_heterogeneous(connection)
    _number_workloads(connection)


def _check_not_empty(connection: duckdb.DuckDBPyConnection, rows: str, cluster: str | None) -> None:
    if connection.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone() is None:
        raise errors.InputEmpty("the history holds no attempts", hint="import a wider window: perdure history import or pull")
    if cluster is None:
        return
    known = [row[0] or "" for row in connection.execute(f"SELECT DISTINCT cluster FROM {rows} ORDER BY 1 LIMIT 20").fetchall()]
    if cluster not in known and connection.execute(f"SELECT 1 FROM {rows} WHERE cluster = ? LIMIT 1", [cluster]).fetchone() is None:
        raise errors.InputEmpty(f"the history holds no attempts of cluster {cluster!r}", hint=f"it has: {', '.join(known) or 'no names'}")


_SOURCE_FACTS = f"""
    SELECT count(*) AS "rows", count(DISTINCT "user") AS users, count(signalled) AS submit_lines, count(name) AS names,
           count(*) FILTER (doubts & {compact.NO_NODES} > 0) AS no_nodes,
           count(*) FILTER (doubts & {compact.RUNAWAY} > 0) AS runaway,
           count(*) FILTER (start_s = (SELECT min(start_s) FROM compact) AND elapsed_s > 0) AS at_start,
           (SELECT count(*) FROM (
               SELECT 1 FROM compact SEMI JOIN (SELECT DISTINCT jkey FROM compact WHERE restarts > 0) USING (jkey)
               GROUP BY jkey HAVING max(restarts) > count(*) - 1)) AS missing_earlier
    FROM compact"""


def preempted_classes(connection: duckdb.DuckDBPyConnection) -> str:
    """Return, as an SQL list, the partitions and qualities of service in which any run was preempted."""
    found = connection.execute(
        "SELECT DISTINCT preemption_class FROM compact WHERE outcome = 'preempted' AND preemption_class IS NOT NULL ORDER BY 1"
    ).fetchall()
    return ", ".join(str(row[0]) for row in found) or "NULL"


def _merge_heterogeneous(connection: duckdb.DuckDBPyConnection) -> None:
    """Make one row of the components of each run of a heterogeneous job."""
    if connection.execute("SELECT 1 FROM compact WHERE het_job IS NOT NULL LIMIT 1").fetchone() is None:
        return
    preempted = preempted_classes(connection)
    stored = table.stored_columns(connection, compact.ROWS)
    columns = [name for name in compact.TYPES if name != "rk"]
    merged = ", ".join(
        f'{_MERGED.get(name, f"""arg_min("{name}", het_offset)""").replace("{preempted}", preempted)} AS "{name}"' for name in columns
    )
    connection.execute(f"""
        CREATE OR REPLACE TABLE merged AS
        SELECT *, {compact.kind_key("kin", '"partition"', "milli_gpus", "nodes")} AS rk FROM (
            SELECT {merged} FROM (
                SELECT *, row_number() OVER (PARTITION BY jkey ORDER BY submit_s, start_s, end_s) AS ordinal
                FROM compact WHERE het_job IS NOT NULL)
            GROUP BY cluster, het_job, ordinal)""")
    connection.execute(f"DELETE FROM {compact.ROWS} WHERE het_job IS NOT NULL")
    filled = [name for name in compact.TYPES if name in {*stored, "node_s", "gpu_ms"}]
    selected = ", ".join(f'"{name}"' for name in filled)
    table.append(connection, table.Query(tuple(filled), f"SELECT {selected} FROM merged", compact.ROWS, compact.TYPES))
    compact.publish(connection)
    connection.execute("DROP TABLE merged")


def _number_workloads(connection: duckdb.DuckDBPyConnection) -> None:
    """Give each workload a number, in the order of its key, and let `raw_keys` lead from a row's hash to it."""
    connection.execute(f"""
        CREATE OR REPLACE TABLE raw_keys AS
        SELECT rk, coalesce(cluster, '') AS cluster, coalesce("user", '') AS "user", coalesce(account, '') AS account,
               coalesce(partition, '') AS partition, {names.normalise_sql("name")} AS name, milli_gpus > 0 AS is_gpu,
               CASE WHEN milli_gpus > 0 THEN milli_gpus ELSE nodes * 1000 END AS milli_size
        FROM (SELECT rk, any_value(cluster) AS cluster, any_value("user") AS "user", any_value(account) AS account,
                     any_value(partition) AS partition, any_value(name) AS name,
                     any_value(milli_gpus) AS milli_gpus, any_value(nodes) AS nodes
              FROM compact GROUP BY rk)""")
    connection.execute("""
        CREATE OR REPLACE TABLE workloads AS
        SELECT (row_number() OVER (ORDER BY cluster, "user", account, name, is_gpu, milli_size) - 1)::INTEGER AS wid, *
        FROM (SELECT cluster, "user", account, name, is_gpu, milli_size,
                     CASE WHEN min(partition) = max(partition) THEN min(partition) ELSE '' END AS partition
              FROM raw_keys GROUP BY ALL)""")
    connection.execute("""
        CREATE OR REPLACE TABLE raw_keys AS
        SELECT rk, wid FROM raw_keys JOIN workloads USING (cluster, "user", account, name, is_gpu, milli_size)""")


# What may come of a job that catches the signal sent at its limit.
_CUT_OFF = "('user_failure', 'suspected_infrastructure', 'user_cancel', 'requeued')"


def runs_sql(kind: Literal["SEMI", "ANTI"], *, preempted: str) -> str:
    """Return the SQL of the runs whose id occurs several times (SEMI), or once (ANTI), by the table ``repeated``.

    `preempted` lists the classes that can be preempted (`preempted_classes`).
    """
    # Slurm's own grace (KillWait, the scheduler's tick) makes what ran to its limit a little longer than it; what asks to be
    # requeued because its limit comes near does so a little before.
    ending = f"""CASE
        WHEN limit_s > 0 AND elapsed_s >= limit_s AND outcome IN {_CUT_OFF} THEN 'walltime'::{compact.ENDING_TYPE}
        WHEN limit_s > 0 AND elapsed_s >= limit_s * {1 - LIMIT_TOLERANCE} AND outcome = 'requeued' THEN 'walltime'::{compact.ENDING_TYPE}
        ELSE outcome END"""
    return f"""
        SELECT jkey, wid, hash(wid, dir_hash) AS gkey, hash(kin, dir_hash) AS fkey, owner, name, name_hash, submit_s, eligible_s, start_s,
               end_s, elapsed_s, limit_s, is_gpu, milli_size, node_s, gpu_ms,
               CASE WHEN is_gpu THEN gpu_ms ELSE node_s * 1000 END AS cost_ms, outcome, {ending} AS ending,
               elapsed_s > 0 AND (outcome = 'walltime'
                                  OR coalesce(limit_s > 0 AND elapsed_s >= limit_s * {1 - LIMIT_TOLERANCE}, false)) AS near_limit,
               boot, signalled, preemptible, depends_on
        FROM (SELECT * REPLACE (coalesce(node_s, nodes * elapsed_s) AS node_s, coalesce(gpu_ms, milli_gpus * elapsed_s) AS gpu_ms,
                                coalesce(boot, false) AS boot, coalesce(signalled, false) AS signalled),
                     milli_gpus > 0 AS is_gpu, CASE WHEN milli_gpus > 0 THEN milli_gpus ELSE nodes * 1000 END AS milli_size,
                     hash(coalesce("user", '')) AS owner, hash(name) AS name_hash,
                     coalesce(preemption_class IN ({preempted}), false) AS preemptible
              FROM compact {kind} JOIN repeated USING (jkey)) JOIN raw_keys USING (rk)"""
