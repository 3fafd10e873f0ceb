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
    import duckdb

    literal = _literal(path)
    try:
        found = connection.execute(
            "SELECT decode(value) FROM parquet_kv_metadata(" + literal + ") WHERE decode(key) = ?", [METADATA_KEY]
        ).fetchone()
    except duckdb.Error as error:
        raise errors.InputFormat(f"{os.fspath(path)}: not a readable Parquet file", hint="import it again") from error
    if found is None:
        raise errors.InputFormat(
            f"{os.fspath(path)}: a Parquet file, but not one of ours",
            hint="make one with: perdure history import FILES… -o attempts.parquet",
        )
    if int(found[0]) != attempt.FORMAT:
        raise errors.InputFormat(
            f"{os.fspath(path)}: attempts format {found[0]}, this Perdure reads format {attempt.FORMAT}",
            hint="update Perdure, or import the accounting files again",
        )
    connection.execute(f"CREATE OR REPLACE VIEW attempts AS SELECT * FROM read_parquet({literal})")


def write_attempts(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str], *, query: str = "FROM attempts") -> None:
    """Write the rows of `query` (all columns of the attempts table) to a Parquet file, atomically, readable by its owner alone.

    Raises `errors.OutputError`.
    """
    import duckdb

    columns = ", ".join(f'"{column.name}"' for column in attempt.COLUMNS)
    with files.replacing(path) as temporary:
        try:
            connection.execute(
                f"COPY (SELECT {columns} FROM ({query})) TO {_literal(temporary)}"
                f" (FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{METADATA_KEY}: '{attempt.FORMAT}'}})"
            )
        except duckdb.IOException as error:
            raise errors.OutputError(f"cannot write {os.fspath(path)}: {str(error).splitlines()[0]}", hint="is the disk full?") from error


def _literal(path: str | os.PathLike[str]) -> str:
    """A path as an SQL string. Glob characters are escaped: a history is one file, named exactly."""
    text = str(Path(path))
    for char in "[*?":
        text = text.replace(char, f"[{char}]")
    return "'" + text.replace("'", "''") + "'"
