"""The shared ledger: a PostgreSQL server, for processes on many hosts. The one module that uses psycopg, loaded when it is needed.

One row is guarded by an advisory lock on its key for the length of a transaction, also while there is no row yet. A
connection that breaks (the server restarted, the process was restored elsewhere) is opened again and the transaction
repeated once: every change names its holder, so that repeating one that had been committed changes nothing.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from perdure import errors
from perdure.effects import forks
from perdure.effects import postgres_schema as schema
from perdure.effects.backend import LOCK_WAIT_S, Answer, Change, Seen
from perdure.effects.epoch import Life
from perdure.effects.postgres_schema import SQL, one
from perdure.effects.rows import COLUMNS, Row, State
from perdure.effects.statements import row_from, values_of

if TYPE_CHECKING:
    import psycopg

    from perdure.effects import patient

_PAGE = 500
_LOCKS = 0x70657264  # "perd": seeds the hash of keys, so that other users of advisory locks do not meet ours
_CONNECT_S = 10
_LONGEST_LOCK_WAIT_MS = 2**31 - 1
_PATIENCE = {
    # A host that is gone is noticed whether something was sent to it or an answer is waited for.
    "connect_timeout": str(_CONNECT_S),
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "perdure-effects",
}
_SILENCE_S = 60
_SETTINGS = (
    # A server may be set to lose the last commits. One that no longer hears from us must not hold the lock for hours.
    f"SELECT set_config('lock_timeout', '{LOCK_WAIT_S:g}s', true), set_config('synchronous_commit', 'on', true),"
    f" set_config('idle_in_transaction_session_timeout', '{_SILENCE_S}s', true)"
)
"""Said in each transaction, for that alone: a pooler in transaction mode gives the next one another session."""
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_ROW_AND_CLOCK = (
    f"SELECT extract(epoch FROM clock_timestamp())::float8, {', '.join(COLUMNS)}"
    " FROM (SELECT 1) AS always LEFT JOIN perdure.effect ON key = %s"
)
_OLD_MESSAGES = "SELECT count(*) FROM perdure.outbox WHERE sent_at_s < %s"
_PRUNE_MESSAGES = "DELETE FROM perdure.outbox WHERE sent_at_s < %s"
_LOCK = f"SELECT pg_advisory_xact_lock(hashtextextended(%s, {_LOCKS}))"

_Result = TypeVar("_Result")


def library() -> Any:
    """Import psycopg. Raises `errors.MissingExtra`."""
    try:
        import psycopg
    except ImportError as error:
        raise errors.MissingExtra(
            "a ledger on PostgreSQL needs psycopg, which is not installed", hint="pip install 'perdure[postgres]'"
        ) from error
    return psycopg


class Postgres:
    """A ledger in the schema `perdure` of the database at `url`; keeps `backend.Backend`."""

    answer_s = 30.0
    """How long the server may take for one answer: a transaction takes milliseconds, and waits `LOCK_WAIT_S` for another at most."""
    long_answer_s = 3600.0
    """The same for what goes through whole tables."""

    def __init__(self, url: str, *, create: bool) -> None:
        self._psycopg = library()
        self._url = url
        self._create = create
        self._lock = threading.RLock()
        self._connection: patient.Connection | None = None
        self._is_prepared = False
        self._parents: list[psycopg.Connection[Any]] = []
        self._place, self._secrets = self._describe()
        forks.register(self)

    def __str__(self) -> str:
        return self._place

    def transact(self, key: str, life: Life | None, change: Change[Answer]) -> Answer:
        """See `backend.Backend`."""
        return self._run(lambda connection: self._transact(connection, key, life, change))

    def _transact(self, connection: psycopg.Connection[Any], key: str, life: Life | None, change: Change[Answer]) -> Answer:
        # Sent together, where libpq can (from 14): two round trips to the server instead of seven.
        with connection.pipeline() if self._psycopg.Pipeline.is_supported() else contextlib.nullcontext(), connection.transaction():
            connection.execute(_SETTINGS)
            return transact_on(connection, key, life, change)

    def read(self, key: str) -> tuple[Row | None, float]:
        """See `backend.Backend`."""

        def run(connection: psycopg.Connection[Any]) -> tuple[Row | None, float]:
            values = connection.execute(SQL.get, (key,)).fetchone()
            return (row_from(values) if values else None), one(connection, _NOW)

        return self._run(run)

    def rows(self, *, done: bool = True) -> Iterator[Row]:
        """See `backend.Backend`."""
        statement = SQL.page if done else SQL.page_of_open
        last = ""
        while True:
            found = self._run(functools.partial(_page, statement=statement, after=last))
            yield from map(row_from, found)
            if len(found) < _PAGE:
                return
            last = found[-1][0]

    def count(self) -> dict[State, int]:
        """See `backend.Backend`."""
        return self._run(
            lambda connection: {State(state): number for state, number in connection.execute(SQL.count)}, answer_s=self.long_answer_s
        )

    def prune(self, before_s: float, *, dry_run: bool) -> int:
        """See `backend.Backend`. Messages of the outbox that were sent before are among them."""

        def run(connection: psycopg.Connection[Any]) -> int:
            if dry_run:
                return int(one(connection, SQL.old, before_s)) + int(one(connection, _OLD_MESSAGES, before_s))
            with connection.transaction():
                connection.execute(_SETTINGS)
                return connection.execute(SQL.prune, (before_s,)).rowcount + connection.execute(_PRUNE_MESSAGES, (before_s,)).rowcount

        return self._run(run, answer_s=self.long_answer_s)

    def now_s(self) -> float:
        """See `backend.Backend`."""
        return self._run(lambda connection: float(one(connection, _NOW)))

    def twin(self) -> Postgres:
        """See `backend.Backend`."""
        return Postgres(self._url, create=self._create)

    def close(self) -> None:
        """See `backend.Backend`."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def after_fork(self) -> None:
        """Begin anew in a forked child, which must neither use its parent's connection nor say goodbye on it."""
        self._lock = threading.RLock()
        if self._connection is not None:
            self._parents.append(self._connection)
            self._connection = None

    def prepare(self) -> None:
        """Make sure that the tables are there, before a connection of the caller's meets them."""
        if not self._is_prepared:
            self.count()

    def session(self, run: Callable[[psycopg.Connection[Any]], _Result], *, answer_s: float | None = None) -> _Result:
        """Run `run` with a connection in autocommit, not repeated when the connection breaks.

        The server may take `answer_s` for each answer; None: `self.answer_s`.
        """
        with self._lock, forks.held_off():
            try:
                with self._translated():
                    connection = self._connected()
                    connection.answer_s = self.answer_s if answer_s is None else answer_s
                    return run(connection)
            finally:
                if self._connection is not None and self._connection.closed:
                    self._connection = None  # it broke

    @contextlib.contextmanager
    def apart(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection that nobody else uses, and close it."""
        self.prepare()
        with self._translated():
            connection = self._open()
            try:
                yield connection
            finally:
                connection.close()

    def _run(self, run: Callable[[psycopg.Connection[Any]], _Result], *, answer_s: float | None = None) -> _Result:
        with self._lock:
            was_open = self._connection is not None
            try:
                return self.session(run, answer_s=answer_s)
            except errors.LedgerUnavailable:
                if not was_open or self._connection is not None:
                    raise
            # The old connection was broken; a new one may work at once.
            return self.session(run, answer_s=answer_s)

    def _connected(self) -> patient.Connection:
        if self._connection is None:
            connection = self._open()
            try:
                schema.migrate(connection, create=self._create, place=self._place)
            except BaseException:
                connection.close()
                raise
            self._connection, self._is_prepared = connection, True
        return self._connection

    def _open(self) -> patient.Connection:
        from perdure.effects import patient

        options = _PATIENCE | self._psycopg.conninfo.conninfo_to_dict(self._url)
        # Statements are not prepared: a pooler in transaction mode would not find them again.
        connection = patient.Connection.connect(**options, autocommit=True, prepare_threshold=None)
        # Whatever the database is set to: who has waited for a lock must see what its holder wrote.
        connection.isolation_level = self._psycopg.IsolationLevel.READ_COMMITTED
        connection.answer_s = self.long_answer_s  # until `session` says otherwise: tables may be made first
        return connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        psycopg = self._psycopg
        try:
            yield
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
            raise errors.LedgerLocked(f"the ledger {self._place} is locked by another transaction", hint="try again") from None
        except psycopg.errors.DiskFull:
            raise errors.LedgerUnavailable(f"there is no room for the ledger {self._place}", hint="free some space on the server") from None
        except psycopg.errors.ReadOnlySqlTransaction as error:
            self.close()  # the server gave its place to another one: a new connection may lead there
            raise errors.LedgerUnavailable(
                f"the ledger {self._place} takes no writes: {self._safe(error)}", hint="check that the address leads to the primary server"
            ) from None
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise errors.LedgerUnavailable(
                f"the ledger {self._place} does not answer: {self._safe(error)}", hint="check that the server runs and lets you in"
            ) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise errors.LedgerError(
                f"the ledger {self._place}: {self._safe(error)}",
                hint="let an owner of the database run: CREATE SCHEMA perdure AUTHORIZATION you",
            ) from None
        except psycopg.Error as error:
            # Errors of the library may quote the connection's text, with the password: the chain ends here.
            raise errors.LedgerError(f"the ledger {self._place}: {self._safe(error)}") from None

    def _safe(self, error: Exception) -> str:
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def _describe(self) -> tuple[str, tuple[str, ...]]:
        """Return the place for people, and what must never be shown."""
        try:
            parts = self._psycopg.conninfo.conninfo_to_dict(self._url)
        except self._psycopg.Error:
            # The library's message quotes the text, and the password is somewhere in it.
            raise errors.UsageError(
                "the ledger's address is not one of PostgreSQL",
                hint="write postgresql://USER@HOST:PORT/DATABASE; percent-encode special characters",
            ) from None
        place = f"postgresql://{parts.get('host', '')}{':' + str(parts['port']) if 'port' in parts else ''}/{parts.get('dbname', '')}"
        quoted = re.findall(r"//[^/@]*?:([^/@]+)@", self._url)
        return place, tuple(str(secret) for secret in (parts.get("password"), parts.get("sslpassword"), *quoted) if secret)


class Borrowed(Postgres):
    """The same ledger over a connection of the caller's, in the caller's transaction; psycopg's exceptions pass."""

    def __init__(self, owner: Postgres, connection: psycopg.Connection[Any]) -> None:
        self._place = str(owner)
        self._borrowed = connection

    def _transact(self, connection: psycopg.Connection[Any], key: str, life: Life | None, change: Change[Answer]) -> Answer:
        return transact_on(connection, key, life, change)

    def _run(self, run: Callable[[psycopg.Connection[Any]], _Result], *, answer_s: float | None = None) -> _Result:  # noqa: ARG002
        return run(self._borrowed)


def transact_on(connection: psycopg.Connection[Any], key: str, life: Life | None, change: Change[Answer]) -> Answer:
    """Let `change` decide on the row of `key` inside `connection`'s transaction. The lock on the key is held until that ends."""
    with connection.transaction():
        connection.execute(_LOCK, (key,))
        # Shared: many steps of one life at once; a newer life that raises the epoch waits for those that have begun.
        found = connection.execute(f"{SQL.get_life} FOR SHARE", (life.workload,)) if life else None
        # One statement for row and clock; both wait for the lock, since a statement sees what was committed when it began.
        now_s, *values = connection.execute(_ROW_AND_CLOCK, (key,)).fetchone() or (0.0,)
        highest = next(iter(found.fetchone() or (None,))) if found else None
        row, answer = change(Seen(row_from(tuple(values)) if values[0] is not None else None, highest, now_s))
        if row is not None:
            connection.execute(SQL.put, values_of(row))
        if life and (highest is None or life.epoch > highest):
            connection.execute(SQL.put_life, (life.workload, life.epoch))
    return answer


@contextlib.contextmanager
def shared(connection: Any, wait_s: float) -> Iterator[None]:
    """Open a savepoint in the caller's transaction, that waits `wait_s` for locks.

    The caller commits; a connection in autocommit without an open transaction gets one of its own.

    Inside, a commit is durable even on a server that is set to lose the last ones. Raises `errors.EffectBusy` when a
    lock is not given in time; every other exception passes, after a roll-back.
    """
    psycopg = library()
    if not isinstance(connection, psycopg.Connection):
        raise errors.UsageError(
            f"connection= takes an open psycopg.Connection, not {type(connection).__name__}",
            hint="asynchronous connections cannot be shared",
        )
    try:
        # Outside of autocommit, this begins the caller's transaction: the next line makes a savepoint in it, and the caller commits.
        before = one(connection, "SELECT current_setting('lock_timeout')")
        with connection.transaction():
            connection.execute(
                "SELECT set_config('lock_timeout', %s, true), set_config('synchronous_commit', 'on', true)",
                (f"{max(1, int(min(wait_s * 1000, _LONGEST_LOCK_WAIT_MS)))}ms",),
            )
            yield
            connection.execute("SELECT set_config('lock_timeout', %s, true)", (before,))
    except psycopg.errors.LockNotAvailable as error:
        raise errors.EffectBusy("another transaction is doing the step", hint="roll back and try again") from error


def _page(connection: psycopg.Connection[Any], *, statement: str, after: str) -> list[Any]:
    return connection.execute(statement, (after, _PAGE)).fetchall()
