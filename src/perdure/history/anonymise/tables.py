"""Rewrite a whole attempts table in DuckDB: each distinct value is mapped once, in Python, and joined back.

Ids and database indexes, of which there are as many as rows, are renumbered in SQL alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from perdure.history.anonymise import nodes, submission, texts, words
from perdure.history.anonymise.pseudonyms import Pseudonyms
from perdure.model import attempt

if TYPE_CHECKING:
    import duckdb

FIRST_ID = 1_000_000_000
"""New ids begin here: beyond Slurm's largest (67,043,328), so that no new one is an old one."""
IDENTITIES = ("cluster", "user", "account", "partition", "qos", "failed_node", "gpu_type")
"""Columns whose whole value names somebody or something."""
FREE_TEXTS = ("name", "work_dir", "submit_line", "node_list")
_CHUNK = 100_000
_ID = r"^([0-9]{1,18})((_[0-9]+|_\[[0-9,:%.\-]*\]|\+[0-9]+)*)$"
"""Slurm's ids: 12, 12_3, 12_[4-9%2], 12+1. The first number is the job's; the rest counts within it."""
_MAPPED = (*IDENTITIES, *FREE_TEXTS, "state", "state_flags", "depends_on", "job_id", "raw_id", "uid")


def read_words(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """Return every word of ``attempts`` that could point to somebody, in lower case; public words are left out."""
    found: set[str] = set()
    for column in (*IDENTITIES[:-1], *FREE_TEXTS, "source", "job_id", "raw_id", "state", "state_flags", "depends_on"):
        for block in blocks(connection, column, where=f"regexp_matches(block, '{words.LETTERS[:-1]}{{{words.SHORTEST}}}')"):
            found |= words.revealing(block)
    for column in IDENTITIES[:-1]:
        found |= _names(part for text in distinct(connection, column) for part in (text, *text.split(",")))
    for model in distinct(connection, "gpu_type"):
        if not texts.is_public_gpu(model):
            found |= words.revealing(model) | _names([model])
    found |= _names(pieces(connection, "work_dir", "/"))
    found |= _names(name for text in distinct(connection, "node_list") for name in nodes.expand(text))
    return frozenset(found - words.public())


def _names(parts: Iterable[str]) -> set[str]:
    return {part.casefold() for part in parts if len(part) >= words.SHORTEST and not part.isdigit()}


def read_uids(connection: duckdb.DuckDBPyConnection) -> frozenset[int]:
    """Return all user ids of ``attempts``: of owners and of those who cancelled."""
    rows = connection.execute("SELECT DISTINCT unnest([uid, canceller_uid]) FROM attempts").fetchall()
    return frozenset(row[0] for row in rows if row[0] is not None)


def distinct(connection: duckdb.DuckDBPyConnection, column: str, *, table: str = "attempts") -> Iterator[str]:
    """Yield the distinct texts of a column, in no order. `connection` may not be used until the last was taken."""
    yield from _column(connection, f'SELECT DISTINCT "{column}" FROM {table} WHERE "{column}" IS NOT NULL')


def blocks(connection: duckdb.DuckDBPyConnection, column: str, *, table: str = "attempts", where: str = "true") -> Iterator[str]:
    """Yield the distinct `words.BLOCK` of a column for which the SQL `where` over ``block`` is true; see `distinct`."""
    every = f"""SELECT DISTINCT unnest(regexp_extract_all("{column}", '{words.BLOCK}')) AS block FROM {_once(column, table)}"""
    yield from _column(connection, f"SELECT block FROM ({every}) WHERE {where}")


def pieces(connection: duckdb.DuckDBPyConnection, column: str, separators: str, *, table: str = "attempts") -> Iterator[str]:
    """Yield the distinct pieces of a column between `separators`, a regular expression; see `distinct`."""
    yield from _column(
        connection, f"""SELECT DISTINCT unnest(regexp_split_to_array("{column}", '{separators}')) FROM {_once(column, table)}"""
    )


def _once(column: str, table: str) -> str:
    """SQL: the distinct texts of a column that hold more than numbers and what stands between them: ids are checked as numbers."""
    numbers = f"""NOT regexp_full_match("{column}", '[0-9_,:%.+\\[\\]-]*')""" if column in {"job_id", "raw_id", "depends_on"} else "true"
    return f'(SELECT DISTINCT "{column}" FROM {table} WHERE {numbers})'


def _column(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[str]:
    cursor = connection.execute(query)
    while rows := cursor.fetchmany(_CHUNK):
        for row in rows:
            yield row[0]


def read_numbers(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    """Return the one row of whole numbers that `query` asks for."""
    rows: list[tuple[int, ...]] = connection.execute(query).fetchall()
    return rows[0]


class Tables:
    """Makes the tables ``new_COLUMN`` (old, new) beside ``attempts``, and the query that joins them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, pseudonyms: Pseudonyms, uids: frozenset[int]) -> None:
        self._connection = connection
        self._pseudonyms = pseudonyms
        self._uids = uids

    def build(self) -> None:
        """Make all tables."""
        self._number_ids()
        self._number_db_indexes()
        name = self._pseudonyms
        for column in ("cluster", "user", "account", "partition", "qos"):
            self._map(column, functools.partial(texts.listed, column, pseudonyms=name))
        self._map("gpu_type", lambda text: texts.gpu_model(text, name))
        self._map("state", lambda text: texts.state(text, name))
        self._map("state_flags", lambda text: texts.state(text, name))
        self._map("work_dir", lambda text: texts.path(text, name))
        jobs = texts.rename_jobs(distinct(self._connection, "name"), name, self._uids)
        self._store("name", "VARCHAR", jobs)
        self._map_nodes()
        rewriter = submission.Rewriter(name, self._read_numbers())
        self._map("submit_line", rewriter.rewrite)
        self._map("depends_on", rewriter.dependency)
        self._store("uid", "BIGINT", name.uids(self._uids))

    def query(self, *, coarsen: bool) -> str:
        """SQL: the anonymised rows, in the order of their submission, with all columns of the attempts table."""
        shift = f"to_seconds({self._pseudonyms.shift_s()})"
        expressions = {column: f'"new_{column}".new' for column in _MAPPED}
        expressions |= {column: f"""attempts."{column}" + {shift}""" for column in ("submit", "eligible", "start", "end")}
        expressions |= {
            "canceller_uid": "canceller.new",
            "array_job": "arrays.new",
            "het_job": "groups.new",
            "db_index": "new_db_index.new",
            "source": "NULL",
            # Where a record has no id of its own, its line is its identity.
            "line": "CASE WHEN attempts.raw_id IS NULL AND attempts.job_id IS NULL THEN row_number() OVER () END",
        }
        if coarsen:
            rare = "coarse.rare IS NOT NULL"
            expressions |= {
                column: f"CASE WHEN {rare} AND attempts.{column} > 0 THEN 2 ** round(log2(attempts.{column})) ELSE attempts.{column} END"
                for column in ("nodes", "cpus", "gpus")
            }
            expressions["node_list"] = f"CASE WHEN {rare} THEN NULL ELSE {expressions['node_list']} END"
        columns = ", ".join(
            f'CAST({expressions.get(column.name, f"""attempts."{column.name}" """)} AS {column.sql}) AS "{column.name}"'
            for column in attempt.COLUMNS
        )
        joins = [f'LEFT JOIN "new_{column}" ON attempts."{column}" = "new_{column}".old' for column in (*_MAPPED, "db_index")]
        joins += [
            "LEFT JOIN new_uid canceller ON attempts.canceller_uid = canceller.old",
            "LEFT JOIN new_number arrays ON attempts.array_job = arrays.old",
            "LEFT JOIN new_number groups ON attempts.het_job = groups.old",
        ]
        if coarsen:
            joins.append(
                f"LEFT JOIN (SELECT *, true AS rare FROM ({RARE_SIZES})) coarse"
                " ON attempts.nodes IS NOT DISTINCT FROM coarse.nodes AND attempts.gpus IS NOT DISTINCT FROM coarse.gpus"
            )
        return f"SELECT {columns} FROM attempts {' '.join(joins)} ORDER BY attempts.submit, attempts.raw_id, attempts.start"

    def _map(self, column: str, rewrite: Callable[[str], str]) -> None:
        self._store(column, "VARCHAR", {text: rewrite(text) for text in sorted(distinct(self._connection, column))})

    def _map_nodes(self) -> None:
        """Nodes of lists and failed nodes are numbered together."""
        lists = sorted(distinct(self._connection, "node_list"))
        failed = sorted(distinct(self._connection, "failed_node"))
        known = {name for text in (*lists, *failed) for name in nodes.expand(text)}
        new = nodes.rename(known, self._pseudonyms, self._uids)
        self._store("node_list", "VARCHAR", {text: nodes.rewrite(text, new) for text in lists})
        self._store("failed_node", "VARCHAR", {text: nodes.rewrite(text, new) for text in failed})

    def _number_ids(self) -> None:
        """Number all jobs anew, in order, whichever column names them; then make the ids of them."""
        depends = "SELECT DISTINCT depends_on FROM attempts WHERE depends_on IS NOT NULL"
        self._connection.execute(f"""
            CREATE OR REPLACE TEMP TABLE new_number AS
            SELECT old, greatest({FIRST_ID}, 10 ** ceil(log10(max(old) OVER () + 1)))::BIGINT + row_number() OVER (ORDER BY old) AS new
            FROM (SELECT try_cast(regexp_extract(unnest([job_id, raw_id]), '{_ID}', 1) AS BIGINT) AS old FROM attempts
                  UNION SELECT array_job FROM attempts UNION SELECT het_job FROM attempts
                  UNION SELECT unnest(regexp_extract_all(depends_on, '[0-9]{{1,18}}'))::BIGINT FROM ({depends}))
            WHERE old IS NOT NULL""")
        for column in ("job_id", "raw_id"):
            self._connection.execute(f"""
                CREATE OR REPLACE TEMP TABLE new_{column} AS
                SELECT id AS old, new_number.new || rest AS new
                FROM (SELECT id, regexp_extract(id, '{_ID}', 1)::BIGINT AS number, regexp_extract(id, '{_ID}', 2) AS rest
                      FROM (SELECT DISTINCT {column} AS id FROM attempts) WHERE regexp_matches(id, '{_ID}'))
                JOIN new_number ON new_number.old = number""")
            others = self._connection.execute(
                f"SELECT DISTINCT {column} FROM attempts WHERE {column} IS NOT NULL AND NOT regexp_matches({column}, '{_ID}') ORDER BY 1"
            ).fetchall()
            self._insert(f"new_{column}", {row[0]: self._pseudonyms.word("job", row[0]) for row in others})

    def _number_db_indexes(self) -> None:
        self._connection.execute(f"""
            CREATE OR REPLACE TEMP TABLE new_db_index AS
            SELECT old, greatest({FIRST_ID}, max(old) OVER ()) + row_number() OVER (ORDER BY old) AS new
            FROM (SELECT DISTINCT db_index AS old FROM attempts WHERE db_index IS NOT NULL)""")

    def _read_numbers(self) -> dict[int, int]:
        """Return the new numbers of the jobs that dependencies name."""
        named = {number for column in ("submit_line", "depends_on") for text in self._with_ids(column) for number in submission.ids(text)}
        self._connection.execute("CREATE OR REPLACE TEMP TABLE named (old BIGINT)")
        listed = sorted(named)
        for at in range(0, len(listed), _CHUNK):
            self._connection.execute("INSERT INTO named SELECT unnest(?::BIGINT[])", [listed[at : at + _CHUNK]])
        return dict(self._connection.execute("SELECT old, new FROM new_number SEMI JOIN named USING (old)").fetchall())

    def _with_ids(self, column: str) -> Iterator[str]:
        for text in distinct(self._connection, column):
            if column == "depends_on" or "-d" in text:  # --dependency or -d
                yield text

    def _store(self, column: str, kind: str, pairs: dict[str, str] | dict[int, int]) -> None:
        self._connection.execute(f'CREATE OR REPLACE TEMP TABLE "new_{column}" (old {kind}, new {kind})')
        self._insert(f"new_{column}", pairs, kind)

    def _insert(self, table: str, pairs: dict[str, str] | dict[int, int], kind: str = "VARCHAR") -> None:
        old, new = list(pairs.keys()), list(pairs.values())
        for at in range(0, len(old), _CHUNK):
            self._connection.execute(
                f'INSERT INTO "{table}" SELECT unnest(?::{kind}[]), unnest(?::{kind}[])', [old[at : at + _CHUNK], new[at : at + _CHUNK]]
            )


RARE_SIZES = """
    SELECT nodes, gpus, count(*) AS attempts FROM attempts WHERE elapsed_s > 0
    GROUP BY nodes, gpus HAVING count(DISTINCT "user") = 1"""
"""Sizes that one user alone has: whoever knows the size knows who it was."""
