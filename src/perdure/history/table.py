"""The attempts table in DuckDB: connect, open a history, write it. Every analysis starts here.

The table is called ``attempts`` and has exactly the columns of `model.attempt.COLUMNS`. DuckDB is imported only in this
package (`perdure.history`) and in `perdure.advisor`, through this module.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.base import files
from perdure.model import attempt

if TYPE_CHECKING:
    import duckdb

METADATA_KEY = "perdure_attempts_format"


def connect(*, memory_limit: str = "2GiB", threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that spills to a private temporary folder (in TMPDIR) and touches no network and no home directory.

    Raises `errors.MissingExtra` when DuckDB is not installed and `errors.SettingError` for a limit it does not understand.
    """
    try:
        import duckdb
    except ImportError as error:
        raise errors.MissingExtra("reading a history needs DuckDB, which is not installed", hint="pip install 'perdure[advise]'") from error
    spill = tempfile.mkdtemp(prefix="perdure-")
    options: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "memory_limit": memory_limit,
        "preserve_insertion_order": False,
        "temp_directory": spill,
    }
    if threads is not None:
        options["threads"] = threads
    try:
        connection = duckdb.connect(":memory:", config=options)
    except duckdb.Error as error:
        shutil.rmtree(spill, ignore_errors=True)
        raise errors.SettingError(f"memory-limit or threads: {error}", hint="write it like 2GiB and 2") from error
    # Also when it is never closed, at the latest when the process ends.
    weakref.finalize(connection, shutil.rmtree, spill, ignore_errors=True)
    _settle(connection)
    return connection


