"""Records made in Python, into the table of attempts in batches. Called by the readers whose sources DuckDB cannot split.

A record is a mapping from canonical fields to text; all of a batch share the same fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from perdure.history import convert, table
from perdure.history.summary import Tally

if TYPE_CHECKING:
    import duckdb

BATCH = 50_000
Record = tuple[int, Mapping[str, str]]
"""Line or record number, and the texts by canonical field; a field that is missing is blank."""


def append(
    connection: duckdb.DuckDBPyConnection,
    records: Iterable[Record],
    fields: Sequence[str],
    options: convert.Options,
    *,
    source: str,
    tally: Tally,
) -> None:
    """Convert `records` and append those that are attempts to the table; count the others in `tally` by reason."""
    iterator = iter(records)
    columns = {name: f"c{index}" for index, name in enumerate(fields)}
    while batch := list(islice(iterator, BATCH)):
        register(connection, "perdure_batch", columns, batch)
        test = f"coalesce({convert.is_attempt(columns)}, false)"
        reason = convert.reason(columns, {})
        counts = connection.execute(f"SELECT CASE WHEN {test} THEN 'attempt' ELSE {reason} END, count(*) FROM perdure_batch GROUP BY 1")
        for kind, count in counts.fetchall():
            if kind == "attempt":
                tally.attempts += count
            elif kind == "unreadable":
                _quote(connection, columns, test, reason, tally)
            else:
                tally.skipped[kind] += count
        query = convert.attempts(columns, "perdure_batch", options, source=quoted(source), line="line", where=test)
        table.append(connection, query)
        connection.unregister("perdure_batch")


def register(connection: duckdb.DuckDBPyConnection, name: str, columns: Mapping[str, str], batch: Sequence[Record]) -> None:
    """Make a batch visible to SQL as a table of text columns and ``line``."""
    import numpy as np

    data = {}
    for field, column in columns.items():
        data[column] = np.empty(len(batch), dtype=object)
        data[column][:] = [record.get(field) or None for _, record in batch]
    connection.register(name, {**data, "line": np.array([line for line, _ in batch], dtype=np.int64)})


def _quote(connection: duckdb.DuckDBPyConnection, columns: Mapping[str, str], test: str, reason: str, tally: Tally) -> None:
    cells = ", ".join(columns.values())
    rows = connection.execute(f"SELECT line, concat_ws(' ', {cells}) FROM perdure_batch WHERE NOT {test} AND ({reason}) = 'unreadable'")
    for line, text in rows.fetchall():
        tally.refuse(line, text, "it has no job id or no state")


def quoted(text: str) -> str:
    """Return a text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"
