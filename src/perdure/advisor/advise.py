"""`perdure.advise`: from a history to a verdict for every workload. The library's door: the file is read here, `analysis` does the rest.

Called by the library's users, `perdure advise` and `perdure history show`. Nothing heavy is imported before the reading begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from perdure import errors
from perdure.advisor import ahead, source
from perdure.history import table

if TYPE_CHECKING:
    from perdure.decision.policy import Policy
    from perdure.model import advice


def advise(
    path_or_table: str | os.PathLike[str] | Any,
    policy: Policy | None = None,
    *,
    level: float = 0.90,
    seed: int = 0,
    what_if: bool = False,
    cluster: str | None = None,
    tz: str = "UTC",
    memory_limit: str = "2GiB",
    threads: int | None = None,
    classification: Literal["strict", "inclusive"] = "strict",
    progress: Callable[[str, int], None] | None = None,
) -> advice.Advice:
    """Read a history and return a verdict for every workload in it, worst loss first.

    `path_or_table` is an attempts file, any accounting file that `perdure history import` takes, or a table with the columns of
    an attempts file (DuckDB relation, pandas, polars, pyarrow). `policy` holds what accounting cannot tell. `level` is the
    two-sided level of all intervals, 0 to 1; `seed` drives the bootstrap and the dispersion test, and one seed gives one answer,
    whatever the order of the rows. `what_if` replays the history under three policies. `cluster` keeps that cluster's attempts
    only; `tz` is the zone of times without an offset. `classification` decides which endings are interruptions. `progress` is told the
    file's name and the bytes read so far.

    Raises `errors.InputError` and its kin for a history that cannot be used, `errors.UsageError` for a level outside 0 to 1.
    """
    if not 0 < level < 1:
        raise errors.UsageError(f"level: {level} is not between 0 and 1", hint="0.90 is the default")
    connection = table.connect(memory_limit=memory_limit, threads=threads)
    with connection, table.room_errors(), ahead.imports():
        name, notes = source.open_source(connection, path_or_table, cluster=cluster, tz=tz, progress=progress)
        from perdure.advisor import analysis

        wishes = analysis.Wishes(level, seed, classification, what_if)
        return analysis.analyse(connection, policy, wishes, history=name, notes=notes, cluster=cluster)