def beside(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Return a second connection to the same tables, for another thread."""
    cursor = connection.cursor()
    _settle(cursor)
    return cursor


def _settle(connection: duckdb.DuckDBPyConnection) -> None:
    """Set what belongs to a connection rather than to the database."""
    connection.execute("SET TimeZone = 'UTC'")
    # A relation that takes two seconds would print its progress to standard output.
    connection.execute("SET enable_progress_bar = false")
    if connection.execute("SELECT 1 FROM duckdb_optimizers() WHERE name = 'type_pushdown'").fetchone():
        # It turns a try_cast over a CSV column into a cast by the CSV reader, which refuses rows instead of giving NULL.
        connection.execute("SET disabled_optimizers = 'type_pushdown'")


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turn DuckDB's report of what the operating system refused into the OSError that it was: `base.files` explains those."""
    import duckdb

    try:
        yield
    except duckdb.IOException as error:
        number = re.search(r'"errno":"(\d+)"', str(error))
        if number:
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise OSError(errno.EIO, str(error).splitlines()[0]) from error


@contextlib.contextmanager
def room_errors() -> Iterator[None]:
    """Say what to do when reading or an analysis runs out of memory or of room to spill. Raises `errors.EnvironmentUnfit`."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise errors.EnvironmentUnfit(
            f"not enough memory or temporary space: {str(error).splitlines()[0]}",
            hint="raise memory-limit, or set TMPDIR to a folder with more room",
        ) from error
    except duckdb.IOException as error:
        raise errors.EnvironmentUnfit(
            f"cannot use temporary data: {str(error).splitlines()[0]}", hint="set TMPDIR to a folder with more room"
        ) from error


ROWS = "perdure_rows"
"""The table behind the view ``attempts`` while files are read: only the columns that a file fills. A column of NULLs costs as much
as one that holds something."""
TYPES: Mapping[str, str] = types.MappingProxyType({column.name: column.sql for column in attempt.COLUMNS})
"""SQL types of its columns."""


class Query(msgspec.Struct, frozen=True):
    """A SELECT of some columns of a table of rows, in the order of `columns`."""

    columns: tuple[str, ...]
    sql: str
    rows: str = ROWS
    """Where its rows belong."""
    kinds: Mapping[str, str] = TYPES
    """SQL types of all columns of that table."""


def begin(connection: duckdb.DuckDBPyConnection) -> None:
    """Forget what was read before."""
    found = connection.execute(
        "SELECT 'VIEW', view_name FROM duckdb_views() WHERE view_name = 'attempts'"
        f" UNION ALL SELECT 'TABLE', table_name FROM duckdb_tables() WHERE table_name IN ('attempts', '{ROWS}')"
    ).fetchall()
    for kind, name in found:
        connection.execute(f"DROP {kind} {name}")


def append(connection: duckdb.DuckDBPyConnection, query: Query) -> int:
    """Append the rows of `query` where they belong; return how many there were."""
    add_columns(connection, query.columns, rows=query.rows, kinds=query.kinds)
    names = ", ".join(f'"{name}"' for name in query.columns)
    row = connection.execute(f"INSERT INTO {query.rows} ({names}) {query.sql}").fetchone()
    return int(row[0]) if row else 0


def add_columns(connection: duckdb.DuckDBPyConnection, names: Iterable[str], *, rows: str = ROWS, kinds: Mapping[str, str] = TYPES) -> None:
    """See to it that the table `rows` has the columns `names`, and that it exists."""
    there = stored_columns(connection, rows)
    missing = [f'"{name}" {kind}' for name, kind in kinds.items() if name in set(names) - set(there)]
    if not there:
        connection.execute(f"CREATE TABLE {rows} ({', '.join(missing)})")
        return
    for column in missing:
        connection.execute(f"ALTER TABLE {rows} ADD COLUMN {column}")


def stored_columns(connection: duckdb.DuckDBPyConnection, rows: str = ROWS) -> tuple[str, ...]:
    """Return the columns that the table `rows` has; none when there is no such table."""
    found = connection.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [rows]).fetchall()
    return tuple(row[0] for row in found)


def publish(connection: duckdb.DuckDBPyConnection, *, rows: str = ROWS, view: str = "attempts", kinds: Mapping[str, str] = TYPES) -> None:
    """Make what was read visible as the view ``attempts`` (or `view`), with all columns; those that no file filled are NULL."""
    there = stored_columns(connection, rows)
    columns = ", ".join(f'"{name}"' if name in there else f'NULL::{kind} AS "{name}"' for name, kind in kinds.items())
    connection.execute(f"CREATE OR REPLACE VIEW {view} AS SELECT {columns} FROM {rows}")


def create_empty(connection: duckdb.DuckDBPyConnection) -> None:
    """Create an empty ``attempts`` table."""
    columns = ", ".join(f'"{column.name}" {column.sql}' for column in attempt.COLUMNS)
    connection.execute(f"CREATE OR REPLACE TABLE attempts ({columns})")


def open_attempts(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str]) -> None:
    """Make an attempts Parquet file visible as the view ``attempts``, without reading it into memory.

    Raises `errors.InputFormat` when the file is not an attempts table or is of a newer format.
    """
    connection.execute(f"CREATE OR REPLACE VIEW attempts AS {attempts_query(connection, path).sql}")


def attempts_query(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str], *, name: str | None = None) -> Query:
    """Check that a Parquet file is an attempts table and return a query of its columns. `name`: what messages call the file.

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
    names = tuple(column.name for column in attempt.COLUMNS)
    columns = ", ".join(f'"{name}"' for name in names)
    return Query(names, f"SELECT {columns} FROM read_parquet({path_literal(path)})")


def write_attempts(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str], *, query: str = "FROM attempts") -> None:
    """Write the rows of `query` (all columns of the attempts table) to a Parquet file, atomically, readable by its owner alone.

    Raises `errors.OutputError`.
    """
    with files.replacing(path) as temporary:
        copy_attempts(connection, temporary, query=query)


def copy_attempts(connection: duckdb.DuckDBPyConnection, path: str | os.PathLike[str], *, query: str = "FROM attempts") -> None:
    """Write the rows of `query` to a file that is not in its place yet. Raises OSError, which `base.files.replacing` explains."""
    columns = ", ".join(f'"{column.name}"' for column in attempt.COLUMNS)
    with os_errors():
        connection.execute(
            f"COPY (SELECT {columns} FROM ({query})) TO {_quoted(str(path))}"
            f" (FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{METADATA_KEY}: '{attempt.FORMAT}'}})"
        )


def path_literal(path: str | os.PathLike[str]) -> str:
    """Return a path to read as an SQL string. Glob characters are escaped: a history is one file, named exactly."""
    text = str(Path(path))
    return _quoted("".join(f"[{char}]" if char in "[*?" else char for char in text))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
