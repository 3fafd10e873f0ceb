"""What `checks` does for a table of attempts, for compact rows: one record per attempt, and a look for what would mislead.

Called by `importer` for files that are advised on at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.history import checks, compact, table

if TYPE_CHECKING:
    import duckdb


def drop_duplicates(connection: duckdb.DuckDBPyConnection) -> int:
    """Keep the most final record of each attempt, as `checks.drop_duplicates` does. Returns how many were dropped."""
    one, total, known, first, last, unknown, others = _row(
        connection,
        "SELECT min(cluster) IS NOT DISTINCT FROM max(cluster) AND count(cluster) IN (0, count(*)), count(*), count(db_index),"
        f" min(db_index), max(db_index), count(same), count(DISTINCT same) FROM {compact.VIEW}",
    )
    if not _repeats(connection) if known and not one else others == unknown and _are_distinct(connection, known, first, last):
        return 0
    final = "(has_end AND outcome <> 'censored') DESC, CASE WHEN has_end THEN end_s END DESC NULLS LAST, elapsed_s DESC NULLS LAST"
    stored = ", ".join(f'"{name}"' for name in table.stored_columns(connection, compact.ROWS))
    connection.execute(
        f"CREATE OR REPLACE TABLE perdure_kept AS SELECT {stored} FROM {compact.VIEW}"
        f" QUALIFY row_number() OVER (PARTITION BY cluster, jkey, db_index, same ORDER BY {final}) = 1"
    )
    connection.execute(f"DROP VIEW {compact.VIEW}; DROP TABLE {compact.ROWS}; ALTER TABLE perdure_kept RENAME TO {compact.ROWS}")
    compact.publish(connection)
    return total - _row(connection, f"SELECT count(*) FROM {compact.ROWS}")[0]


def _are_distinct(connection: duckdb.DuckDBPyConnection, known: int, first: int, last: int) -> bool:
    """Tell whether the `known` database indices, `first` to `last`, are all different."""
    if not known:
        return True
    # They are given out one after the other: a bit for each is a fraction of a hash table.
    dense = last - first < min(max(_BITS_PER_INDEX * known, _FEW_BITS), _MOST_BITS)
    distinct = f"bit_count(bitstring_agg(db_index, {first}::BIGINT, {last}::BIGINT))" if dense else "count(DISTINCT db_index)"
    return _row(connection, f"SELECT {distinct} FROM {compact.VIEW}")[0] == known


_BITS_PER_INDEX, _FEW_BITS, _MOST_BITS = 16, 1 << 20, 10**9
"""Indices this much apart are compared bit by bit; the last is the limit of DuckDB."""


def _repeats(connection: duckdb.DuckDBPyConnection) -> bool:
    total, distinct = _row(connection, f"SELECT count(*), count(DISTINCT hash(cluster, jkey, db_index, same)) FROM {compact.VIEW}")
    return distinct < total


def look_over(connection: duckdb.DuckDBPyConnection) -> checks.Found:
    """Count what was found doubtful while the rows were read, as `checks.look_over` does; compact rows tell neither states nor clamped
    starts."""
    bits = (compact.CLOCK, compact.RUNAWAY, compact.MIDNIGHT, compact.CUT_OFF)
    marks = ", ".join(f"count(*) FILTER (doubts & {bit} > 0)" for bit in bits)
    groups = connection.execute(
        f"SELECT outcome::VARCHAR, count(*), count(start_s), count(*) FILTER (restarts > 0), {marks} FROM {compact.VIEW} GROUP BY outcome"
    ).fetchall()
    total, starts, restarted, clock, runaway, midnight, arrays = (sum(group[index] for group in groups) for index in range(1, 8))
    return checks.Found(
        attempts=total,
        outcomes={outcome: count for outcome, count, *_ in sorted(groups, key=lambda group: (-group[1], group[0]))},
        unknown_states={},
        dst_suspects=clock,
        runaway=runaway,
        clamped=0,
        missing_history=_missing_history(connection) if restarted else 0,
        truncated_windows=midnight if midnight > checks.MIDNIGHT_SHARE * starts else 0,
        truncated_arrays=arrays,
    )


def _missing_history(connection: duckdb.DuckDBPyConnection) -> int:
    query = f"""
        SELECT coalesce(sum(missing), 0)::BIGINT FROM (
            SELECT max(restarts) - (count(*) - 1) AS missing
            FROM {compact.VIEW} SEMI JOIN (SELECT jkey FROM {compact.VIEW} WHERE restarts > 0) USING (jkey)
            GROUP BY jkey HAVING max(restarts) > count(*) - 1)"""
    return _row(connection, query)[0]


def _row(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[int, ...]:
    row = connection.execute(sql).fetchone()
    if row is None:
        raise AssertionError("an aggregate always has one row")
    return tuple(row)
