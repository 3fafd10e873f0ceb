"""The one file of state of this machine: its workloads, and what was begun and not ended. Called by `run`, `ps` and their like.

SQLite with a write-ahead log, so that `ps` reads while a supervisor writes. A commit survives the death of any process; the last ones
may be lost with the machine's power, when no workload is left either.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perdure import errors
from perdure.supervisor import wire
from perdure.supervisor.record import Operation, Workload

VERSION = 1
_APPLICATION_ID = 0x70657277  # "perw": tells this from other SQLite files
_WAIT_S = 10.0
_Record = TypeVar("_Record")


class Database:
    """The state at `path`. Not for several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = _connect(path)

    def get(self, name: str) -> Workload | None:
        """Return the workload `name`, or None."""
        with translated(self.path):
            row = self._connection.execute("SELECT record FROM workloads WHERE name = ?", (name,)).fetchone()
        return self._decode(row[0]) if row else None

    def require(self, name: str) -> Workload:
        """Return the workload `name`. Raises `errors.WorkloadMissing`."""
        found = self.get(name)
        if found is None:
            raise errors.WorkloadMissing(f"there is no workload {name!r} on this machine", hint="perdure ps lists them")
        return found

    def workloads(self) -> tuple[Workload, ...]:
        """Return all workloads by name."""
        with translated(self.path):
            rows = self._connection.execute("SELECT record FROM workloads ORDER BY name").fetchall()
        return tuple(self._decode(row[0]) for row in rows)

    def put(self, workload: Workload) -> None:
        """Remember `workload`, replacing what was known."""
        self._write("INSERT OR REPLACE INTO workloads VALUES (?, ?)", (workload.name, wire.encode(workload)))

    def forget(self, name: str) -> None:
        """Forget the workload `name` and what it had begun."""
        self._write("DELETE FROM workloads WHERE name = ?", (name,))
        self._write("DELETE FROM journal WHERE workload = ?", (name,))

    def begin(self, operation: Operation) -> Operation:
        """Note that `operation` begins; returned with its number."""
        cursor = self._write("INSERT INTO journal (workload, record) VALUES (?, ?)", (operation.workload, wire.encode(operation)))
        return msgspec.structs.replace(operation, number=cursor.lastrowid or 0)

    def amend(self, operation: Operation) -> None:
        """Note what has become known of `operation`."""
        self._write("UPDATE journal SET record = ? WHERE number = ?", (wire.encode(operation), operation.number))

    def end(self, operation: Operation) -> None:
        """Note that `operation` is over and has left nothing behind."""
        self._write("DELETE FROM journal WHERE number = ?", (operation.number,))

    def unfinished(self, name: str | None = None) -> tuple[Operation, ...]:
        """Return what was begun for the workload `name` (None: for any) and not ended, oldest first."""
        asked = "SELECT number, record FROM journal WHERE workload = coalesce(?, workload) ORDER BY number"
        with translated(self.path):
            rows = self._connection.execute(asked, (name,)).fetchall()
        return tuple(msgspec.structs.replace(self._decode_as(record, Operation), number=number) for number, record in rows)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _write(self, statement: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        with translated(self.path):
            return self._connection.execute(statement, values)

    def _decode(self, content: bytes) -> Workload:
        return self._decode_as(content, Workload)

    def _decode_as(self, content: bytes, kind: type[_Record]) -> _Record:
        try:
            record: _Record = wire.decode(content, kind)
        except msgspec.DecodeError as error:
            raise errors.InputFormat(f"{self.path} holds something that is not ours: {error}", hint="give another state folder") from error
        return record


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Database]:
    """Open the state at `path` while the block runs; made when it is missing. Raises `errors.OutputError`, `errors.Unsupported`."""
    database = Database(path)
    try:
        yield database
    finally:
        database.close()


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the file at `path` into ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise errors.OutputError(
            f"cannot use {path}: {error}", hint="see whether the disk is full or not writable, or give another state folder"
        ) from error


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite would make the file with the umask's mode.
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
    with translated(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=_WAIT_S)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA trusted_schema=OFF")
            _bring_up_to_date(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def _bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version == VERSION:
        return
    if version > VERSION:
        raise errors.Unsupported(f"{path} was made by a newer Perdure", hint="use that one, or give another state folder")
    connection.execute("BEGIN IMMEDIATE")
    if int(connection.execute("PRAGMA user_version").fetchone()[0]) < VERSION:
        connection.execute("CREATE TABLE workloads (name TEXT PRIMARY KEY, record BLOB NOT NULL) STRICT, WITHOUT ROWID")
        connection.execute("CREATE TABLE journal (number INTEGER PRIMARY KEY, workload TEXT NOT NULL, record BLOB NOT NULL) STRICT")
        connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
