"""A simulated fleet as an attempts table, without a file in between. Called by `fleet`; for tests and benchmarks that need many fleets.

The cells are those of the text, and become attempts by the conversion that every reader uses, so that both ways give the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perdure.history import checks, convert, fields, lines, rows, table
from perdure.history.simulate.happened import Happened
from perdure.history.simulate.render import FIELDS, Renderer
from perdure.history.summary import Tally

if TYPE_CHECKING:
    import duckdb

SOURCE = "simulated"
_USED = {name.lower(): position for position, name in enumerate(FIELDS) if name.lower() in fields.USED}


def fill(connection: duckdb.DuckDBPyConnection, happened: Happened) -> None:
    """Make ``attempts`` of `connection` hold the rows of a simulation, and nothing else; `line` counts rows from 1."""
    table.begin(connection)
    rows.append(connection, _records(happened), tuple(_USED), convert.Options(), source=SOURCE, tally=Tally())
    table.publish(connection)
    checks.expand_arrays(connection)


def _records(happened: Happened) -> Iterator[rows.Record]:
    renderer = Renderer(happened.spec)
    used = tuple(_USED.items())
    for number, row in enumerate(happened.rows, 1):
        cells = renderer.cells(row)
        record = {field: cells[position] for field, position in used}
        if not record["jobname"].isascii():
            # Bytes that are not UTF-8 as the reader keeps them.
            record["jobname"] = lines.decode(record["jobname"].encode("utf-8", "surrogateescape"))
        yield number, record
