"""From attempts to runs: one narrow row for each attempt, heterogeneous components merged, with the numbers every analysis needs.

Called by `chains`. Only here are names, users and accounts looked at; everything after works on numbers, so that twenty
million attempts stay within memory. Hours are kept as whole numbers (node-seconds, thousandths of a GPU times seconds):
sums are then exact, and the same whatever the order of the rows.

Tables and views made
    ``selected``    the attempts of the cluster asked for
    ``keyed``       one row a run, with the strings that make its workload; `runs_sql` turns it into the columns of `RUN_COLUMNS`
    ``raw_keys``    rk, wid: from the hash of those strings to the workload
    ``workloads``   wid, cluster, user, account, name (normalised), is_gpu, milli_size, partition ('' for several)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from perdure import errors
from perdure.history import names
from perdure.model.attempt import Outcome

if TYPE_CHECKING:
    import duckdb

LIMIT_TOLERANCE = 0.05
"""An attempt that ran to within this part of its limit was exposed to being cut off there."""

ENDING_TYPE = "ENUM(" + ", ".join(f"'{outcome.value}'" for outcome in sorted(Outcome)) + ")"
"""SQL type of outcomes and endings: a byte each, compared as numbers. In the order of the alphabet, so that they sort like text."""

RUN_COLUMNS: dict[str, str] = {
    "jkey": "hash of cluster and raw id (of the group, for a heterogeneous job)",
    "wid": "workload",
    "gkey": "hash of workload and working directory: what a resubmission has in common with its predecessor",
    "fkey": "the same without the size, which a job that never started does not have: what a dependency has in common",
    "owner": "hash of the user",
    "name_hash": "hash of the name as given",
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

_PREEMPTION_CLASS = "hash(coalesce(cluster, ''), partition, qos)"
"""SQL for what decides whether a run can be preempted."""

JKEY = "hash(coalesce(cluster, ''), coalesce(raw_id, job_id, concat(source, ':', line)))"
"""SQL for the key of an attempt's id."""

_COMPONENT = """
    coalesce(cluster, '') AS cluster, coalesce("user", '') AS "user", coalesce(account, '') AS account,
    coalesce(partition, '') AS partition, {coarse} AS coarse,
    {jkey} AS jkey,
    hash(coalesce("user", '')) AS owner,
    hash(name) AS name_hash,
    hash(work_dir) AS dir_hash,
    epoch_us(submit) // 1000000 AS submit_s,
    epoch_us(eligible) // 1000000 AS eligible_s,
    epoch_us(start) // 1000000 AS start_s,
    CASE WHEN outcome IN ('censored', 'never_started') AND "end" IS NULL THEN NULL
         ELSE coalesce(epoch_us("end"), epoch_us(start) + (coalesce(elapsed_s, 0) + coalesce(suspended_s, 0)) * 1000000) // 1000000
    END AS end_s,
    greatest(coalesce(elapsed_s, 0), 0)::BIGINT AS elapsed_s,
    limit_s,
    CASE WHEN coalesce(elapsed_s, 0) > 0 THEN coalesce(nodes, 1) ELSE coalesce(nodes, 0) END::BIGINT AS nodes,
    round(greatest(coalesce(gpus, 0), 0) * 1000)::BIGINT AS milli_gpus,
    coalesce(try_cast(outcome AS {ending_type}), 'other'::{ending_type}) AS outcome,
    coalesce(state = 'BOOT_FAIL', false) AS boot,
    coalesce(contains(submit_line, '--signal'), false) AS signalled,
    coalesce({preemption_class} IN ({preempted_classes}), false) AS preemptible,
    depends_on
"""

# An interruption of one component is an interruption of the whole: the gravest ending speaks for the group.
_GRAVEST = "list_position(['infrastructure', 'suspected_infrastructure', 'preempted', 'operator_cancel', 'walltime', 'requeued'], outcome)"

_HET = f"""
    SELECT {{columns}}
    FROM (SELECT {_COMPONENT}, het_job, het_offset,
                 row_number() OVER (PARTITION BY cluster, raw_id ORDER BY submit, start, "end") AS ordinal
          FROM selected WHERE het_job IS NOT NULL)
    GROUP BY cluster, het_job, ordinal
"""
_HET_COLUMNS = {
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
    "preemptible": "bool_or(preemptible)",
    "jkey": "hash(cluster, '+', het_job)",
    "cluster": "cluster",
}
_ORDER = (
    'cluster, "user", account, partition, coarse, jkey, owner, name_hash, dir_hash, submit_s, eligible_s, start_s, end_s, elapsed_s, '
    "limit_s, nodes, milli_gpus, node_s, gpu_ms, outcome, boot, signalled, preemptible, depends_on"
)


def build(connection: duckdb.DuckDBPyConnection, *, cluster: str | None = None) -> None:
    """Make ``keyed``, ``raw_keys`` and ``workloads`` from ``attempts``, of one `cluster` only when it is given.

    Raises `errors.InputEmpty` when there is no attempt, or none of that cluster.
    """
    _check_not_empty(connection, cluster)
    where = "" if cluster is None else "WHERE cluster = '" + cluster.replace("'", "''") + "'"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW selected AS SELECT * FROM attempts {where}")
    connection.execute(f"CREATE OR REPLACE TEMP TABLE keyed AS {_keyed_sql(_has_het(connection), _preempted_classes(connection))}")
    _number_workloads(connection)


