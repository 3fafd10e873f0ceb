"""Look for what is left of the original: every text of the output against every word of the input, and every number that names.

Works on the written file, not on what was meant to be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.history import names
from perdure.history.anonymise import tables, words
from perdure.model import attempt

if TYPE_CHECKING:
    import duckdb

_TEXTS = tuple(column.name for column in attempt.COLUMNS if column.sql == "VARCHAR")
_AMOUNT = re.compile(r"[0-9]+[kmgt]?b?", re.ASCII)
_NUMBERED = ("job_id", "raw_id", "depends_on")
_COUNTED = frozenset({*_NUMBERED, "submit_line", "gpu_type"})
# There are as many ids as rows, and their numbers are checked as numbers: only what is not a number is a word.
_BLOCKS_OF = dict.fromkeys(_NUMBERED, "NOT regexp_full_match(block, '[0-9]+')")
_EXACT = ("cluster", "user", "account", "partition", "qos", "name", "work_dir", "job_id", "raw_id")
"""Columns in which two values must not become one, nor one two. Lists of nodes may: `a,b` and `b,a` are the same nodes."""


class Proof(msgspec.Struct, frozen=True):
    """What was looked at, all without a find."""

    words: int
    """Words of the original that were looked for."""
    numbers: int
    """User ids, job numbers and database indexes of the original that were looked for."""
    texts: int
    """Different texts of the output in which they were looked for."""
    cells: int
    """Cells of the output that hold them."""


def check(connection: duckdb.DuckDBPyConnection, output: str, *, originals: frozenset[str], uids: frozenset[int]) -> Proof:
    """Check the view `output` against ``attempts`` and the tables of `tables.Tables`.

    Raises `errors.Findings`, naming the column but not the word, when something is left or the structure is not the same.
    """
    for column in _TEXTS:
        if any(_is_left(text.casefold(), column, originals) for text in _wholes(connection, column, output)) or any(
            _is_left(word, column, originals) or _is_uid(word, column, uids)
            for block in tables.blocks(connection, column, table=output, where=_BLOCKS_OF.get(column, "true"))
            for word in words.spans(block)
        ):
            raise _found(f"a word of the original is left in the column {column}")
    _check_numbers(connection, output)
    _check_structure(connection, output)
    different = " + ".join(f'count(DISTINCT "{column}")' for column in _TEXTS)
    texts = tables.read_numbers(connection, f"SELECT {different} FROM {output}")[0]
    filled = " + ".join(f'count("{column}")' for column in _TEXTS)
    cells = tables.read_numbers(connection, f"SELECT {filled} FROM {output}")[0]
    numbers = tables.read_numbers(connection, "SELECT (SELECT count(*) FROM new_number) + (SELECT count(*) FROM new_db_index)")[0]
    return Proof(words=len(originals), numbers=len(uids) + numbers, texts=texts, cells=cells)


def _wholes(connection: duckdb.DuckDBPyConnection, column: str, output: str) -> Iterator[str]:
    """Yield the texts of a column as they stand, and what they are put together of."""
    if column in _NUMBERED:
        return
    yield from tables.distinct(connection, column, table=output)
    if column in {"work_dir", "submit_line", "node_list"}:
        yield from tables.pieces(connection, column, r"[\s/=:,]+", table=output)


def _is_left(word: str, column: str, originals: frozenset[str]) -> bool:
    return word in originals and not (column == "submit_line" and _AMOUNT.fullmatch(word) is not None)


def _is_uid(word: str, column: str, uids: frozenset[int]) -> bool:
    # Amounts on a command line, ids (counted, and checked as numbers) and GPU models may well be the number of a user.
    return column not in _COUNTED and word.isdigit() and words.SHORTEST <= len(word) < 19 and int(word) in uids


def _check_numbers(connection: duckdb.DuckDBPyConnection, output: str) -> None:
    """No number that names somebody or something is one of the original's; root's 0 is nobody's."""
    for column, old in {
        "uid": "new_uid", "canceller_uid": "new_uid", "array_job": "new_number", "het_job": "new_number", "db_index": "new_db_index",
    }.items():  # fmt: skip
        if connection.execute(f"SELECT 1 FROM {output} JOIN {old} ON {column} = old WHERE old <> 0 OR {column} <> 0 LIMIT 1").fetchone():
            raise _found(f"a number of the original is left in the column {column}")
    for column in ("job_id", "raw_id"):
        if connection.execute(
            f"SELECT 1 FROM {output} JOIN new_number ON try_cast(regexp_extract({column}, '^[0-9]+') AS BIGINT) = old LIMIT 1"
        ).fetchone():
            raise _found(f"a number of the original is left in the column {column}")


def _check_structure(connection: duckdb.DuckDBPyConnection, output: str) -> None:
    """As many rows and as many different values as before, and names that are as alike as before."""
    counts = ", ".join(f'count("{column}"), count(DISTINCT "{column}")' for column in (*_EXACT, "uid", "canceller_uid", "db_index"))
    counted = f"count(*), {counts}, count(DISTINCT (raw_id, submit)), count(array_task), count(het_offset), count(depends_on)"
    before = tables.read_numbers(connection, f"SELECT {counted} FROM attempts")
    after = tables.read_numbers(connection, f"SELECT {counted} FROM {output}")
    old, new = names.normalise_sql("old"), names.normalise_sql("new")
    alike = tables.read_numbers(
        connection,
        f"SELECT count(DISTINCT a), count(DISTINCT b), count(DISTINCT (a, b)) FROM (SELECT {old} AS a, {new} AS b FROM new_name)",
    )
    if before != after or len(set(alike)) != 1:
        raise _found("the structure is not that of the original")


def _found(what: str) -> errors.Findings:
    return errors.Findings(
        f"anonymising failed its own proof: {what}; nothing was written", hint="this is a fault in Perdure: please report it"
    )
