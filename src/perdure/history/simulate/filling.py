"""A simulated fleet as an attempts table, without a file in between. Called by `fleet`; for tests and benchmarks that need many fleets.

The cells are those of the text, and become attempts by the conversion that every reader uses, so that both ways give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from perdure.history import checks, convert, fields, lines, table
from perdure.history.simulate.happened import Happened
from perdure.history.simulate.jobs import Row
from perdure.history.simulate.render import FIELDS, Renderer

if TYPE_CHECKING:
    import duckdb

SOURCE = "simulated"
_BATCH = 100_000
_VIEW = "perdure_simulated"


def fill(connection: duckdb.DuckDBPyConnection, happened: Happened) -> None:
    """Make a new table ``attempts`` of `connection` and fill it with the rows of a simulation; `line` counts rows from 1."""
    table.create_empty(connection)
    renderer = Renderer(happened.spec)
    rows = iter(happened.rows)
    done = 0
    while batch := list(islice(rows, _BATCH)):
        _append(connection, renderer, batch, done)
        done += len(batch)
    checks.expand_arrays(connection)


def _append(connection: duckdb.DuckDBPyConnection, renderer: Renderer, batch: Sequence[Row], done: int) -> None:
    used = {name.lower(): position for position, name in enumerate(FIELDS) if name.lower() in fields.USED}
    columns = list(zip(*map(renderer.cells, batch), strict=True))
    arrays = {name: np.array(columns[position], dtype=object) for name, position in used.items()}
    for name in ("jobname", "workdir"):
        arrays[name] = np.array([_as_read(text) for text in arrays[name]], dtype=object)
    arrays["row_number"] = np.arange(done + 1, done + 1 + len(batch))
    connection.register(_VIEW, arrays)
    query = convert.attempts({name: f'"{name}"' for name in used}, _VIEW, convert.Options(), source=f"'{SOURCE}'", line="row_number")
    connection.execute(f"INSERT INTO attempts {query}")
    connection.unregister(_VIEW)


def _as_read(text: str) -> str:
    """What a reader makes of a text with bytes that are not UTF-8."""
    return text if text.isascii() else lines.decode(text.encode("utf-8", "surrogateescape"))
