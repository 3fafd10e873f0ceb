"""Which attempts belong together: requeues of one id exactly, resubmissions under a new id with a confidence.

Called by `exposure`, `workloads` and `advisor.replay`, after `build` has made these tables:

    ``ordered``  every run (columns of `runs.RUN_COLUMNS`) with its ``job``,
                 its number ``no`` in the job (from 1), ``last``, ``prev_end_s``, ``prev_ending``
    ``jobs``     one row a job: its workload, first submission and start, end, and the ending of its last run
    ``links``    job, predecessor, kind, undone, confidence, gap_s: jobs that repeat or continue an earlier one under a new id.
                 Kinds: ``dependency`` (it named its predecessor), ``advanced`` (the counter in its name went up by one),
                 ``repeated`` (the same name again). ``undone``: the predecessor had not ended well
    ``threads``  job, thread, seq: jobs tied together by links; a job without links is a thread of its own and not listed

A job's outcome is that of its last attempt; while that one is pending or running, the job is open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perdure.history import compact, runs

if TYPE_CHECKING:
    import duckdb

RECYCLED_AFTER_S = 7 * 86400
"""A requeue follows its predecessor within minutes (Slurm forgets ended jobs after MinJobAge, 300 s, but an operator may hold
one for days). The same id a week later is another job under a recycled number."""
SOON_S = 3600
LATE_S = 86400
"""A resubmission within the hour is most likely a repetition; later than a day nobody can tell."""
TRUSTED_CONFIDENCE = 0.4
"""Links below this are not made: they would turn a sweep into a chain."""

PART_JOBS = 4_000_000
"""Jobs whose ends and submissions are compared at a time, so that they stay within memory."""

_FAR_S = 1 << 40
"""The end of what is still running."""

STOCHASTIC = "('infrastructure', 'suspected_infrastructure', 'preempted', 'requeued', 'operator_cancel')"
"""Endings that come from outside at times nobody chose; `requeued` and `suspected_infrastructure` only when inclusive."""


def build(connection: duckdb.DuckDBPyConnection, *, cluster: str | None = None) -> None:
    """Make ``workloads``, ``ordered``, ``jobs``, ``links`` and ``threads`` from ``attempts``.

    Raises `errors.InputEmpty` when there is nothing to work on.
    """
    runs.build(connection, cluster=cluster)
    _order_runs(connection)
    _make_jobs(connection)
    _make_links(connection)
    _make_threads(connection)


def _order_runs(connection: duckdb.DuckDBPyConnection) -> None:
    """Number the runs of each job. Most ids occur once: only the others pay for the sort."""
    _find_repeated(connection)
    preempted = runs.preempted_classes(connection)
    several, single = runs.runs_sql("SEMI", preempted=preempted), runs.runs_sql("ANTI", preempted=preempted)
    order = "ORDER BY submit_s, start_s, end_s, elapsed_s, ending"
    connection.execute(f"""
        CREATE OR REPLACE TABLE ordered AS
        WITH several AS MATERIALIZED (SELECT * FROM ({several}))
        SELECT * EXCLUDE (generation), hash(jkey, generation) AS job,
               (row_number() OVER of_job)::INTEGER AS no,
               lead(jkey) OVER of_job IS NULL AS last,
               lag(end_s) OVER of_job AS prev_end_s,
               lag(ending) OVER of_job AS prev_ending
        FROM (
            SELECT * EXCLUDE (fresh), sum(fresh::INTEGER) OVER (PARTITION BY jkey {order} ROWS UNBOUNDED PRECEDING) AS generation
            FROM (
                SELECT *, coalesce(
                           owner <> lag(owner) OVER of_id
                           OR submit_s - coalesce(lag(end_s) OVER of_id, lag(submit_s) OVER of_id) > {RECYCLED_AFTER_S}, false) AS fresh
                FROM several
                WINDOW of_id AS (PARTITION BY jkey {order})))
        WINDOW of_job AS (PARTITION BY jkey, generation {order})
        UNION ALL
        SELECT *, hash(jkey, 0) AS job, 1 AS no, true AS last, NULL AS prev_end_s, NULL AS prev_ending FROM ({single})""")
    compact.begin(connection)
    connection.execute("DROP TABLE raw_keys; DROP TABLE repeated")


def _find_repeated(connection: duckdb.DuckDBPyConnection) -> None:
    """Make ``repeated``: the ids that occur more than once. Sorting whole numbers is faster than counting each in a hash table."""
    keys = connection.execute("SELECT jkey FROM compact").fetchnumpy()["jkey"]
    keys.sort()
    connection.register("perdure_repeated", {"jkey": np.unique(keys[1:][keys[1:] == keys[:-1]])})
    connection.execute("CREATE OR REPLACE TABLE repeated AS FROM perdure_repeated")
    connection.unregister("perdure_repeated")


def _make_jobs(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("""
        CREATE OR REPLACE TABLE long_jobs AS
        SELECT job,
               coalesce(arg_min(wid, no) FILTER (elapsed_s > 0), min(wid)) AS wid,
               coalesce(arg_min(gkey, no) FILTER (elapsed_s > 0), min(gkey)) AS gkey, arg_min(fkey, no) AS fkey,
               min(submit_s) AS submit_s, min(start_s) AS start_s,
               CASE WHEN bool_or(last AND end_s IS NULL) THEN NULL ELSE max(end_s) END AS end_s,
               sum(elapsed_s)::BIGINT AS elapsed_s, arg_max(name_hash, no) AS name_hash, arg_max(ending, no) AS ending,
               arg_max(near_limit, no) AS near_limit, arg_max(limit_s, no) AS limit_s,
               arg_min(depends_on, no) AS depends_on, any_value(jkey) AS jkey
        FROM ordered WHERE NOT (no = 1 AND last) GROUP BY job""")
    connection.execute("""
        CREATE OR REPLACE VIEW jobs AS
        SELECT job, wid, gkey, fkey, submit_s, start_s, end_s, elapsed_s, name_hash, ending, near_limit, limit_s, depends_on, jkey
        FROM ordered WHERE no = 1 AND last
        UNION ALL FROM long_jobs""")


def _make_links(connection: duckdb.DuckDBPyConnection) -> None:
    """Link each job to the one it repeats or continues, from the dependency it names or from when it came.

    Without a dependency, the predecessor is the job of its group that was submitted just before it, had ended, and ended last,
    so that nothing else of the group was running: a repetition among jobs of the very same name, a further segment
    among all of the workload in that folder. Coming soon after a non-success says little in a group whose successes are
    followed as soon (a sweep that is fed one by one): the confidence is lessened by how often they are.
    """
    _find_soon(connection)
    connection.execute(f"CREATE OR REPLACE TABLE again AS {_timed_sql('gkey, name_hash', 'count(*) > 1')}")
    connection.execute(f"CREATE OR REPLACE TABLE further AS {_timed_sql('gkey', 'min(name_hash) <> max(name_hash)')}")
    connection.execute(f"""
        CREATE OR REPLACE TABLE links AS
        WITH {_NAMES}, {_NAMED}
        SELECT * FROM (
            SELECT job, predecessor, 'repeated' AS kind, true AS undone, gap_s, confidence
            FROM again
            UNION ALL
            SELECT job, predecessor, 'advanced', true, gap_s, confidence
            FROM further JOIN counters b USING (jkey) JOIN counters a ON a.jkey = further.predecessor_jkey
            WHERE b.rest = a.rest AND b.counter = a.counter + 1
            UNION ALL
            SELECT * FROM named)
        QUALIFY row_number() OVER (PARTITION BY job ORDER BY confidence DESC, gap_s, predecessor) = 1
            AND row_number() OVER (PARTITION BY predecessor ORDER BY confidence DESC, gap_s, job) = 1""")
    connection.execute("DROP TABLE again; DROP TABLE further; DROP TABLE soon")


def _find_soon(connection: duckdb.DuckDBPyConnection) -> None:
    """Make ``soon``: the jobs of those groups in which anything came within `LATE_S` after a non-success. Only they pay for the sort."""
    (count,) = connection.execute("SELECT count(*) FROM jobs").fetchall()[0]
    parts = 1 + int(count) // PART_JOBS
    chosen = []
    for part in range(parts):
        found = connection.execute(f"""
            SELECT gkey, submit_s, coalesce(end_s, submit_s) AS end_s, end_s IS NOT NULL AND {_UNDONE} AS undone
            FROM jobs WHERE elapsed_s > 0 AND submit_s IS NOT NULL AND gkey % {parts} = {part}""").fetchnumpy()
        chosen.append(_groups_with_soon(found["gkey"], found["submit_s"], found["end_s"], found["undone"]))
    connection.register("perdure_groups", {"group_bits": np.concatenate(chosen)})
    connection.execute(f"""
        CREATE OR REPLACE TABLE soon AS
        SELECT job, jkey, gkey, coalesce(name_hash, 0) AS name_hash, submit_s, end_s, elapsed_s, ending, {_UNDONE} AS undone
        FROM jobs WHERE elapsed_s > 0 AND gkey >> {_TIME_BITS} IN (SELECT group_bits FROM perdure_groups)""")
    connection.unregister("perdure_groups")


_UNDONE = "(ending <> 'success' OR near_limit)"

_TIME_BITS = 40
"""Of a number that holds a group and an instant in seconds; the rest is the upper part of the group's hash. Two groups may share it:
then both are looked at."""


def _groups_with_soon(
    group: NDArray[np.uint64], submit_s: NDArray[np.int64], end_s: NDArray[np.int64], undone: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """Return the upper bits of the groups in which any job was submitted within `LATE_S` after the end of an `undone` one.

    One entry a job; of those that have not ended, which are not undone, any `end_s` will do.
    """
    if not undone.any():
        return np.empty(0, np.uint64)
    bits, late = np.uint64(_TIME_BITS), np.uint64(LATE_S)
    # What is farther off than 35,000 years is no record's time.
    first = min(int(submit_s.min()), int(end_s.min()))
    last = (1 << _TIME_BITS) - 1

    def at(instant: NDArray[np.int64], member: slice | NDArray[np.bool_]) -> NDArray[np.uint64]:
        keys = (group[member] >> bits << bits) | np.minimum(instant[member] - first, last).astype(np.uint64)
        keys.sort()
        return keys

    ends, submissions = at(end_s, undone), at(submit_s, slice(None))
    before = np.searchsorted(ends, submissions, side="right") - 1
    latest = ends[np.maximum(before, 0)]
    followed = (before >= 0) & (latest >> bits == submissions >> bits) & (submissions - latest <= late)
    return np.unique(submissions[followed] >> bits)


def _timed_sql(group: str, having: str) -> str:
    """Return the SQL of jobs that came soon after a non-success of their `group` (columns), among groups that fulfil `having`."""
    return f"""
        WITH lined_up AS (
            SELECT job, jkey, {group}, submit_s, undone,
                   lag(job) OVER earlier AS predecessor, lag(end_s) OVER earlier AS predecessor_end_s,
                   lag(undone) OVER earlier AS predecessor_undone,
                   max(coalesce(end_s, {_FAR_S})) OVER (earlier ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS quiet_from_s
            FROM soon SEMI JOIN (SELECT {group} FROM soon GROUP BY {group} HAVING {having} AND bool_or(undone)) USING ({group})
            WINDOW earlier AS (PARTITION BY {group} ORDER BY submit_s, end_s, elapsed_s, ending, job)),
        followed AS (
            SELECT *, submit_s - predecessor_end_s AS gap_s FROM lined_up
            WHERE submit_s >= quiet_from_s AND predecessor_end_s = quiet_from_s AND submit_s - predecessor_end_s <= {LATE_S}),
        habit AS (SELECT {group}, count(*) FILTER (NOT undone) AS successes FROM lined_up GROUP BY {group}),
        after_success AS (SELECT {group}, count(*) AS followed FROM followed WHERE NOT predecessor_undone GROUP BY {group})
        SELECT f.job, f.jkey, b.name_hash, f.predecessor, a.jkey AS predecessor_jkey, a.name_hash AS predecessor_name_hash, f.gap_s,
               (CASE WHEN f.gap_s <= {SOON_S} THEN 0.8 ELSE 0.5 END)
               * (1 - coalesce(s.followed, 0) / (h.successes + 1)) AS confidence
        FROM followed f JOIN habit h USING ({group}) LEFT JOIN after_success s USING ({group})
        JOIN jobs a ON a.job = f.predecessor JOIN jobs b ON b.job = f.job
        WHERE predecessor_undone AND confidence >= {TRUSTED_CONFIDENCE}"""


# The last number in a name, and the name without it, of the few jobs where they matter.
_NAMES = """
    asked AS (
        SELECT jkey FROM further WHERE name_hash <> predecessor_name_hash
        UNION SELECT predecessor_jkey FROM further WHERE name_hash <> predecessor_name_hash),
    counters AS (
        SELECT jkey, try_cast(regexp_extract(max(name), '([0-9]+)[^0-9]*$', 1) AS BIGINT) AS counter,
               regexp_replace(max(name), '[0-9]+([^0-9]*)$', '#\\1') AS rest
        FROM ordered SEMI JOIN asked USING (jkey) GROUP BY jkey)"""

# A job that names its predecessor may have been submitted together with it, and the predecessor may never have started.
_NAMED = """
    wanted AS (
        SELECT job, wid, fkey, submit_s, start_s, unnest(string_split(depends_on, ',')) AS id FROM jobs WHERE depends_on IS NOT NULL),
    named AS (
        SELECT b.job, a.job AS predecessor, 'dependency' AS kind, a.elapsed_s > 0 AND (a.ending <> 'success' OR a.near_limit) AS undone,
               b.submit_s - a.end_s AS gap_s, 0.95 AS confidence
        FROM wanted b JOIN workloads w ON w.wid = b.wid
        JOIN jobs a ON a.jkey = hash(w.cluster, trim(b.id)) AND a.fkey = b.fkey AND a.job <> b.job
        WHERE coalesce(b.start_s >= a.end_s, true)
        QUALIFY row_number() OVER (PARTITION BY a.job ORDER BY b.submit_s, b.start_s, b.job) = 1)"""


def _make_threads(connection: duckdb.DuckDBPyConnection) -> None:
    """Follow the links, and take apart again what turns out to be a pipeline.

    Jobs that wait for each other may be the segments of one work, submitted in advance, or the stages of a pipeline. Where some
    segment ended at its limit and the next went on, they are segments, and those that found nothing left to do belong to
    them; else a job that waited for a success is a work of its own.
    """
    _follow_links(connection)
    connection.execute("""
        DELETE FROM links WHERE NOT undone AND predecessor NOT IN (
            SELECT job FROM threads WHERE thread IN (
                SELECT thread FROM links JOIN threads ON threads.job = links.predecessor JOIN jobs ON jobs.job = links.predecessor
                WHERE links.kind = 'dependency' AND links.undone AND jobs.near_limit))""")
    _follow_links(connection)


def _follow_links(connection: duckdb.DuckDBPyConnection) -> None:
    """Number the jobs of each thread from its first. No job has two predecessors or successors, so that no walk can go round."""
    connection.execute("""
        CREATE OR REPLACE TABLE threads AS
        WITH RECURSIVE walk(job, thread, seq) AS (
            SELECT DISTINCT predecessor, predecessor, 0 FROM links WHERE predecessor NOT IN (SELECT job FROM links)
            UNION ALL
            SELECT links.job, walk.thread, walk.seq + 1 FROM walk JOIN links ON links.predecessor = walk.job)
        FROM walk""")
