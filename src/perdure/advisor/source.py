"""Make whatever holds a history visible as ``attempts``. Called by `advise`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure import errors
from perdure.model import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    import duckdb


def open_source(
    connection: duckdb.DuckDBPyConnection,
    source: Any,
    *,
    cluster: str | None,
    tz: str,
    progress: Callable[[str, int], None] | None,
) -> tuple[str, tuple[str, ...]]:
    """Make the attempts of `source` visible on `connection`; return its name ('' for a table) and what reading it had to note.

    `source` is a path of any file that the reader takes, or a table with the columns of `model.attempt.COLUMNS` (more are
    ignored): a DuckDB relation, a pandas or polars data frame, a pyarrow table.

    Raises `errors.InputError` and its kin for what cannot be read.
    """
    if isinstance(source, (str, os.PathLike)):
        from perdure.history import importer

        request = importer.Request(cluster=cluster, tz=tz)
        summary = importer.open_for_analysis(connection, source, request, progress=progress)
        return Path(source).name, () if summary is None else summary.notes
    _open_table(connection, source)
    return "", ()


def _open_table(connection: duckdb.DuckDBPyConnection, given: Any) -> None:
    import duckdb

    if isinstance(given, duckdb.DuckDBPyRelation):
        # A relation lives in its own connection; a file is the way from one to the other that needs no further library.
        with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
            path = Path(folder) / "given.parquet"
            given.write_parquet(str(path))
            _take(connection.read_parquet(str(path)))
        return
    try:
        connection.register("given", given)
    except duckdb.Error as error:
        raise errors.UsageError(
            f"cannot read a history from {type(given).__name__}",
            hint="give a path, a DuckDB relation, or a pandas, polars or pyarrow table",
        ) from error
    _take(connection.table("given"))
    connection.unregister("given")


def _take(given: duckdb.DuckDBPyRelation) -> None:
    missing = [column.name for column in attempt.COLUMNS if column.name not in given.columns]
    if missing:
        raise errors.InputFormat(
            f"the table lacks columns of an attempts table: {', '.join(missing)}", hint="make it with: perdure history import FILES…"
        )
    columns = ", ".join(f'"{column.name}"::{column.sql} AS "{column.name}"' for column in attempt.COLUMNS)
    given.project(columns).create("attempts")
