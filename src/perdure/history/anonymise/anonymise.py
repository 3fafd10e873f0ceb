"""Anonymise a history: rewrite it, prove that nothing is left, and only then put it where it was asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.base import files
from perdure.history import table
from perdure.history.anonymise import proof, tables
from perdure.history.anonymise.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    import duckdb

DROPPED = ("source", "line")
"""Columns that are emptied. Comments, Extra and WCKey never come into the attempts table."""


class Anonymised(msgspec.Struct, frozen=True):
    """What was done."""

    rows: int
    proof: proof.Proof
    unique_sizes: int
    """Sizes (nodes and GPUs) that one user alone has."""
    unique_size_attempts: int
    """Attempts of those sizes; with `coarsened`, the ones whose size was rounded."""
    coarsened: bool


def anonymise(connection: duckdb.DuckDBPyConnection, output: str | os.PathLike[str], *, key: bytes, coarsen: bool = False) -> Anonymised:
    """Write the table or view ``attempts`` of `connection`, anonymised with `key`, to the attempts file `output`.

    `coarsen` rounds the sizes that one user alone has to powers of two (and drops the node lists of such attempts): figures by
    size then change.

    Raises `errors.InputEmpty` for a history without attempts, `errors.Findings` when the proof fails, `errors.OutputError`;
    `output` is untouched then.
    """
    rows = tables.read_numbers(connection, "SELECT count(*) FROM attempts")[0]
    if rows == 0:
        raise errors.InputEmpty("the history holds no attempts: there is nothing to anonymise")
    rare = tables.read_numbers(connection, f"SELECT count(*), coalesce(sum(attempts), 0)::BIGINT FROM ({tables.RARE_SIZES})")
    originals, uids = tables.read_words(connection), tables.read_uids(connection)
    made = tables.Tables(connection, Pseudonyms(key, originals), uids)
    made.build()
    with files.replacing(output) as temporary:
        table.copy_attempts(connection, temporary, query=made.query(coarsen=coarsen))
        found = _prove(connection, temporary, originals, uids)
    return Anonymised(rows, found, rare[0], rare[1], coarsen)


def _prove(connection: duckdb.DuckDBPyConnection, written: Path, originals: frozenset[str], uids: frozenset[int]) -> proof.Proof:
    literal = "'" + str(written).replace("'", "''") + "'"
    connection.execute(f"CREATE OR REPLACE TEMP VIEW anonymised AS SELECT * FROM read_parquet({literal})")
    try:
        return proof.check(connection, "anonymised", originals=originals, uids=uids)
    finally:
        connection.execute("DROP VIEW anonymised")
