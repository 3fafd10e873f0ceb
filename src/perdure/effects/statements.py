"""The ledger's SQL and its migrations, for both backends. Text comes from our own column names; values are always bound.

The types are names that PostgreSQL knows and that SQLite reads as whole numbers, reals and text.
"""

from __future__ import annotations

import dataclasses

from perdure.effects.rows import COLUMNS, Row, State

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE {prefix}effect (
            key TEXT NOT NULL PRIMARY KEY,
            state TEXT NOT NULL CHECK (state IN ('running', 'in_doubt', 'not_done', 'done')),
            inputs TEXT, result TEXT, note TEXT NOT NULL,
            attempt BIGINT NOT NULL, nonce TEXT NOT NULL, workload TEXT, epoch BIGINT, holder TEXT NOT NULL,
            lease_s DOUBLE PRECISION NOT NULL, beat BIGINT NOT NULL, beat_boot_s DOUBLE PRECISION NOT NULL,
            beat_at_s DOUBLE PRECISION NOT NULL, begun_at_s DOUBLE PRECISION NOT NULL, changed_at_s DOUBLE PRECISION NOT NULL,
            settled_by TEXT NOT NULL)""",
        # What is not done is what people look for; it is a small part of a large table.
        "CREATE INDEX {index}effect_open ON {prefix}effect (key) WHERE state <> 'done'",
        "CREATE TABLE {prefix}life (workload TEXT NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL)",
    ),
    (
        """CREATE TABLE {prefix}outbox (
            key TEXT NOT NULL PRIMARY KEY, payload TEXT NOT NULL, put_at_s DOUBLE PRECISION NOT NULL,
            not_before_s DOUBLE PRECISION NOT NULL, tries BIGINT NOT NULL, last_error TEXT NOT NULL, sent_at_s DOUBLE PRECISION)""",
        "CREATE INDEX {index}outbox_waiting ON {prefix}outbox (put_at_s, key) WHERE sent_at_s IS NULL",
    ),
)
"""Each step leads from one schema version to the next; the version is the number of steps. Steps are never edited."""

VERSION = len(MIGRATIONS)


@dataclasses.dataclass(frozen=True)
class Statements:
    """SQL for one backend: its parameter mark, and what stands before the tables' and the indices' names."""

    mark: str
    prefix: str
    index: str

    def migration(self, version: int) -> tuple[str, ...]:
        """Return the statements that lead from `version` to the next one."""
        return tuple(text.format(prefix=self.prefix, index=self.index) for text in MIGRATIONS[version])

    @property
    def get(self) -> str:
        """One row by its key."""
        return f"SELECT {', '.join(COLUMNS)} FROM {self.prefix}effect WHERE key = {self.mark}"

    @property
    def put(self) -> str:
        """Write one row, all columns."""
        updates = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS[1:])
        marks = ", ".join([self.mark] * len(COLUMNS))
        return f"INSERT INTO {self.prefix}effect ({', '.join(COLUMNS)}) VALUES ({marks}) ON CONFLICT (key) DO UPDATE SET {updates}"

    @property
    def page(self) -> str:
        """Rows after a key, in order: key, limit."""
        return f"SELECT {', '.join(COLUMNS)} FROM {self.prefix}effect WHERE key > {self.mark} ORDER BY key LIMIT {self.mark}"

    @property
    def page_of_open(self) -> str:
        """Rows that are not done after a key, in order: key, limit."""
        return (
            f"SELECT {', '.join(COLUMNS)} FROM {self.prefix}effect WHERE state <> 'done' AND key > {self.mark}"
            f" ORDER BY key LIMIT {self.mark}"
        )

    @property
    def count(self) -> str:
        """Rows by state."""
        return f"SELECT state, count(*) FROM {self.prefix}effect GROUP BY state"

    @property
    def old(self) -> str:
        """How many rows `prune` would delete."""
        return f"SELECT count(*) FROM {self.prefix}effect WHERE state IN ('done', 'not_done') AND changed_at_s < {self.mark}"

    @property
    def prune(self) -> str:
        """Delete settled rows that last changed before a time."""
        return f"DELETE FROM {self.prefix}effect WHERE state IN ('done', 'not_done') AND changed_at_s < {self.mark}"

    @property
    def get_life(self) -> str:
        """The newest epoch of a workload."""
        return f"SELECT epoch FROM {self.prefix}life WHERE workload = {self.mark}"

    @property
    def put_life(self) -> str:
        """Raise the newest epoch of a workload; never lowers it."""
        return (
            f"INSERT INTO {self.prefix}life (workload, epoch) VALUES ({self.mark}, {self.mark})"
            f" ON CONFLICT (workload) DO UPDATE SET epoch = excluded.epoch WHERE {self.prefix}life.epoch < excluded.epoch"
        )


def row_from(values: tuple[object, ...]) -> Row:
    """Make a row of a result's columns."""
    fields = dict(zip(COLUMNS, values, strict=True))
    fields["state"] = State(str(fields["state"]))
    return Row(**fields)  # type: ignore[arg-type]  # the columns are the fields, with the types of the schema


def values_of(row: Row) -> tuple[object, ...]:
    """Return the columns of a row, to be bound."""
    return tuple(str(value) if isinstance(value, State) else value for value in (getattr(row, name) for name in COLUMNS))
