"""The ledger's tables on PostgreSQL: made, and brought up to date, by whichever process comes first. Called by `postgres`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import errors
from perdure.effects.statements import VERSION, Statements

if TYPE_CHECKING:
    import psycopg

SQL = Statements(mark="%s", prefix="perdure.", index="")

_MIGRATION_LOCK = 0x7065726475726501
_META = (
    "SELECT 1 FROM pg_catalog.pg_class AS found JOIN pg_catalog.pg_namespace AS place ON place.oid = found.relnamespace"
    " WHERE place.nspname = 'perdure' AND found.relname = 'meta'"
)
"""Asked of the catalog's tables: `to_regclass` answers from a cache that is not looked through after a wait for an advisory lock."""


def migrate(connection: psycopg.Connection[Any], *, create: bool, place: str) -> None:
    """Bring the schema `perdure` up to this version; of several processes at once, one does it and the others wait.

    Raises `errors.LedgerMissing` when there is none and `create` is not set, and `errors.LedgerSchema` for a newer one.
    """
    if _version(connection, place) == VERSION:
        return
    with connection.transaction():
        # Held until the end, also behind a pooler. The next statement sees the tables that were made while this one waited.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
        _migrate(connection, create=create, place=place)


def _migrate(connection: psycopg.Connection[Any], *, create: bool, place: str) -> None:
    version = _version(connection, place)
    if version == 0 and not create:
        raise errors.LedgerMissing(f"there is no ledger in {place}", hint="name the database that the job uses: --ledger URL")
    if version == 0:
        connection.execute("CREATE SCHEMA IF NOT EXISTS perdure")
        connection.execute("CREATE TABLE perdure.meta (version BIGINT NOT NULL)")
        connection.execute("INSERT INTO perdure.meta VALUES (0)")
    for step in range(version, VERSION):
        for statement in SQL.migration(step):
            connection.execute(statement)
    connection.execute("UPDATE perdure.meta SET version = %s", (VERSION,))


def _version(connection: psycopg.Connection[Any], place: str) -> int:
    if one(connection, _META) is None:
        return 0
    version = int(one(connection, "SELECT version FROM perdure.meta"))
    if version > VERSION:
        raise errors.LedgerSchema(
            f"the ledger in {place} was made by a newer Perdure: schema {version}, this one knows {VERSION}", hint="upgrade perdure here"
        )
    return version


def one(connection: psycopg.Connection[Any], statement: str, *values: object) -> Any:
    """Return the one value of a query; None for no row."""
    found = connection.execute(statement, values).fetchone()
    return found[0] if found else None
