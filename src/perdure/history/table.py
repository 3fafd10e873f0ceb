"""The attempts table in DuckDB: connect, open a history, write it. Every analysis starts here.

The table is called ``attempts`` and has exactly the columns of `model.attempt.COLUMNS`. DuckDB is imported only in this
package (`perdure.history`) and in `perdure.advisor`, through this module.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from perdure import errors
from perdure.base import files
from perdure.model import attempt

if TYPE_CHECKING:
    import duckdb

METADATA_KEY = "perdure_attempts_format"


def connect(*, memory_limit: str = "2GiB", threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that spills to a private temporary folder and touches no network and no home directory.

    Raises `errors.MissingExtra` when DuckDB is not installed and `errors.SettingError` for a limit it does not understand.
    """
    try:
        import duckdb
    except ImportError as error:
        raise errors.MissingExtra("reading a history needs DuckDB, which is not installed", hint="pip install 'perdure[advise]'") from error
    options: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "memory_limit": memory_limit,
        "preserve_insertion_order": False,
    }
    if threads is not None:
        options["threads"] = threads
    try:
        connection = duckdb.connect(":memory:", config=options)
    except duckdb.Error as error:
        raise errors.SettingError(f"memory-limit or threads: {error}", hint="write it like 2GiB and 2") from error
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def create_empty(connection: duckdb.DuckDBPyConnection) -> None:
    """Create an empty ``attempts`` table."""
    columns = ", ".join(f'"{column.name}" {column.sql}' for column in attempt.COLUMNS)
    connection.execute(f"CREATE OR REPLACE TABLE attempts ({columns})")


def open_attempts(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str]) -> None:
    """Make an attempts Parquet file visible as the view ``attempts``, without reading it into memory.

    Raises `errors.InputFormat` when the file is not an attempts table or is of a newer format.
    """
    connection.execute(f"CREATE OR REPLACE VIEW attempts AS {attempts_query(connection, path)}")


def attempts_query(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str], *, name: str | None = None) -> str:
    """Check that a Parquet file is an attempts table and return a SELECT of its columns. `name`: what messages call the file.

    Raises `errors.InputFormat` when it is not, or is of a newer format.
    """
    import duckdb

    label = name or os.fspath(path)
    try:
        found = connection.execute(
            f"SELECT decode(value) FROM parquet_kv_metadata({path_literal(path)}) WHERE decode(key) = ?", [METADATA_KEY]
        ).fetchone()
    except duckdb.Error as error:
        raise errors.InputFormat(f"{label}: not a readable Parquet file", hint="import it again") from error
    if found is None:
        raise errors.InputFormat(
            f"{label}: a Parquet file, but not one of ours",
            hint="make one with: perdure history import FILES… -o attempts.parquet",
        )
    if found[0] != str(attempt.FORMAT):
        raise errors.InputFormat(
            f"{label}: attempts format {found[0]}, this Perdure reads format {attempt.FORMAT}",
            hint="update Perdure, or import the accounting files again",
        )
    columns = ", ".join(f'"{column.name}"' for column in attempt.COLUMNS)
    return f"SELECT {columns} FROM read_parquet({path_literal(path)})"


def write_attempts(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str], *, query: str = "FROM attempts") -> None:
    """Write the rows of `query` (all columns of the attempts table) to a Parquet file, atomically, readable by its owner alone.

    Raises `errors.OutputError`.
    """
    import duckdb

    columns = ", ".join(f'"{column.name}"' for column in attempt.COLUMNS)
    with files.replacing(path) as temporary:
        try:
            connection.execute(
                f"COPY (SELECT {columns} FROM ({query})) TO {_quoted(str(temporary))}"
                f" (FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{METADATA_KEY}: '{attempt.FORMAT}'}})"
            )
        except duckdb.IOException as error:
            raise errors.OutputError(f"cannot write {os.fspath(path)}: {str(error).splitlines()[0]}", hint="is the disk full?") from error


def path_literal(path: str | os.PathLike[str]) -> str:
    """Return a path to read as an SQL string. Glob characters are escaped: a history is one file, named exactly."""
    text = str(Path(path))
    return _quoted("".join(f"[{char}]" if char in "[*?" else char for char in text))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
