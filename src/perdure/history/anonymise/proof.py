"""Look for what is left of the original: every text of the output against every word of the input, and every number that names.

Works on the written file, not on what was meant to be written.
"""

from __future__ import annotations

import re
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
_COUNTED = frozenset({"submit_line", "job_id", "raw_id", "depends_on", "gpu_type"})
_EXACT = ("cluster", "user", "account", "partition", "qos", "name", "work_dir", "job_id", "raw_id", "failed_node")
"""Columns in which two values must not become one, nor one two."""


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
    texts = 0
    for column in _TEXTS:
        for text in tables.distinct(connection, column, table=output):
            texts += 1
            if _is_left(column, text, originals, uids):
                raise _found(f"a word of the original is left in the column {column}")
    _check_numbers(connection, output)
    _check_structure(connection, output)
    filled = " + ".join(f'count("{column}")' for column in _TEXTS)
    cells = tables.read_numbers(connection, f"SELECT {filled} FROM {output}")[0]
    numbers = tables.read_numbers(connection, "SELECT (SELECT count(*) FROM new_number) + (SELECT count(*) FROM new_db_index)")[0]
    return Proof(words=len(originals), numbers=len(uids) + numbers, texts=texts, cells=cells)


def _is_left(column: str, text: str, originals: frozenset[str], uids: frozenset[int]) -> bool:
    folded = text.casefold()
    if folded in originals:
        return True
    for part in re.split(r"[\s/=:,]+", folded) if column in {"work_dir", "submit_line", "node_list"} else ():
        if part in originals and not _AMOUNT.fullmatch(part):
            return True
    for word in words.spans(text):
        if word in originals and not (column == "submit_line" and _AMOUNT.fullmatch(word)):
            return True
        # Amounts on a command line, ids (counted, and checked as numbers) and GPU models may well be the number of a user.
        if column not in _COUNTED and word.isdigit() and len(word) >= words.SHORTEST and int(word) in uids:
            return True
    return False


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
            raise _found(f"a job's number is left in the column {column}")


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
