"""The embedded ledger: one SQLite file, for the processes of one host at a time. The one module that uses sqlite3.

The file is opened for each transaction and closed after it. That costs a tenth of a millisecond beside two or three fsyncs, and
between steps a process holds no descriptor, no lock and no page of the file: it can be forked, frozen, rolled back or brought
back on another machine, and reads what is there then.

Durability: a rollback journal that is truncated at each commit, with ``synchronous=EXTRA``: when `transact` returns, journal
and file are fsynced. No write-ahead log: its shared memory does not work between hosts, and a folder that moves with a job
may be a network file system.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from perdure import errors
from perdure.effects import forks, gate, place
from perdure.effects.backend import LOCK_WAIT_S, Answer, Change, Seen
from perdure.effects.epoch import Life
from perdure.effects.identity import Surroundings
from perdure.effects.rows import Row, State
from perdure.effects.statements import VERSION, Statements, row_from, values_of

_SQL = Statements(mark="?", prefix="", index="")
_APPLICATION_ID = 0x70657266  # "perf": tells a ledger from other SQLite files
_PAGE = 500

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})


class Sqlite:
    """A ledger in the file at `path`; keeps `backend.Backend`."""

    def __init__(self, path: Path, surroundings: Surroundings, *, create: bool) -> None:
        self._path = path.absolute()  # a job may change its working directory
        self._surroundings = surroundings
        self._create = create

    def __str__(self) -> str:
        return str(self._path)

    def transact(self, key: str, life: Life | None, change: Change[Answer]) -> Answer:
        """See `backend.Backend`."""
        with self._write() as connection:
            found = connection.execute(_SQL.get_life, (life.workload,)).fetchone() if life else None
            highest = int(found[0]) if found else None
            values = connection.execute(_SQL.get, (key,)).fetchone()
            row, answer = change(Seen(row_from(values) if values else None, highest, self.now_s()))
            if row is not None:
                connection.execute(_SQL.put, values_of(row))
            if life and (highest is None or life.epoch > highest):
                connection.execute(_SQL.put_life, (life.workload, life.epoch))
        return answer

    def read(self, key: str) -> tuple[Row | None, float]:
        """See `backend.Backend`."""
        with self._open() as connection:
            values = connection.execute(_SQL.get, (key,)).fetchone()
        return (row_from(values) if values else None), self.now_s()

    def rows(self, *, done: bool = True) -> Iterator[Row]:
        """See `backend.Backend`."""
        last = ""
        while True:
            with self._open() as connection:
                found = connection.execute(_SQL.page if done else _SQL.page_of_open, (last, _PAGE)).fetchall()
            yield from map(row_from, found)
            if len(found) < _PAGE:
                return
            last = found[-1][0]

    def count(self) -> dict[State, int]:
        """See `backend.Backend`."""
        with self._open() as connection:
            return {State(state): number for state, number in connection.execute(_SQL.count)}

    def prune(self, before_s: float, *, dry_run: bool) -> int:
        """See `backend.Backend`."""
        if dry_run:
            with self._open() as connection:
                return int(connection.execute(_SQL.old, (before_s,)).fetchone()[0])
        with self._write() as connection:
            return connection.execute(_SQL.prune, (before_s,)).rowcount

    def now_s(self) -> float:
        """See `backend.Backend`."""
        return self._surroundings.wall_s()

    def twin(self) -> Sqlite:
        """See `backend.Backend`: nothing is held between calls, so it is its own."""
        return self

    def close(self) -> None:
        """See `backend.Backend`: nothing is held between calls."""

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        place.prepare(self._path, create=self._create)
        with forks.held_off(), gate.passed(), self._translated():
            connection = sqlite3.connect(
                f"file:{quote(os.fsencode(self._path))}?mode=rw", uri=True, isolation_level=None, timeout=LOCK_WAIT_S
            )
            try:
                connection.execute("PRAGMA journal_mode=TRUNCATE")
                connection.execute("PRAGMA synchronous=EXTRA")
                connection.execute("PRAGMA trusted_schema=OFF")
                self._bring_up_to_date(connection)
                yield connection
            finally:
                connection.close()

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):  # the first error is the one to tell
                        connection.execute("ROLLBACK")

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        if _numbers(connection) == (_APPLICATION_ID, VERSION):
            return
        # With the lock: another process may be making the tables, and the two numbers are read one after the other.
        connection.execute("BEGIN IMMEDIATE")
        try:
            for step in range(self._version(connection), VERSION):
                for statement in _SQL.migration(step):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={VERSION}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # the first error is the one to tell
                    connection.execute("ROLLBACK")

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the schema version, 0 for an empty file. Raises for a file of somebody else or of a newer Perdure."""
        application, version = _numbers(connection)
        is_empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if application != _APPLICATION_ID and (application or version or not is_empty):
            raise errors.LedgerCorrupt(f"{self._path} is a database of something else", hint="name a new file for the ledger")
        if version > VERSION:
            raise errors.LedgerSchema(
                f"{self._path} was made by a newer Perdure: schema {version}, this one knows {VERSION}", hint="upgrade perdure here"
            )
        return version

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: sqlite3.Error) -> errors.LedgerError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary code
        if code in _BUSY:
            return errors.LedgerLocked(
                f"the ledger {self._path} is locked by another process", hint="try again; fuser tells who holds the file"
            )
        if code == sqlite3.SQLITE_FULL:
            return errors.LedgerUnavailable(f"there is no room for the ledger {self._path}", hint="free some space and try again")
        if code == sqlite3.SQLITE_IOERR:
            return errors.LedgerUnavailable(
                f"the ledger {self._path} cannot be written or read: {error}", hint="check the disk, its space and its limits"
            )
        if code in _BROKEN:
            return errors.LedgerCorrupt(
                f"{self._path} is damaged or is not a ledger: {error}",
                hint="keep it, and bring back a copy; effects since then are in doubt",
            )
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return errors.LedgerError(
                f"the ledger {self._path} cannot be opened for writing: {error}", hint="check the owner of it and of its folder"
            )
        return errors.LedgerError(f"the ledger {self._path}: {error}")


def _numbers(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the file's application id and schema version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    return int(application), int(connection.execute("PRAGMA user_version").fetchone()[0])