def _check_not_empty(connection: duckdb.DuckDBPyConnection, cluster: str | None) -> None:
    if connection.execute("SELECT 1 FROM attempts LIMIT 1").fetchone() is None:
        raise errors.InputEmpty("the history holds no attempts", hint="import a wider window: perdure history import or pull")
    if cluster is None:
        return
    known = [row[0] or "" for row in connection.execute("SELECT DISTINCT cluster FROM attempts ORDER BY 1 LIMIT 20").fetchall()]
    if cluster not in known and connection.execute("SELECT 1 FROM attempts WHERE cluster = ? LIMIT 1", [cluster]).fetchone() is None:
        raise errors.InputEmpty(f"the history holds no attempts of cluster {cluster!r}", hint=f"it has: {', '.join(known) or 'no names'}")


def _has_het(connection: duckdb.DuckDBPyConnection) -> bool:
    return connection.execute("SELECT 1 FROM selected WHERE het_job IS NOT NULL LIMIT 1").fetchone() is not None


def _preempted_classes(connection: duckdb.DuckDBPyConnection) -> str:
    """Return, as an SQL list, the hashes of the partitions and qualities of service in which any run was preempted."""
    found = connection.execute(f"SELECT DISTINCT {_PREEMPTION_CLASS} FROM selected WHERE outcome = 'preempted' ORDER BY 1").fetchall()
    return ", ".join(str(row[0]) for row in found) or "NULL"


def _keyed_sql(has_het: bool, preempted_classes: str) -> str:
    component = _COMPONENT.format(
        coarse=names.coarse_sql("coalesce(name, '')"),
        jkey=JKEY,
        ending_type=ENDING_TYPE,
        preemption_class=_PREEMPTION_CLASS,
        preempted_classes=preempted_classes,
    )
    plain = f"""
        SELECT *, nodes * elapsed_s AS node_s, milli_gpus * elapsed_s AS gpu_ms
        FROM (SELECT {component} FROM selected WHERE het_job IS NULL)"""
    merged = plain
    if has_het:
        order = [column.strip() for column in _ORDER.split(",")]
        columns = ", ".join(f"{_HET_COLUMNS.get(column, f'arg_min({column}, het_offset)')} AS {column}" for column in order)
        het = _HET.replace(_COMPONENT, component).format(columns=columns)
        merged = f"SELECT {_ORDER} FROM ({plain}) UNION ALL {het}"
    return f"""
        SELECT *, hash(cluster, "user", account, partition, coarse, is_gpu, milli_size) AS rk
        FROM (SELECT *, milli_gpus > 0 AS is_gpu, CASE WHEN milli_gpus > 0 THEN milli_gpus ELSE nodes * 1000 END AS milli_size
              FROM ({merged}))"""


def _number_workloads(connection: duckdb.DuckDBPyConnection) -> None:
    """Give each workload a number, in the order of its key, and let `raw_keys` lead from a row's hash to it."""
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE raw_keys AS
        SELECT rk, cluster, "user", account, partition, {names.normalise_sql("coarse")} AS name, is_gpu, milli_size
        FROM (SELECT rk, any_value(cluster) AS cluster, any_value("user") AS "user", any_value(account) AS account,
                     any_value(partition) AS partition, any_value(coarse) AS coarse,
                     any_value(is_gpu) AS is_gpu, any_value(milli_size) AS milli_size
              FROM keyed GROUP BY rk)""")
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE workloads AS
        SELECT (row_number() OVER (ORDER BY cluster, "user", account, name, is_gpu, milli_size) - 1)::INTEGER AS wid, *
        FROM (SELECT cluster, "user", account, name, is_gpu, milli_size,
                     CASE WHEN min(partition) = max(partition) THEN min(partition) ELSE '' END AS partition
              FROM raw_keys GROUP BY ALL)""")
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE raw_keys AS
        SELECT rk, wid FROM raw_keys JOIN workloads USING (cluster, "user", account, name, is_gpu, milli_size)""")


# What may come of a job that catches the signal sent at its limit.
_CUT_OFF = "('user_failure', 'suspected_infrastructure', 'user_cancel', 'requeued')"


def runs_sql(kind: Literal["SEMI", "ANTI"]) -> str:
    """Return the SQL of the runs whose id occurs several times (SEMI), or once (ANTI), by the table ``repeated``."""
    # Slurm's own grace (KillWait, the scheduler's tick) makes what ran to its limit a little longer than it; what asks to be
    # requeued because its limit comes near does so a little before.
    ending = f"""CASE
        WHEN limit_s > 0 AND elapsed_s >= limit_s AND outcome IN {_CUT_OFF} THEN 'walltime'::{ENDING_TYPE}
        WHEN limit_s > 0 AND elapsed_s >= limit_s * {1 - LIMIT_TOLERANCE} AND outcome = 'requeued' THEN 'walltime'::{ENDING_TYPE}
        ELSE outcome END"""
    return f"""
        SELECT jkey, wid, hash(wid, dir_hash) AS gkey, hash(cluster, "user", account, coarse, dir_hash) AS fkey, owner,
               name_hash, submit_s, eligible_s, start_s, end_s, elapsed_s, limit_s,
               is_gpu, milli_size, node_s, gpu_ms, CASE WHEN is_gpu THEN gpu_ms ELSE node_s * 1000 END AS cost_ms,
               outcome, {ending} AS ending,
               elapsed_s > 0 AND (outcome = 'walltime'
                                  OR coalesce(limit_s > 0 AND elapsed_s >= limit_s * {1 - LIMIT_TOLERANCE}, false)) AS near_limit,
               boot, signalled, preemptible, depends_on
        FROM (FROM keyed {kind} JOIN repeated USING (jkey)) JOIN raw_keys USING (rk)"""
