"""What the runs and the stories of each workload add up to, counted with NumPy. Called by `workloads`.

A database would keep thirty aggregates for each of a hundred thousand workloads. Workloads are numbered without gaps: an array for
each aggregate does, and a run adds to its place. Times and costs are whole numbers below 2^53, so that sums in floating point are
exact, and the same whatever the order of the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perdure.history import compact, destroyed, medians

if TYPE_CHECKING:
    import duckdb

Columns = dict[str, NDArray[Any]]

PART_ROWS = 4_000_000
"""Runs that are taken out of the database at a time, so that twenty million stay within memory."""

ENDINGS: tuple[str, ...] = (
    "infrastructure",
    "suspected_infrastructure",
    "preempted",
    "requeued",
    "operator_cancel",
    "walltime",
    "user_failure",
)
"""Endings that are told apart in the evidence."""
OWN_ENDS = ("user_failure", "user_cancel", "deadline")
"""Endings by the job's own logic or its owner's wish: such a run is not a part of the work that was done later."""

_CODES = compact.ENDING_CODES
_SUCCESS, _WALLTIME, _INFRASTRUCTURE = (_CODES[name] for name in ("success", "walltime", "infrastructure"))

_SIGNALLED, _PREEMPTIBLE, _BOOT, _CONTINUED, _ONLY_RUN, _STORY = 1, 2, 4, 8, 16, 32
"""Bits of ``flags``: the last three are that another run followed, that it is its job's only run, and a story of its own."""

_WAITED = "greatest(start_s - greatest(coalesce(eligible_s, submit_s), coalesce(prev_end_s, 0)), 0)"

_RUNS = f"""
    SELECT wid, elapsed_s, cost_ms, enum_code(ending) AS ending, coalesce(limit_s, 'nan'::DOUBLE) AS limit_s,
           CASE WHEN elapsed_s > 0 AND coalesce(eligible_s, submit_s) IS NOT NULL THEN {_WAITED} ELSE -1 END AS waited_s,
           (signalled::UTINYINT * {_SIGNALLED} + preemptible::UTINYINT * {_PREEMPTIBLE} + boot::UTINYINT * {_BOOT}
            + (NOT last OR links.job IS NOT NULL)::UTINYINT * {_CONTINUED} + (no = 1 AND last)::UTINYINT * {_ONLY_RUN}
            + (no = 1 AND last AND threads.job IS NULL)::UTINYINT * {_STORY})::UTINYINT AS flags
    FROM ordered LEFT JOIN links ON links.predecessor = ordered.job LEFT JOIN threads ON threads.job = ordered.job"""

_LONG_STORIES = """
    SELECT wid, enum_code(ending) AS ending, started, last_s, work_s, interrupted, segments, continued FROM long_stories"""


def count(connection: duckdb.DuckDBPyConnection, workloads: int) -> Columns:
    """Return, by name, one entry for each of the workloads 0 to `workloads` − 1, NaN for a median over nothing.

    Works on ``ordered``, ``links``, ``threads``, ``long_jobs`` (`chains.build`) and ``long_stories``.
    """
    (runs,) = connection.execute("SELECT count(*) FROM ordered").fetchall()[0]
    long = connection.execute(_LONG_STORIES).fetchnumpy()
    jobs = connection.execute("SELECT wid FROM long_jobs").fetchnumpy()["wid"]
    parts = 1 + int(runs) // PART_ROWS
    if parts == 1:
        return _count_part(connection.execute(_RUNS).fetchnumpy(), long, jobs, workloads)
    result: Columns = {}
    for part in range(parts):
        rows = connection.execute(f"{_RUNS} WHERE wid % {parts} = {part}").fetchnumpy()
        rows["wid"] //= parts
        of_part = {name: column[long["wid"] % parts == part] for name, column in long.items()}
        of_part["wid"] //= parts
        found = _count_part(rows, of_part, jobs[jobs % parts == part] // parts, len(range(part, workloads, parts)))
        for name, column in found.items():
            result.setdefault(name, np.empty(workloads, column.dtype))[part::parts] = column
    return result


def _count_part(runs: Columns, long: Columns, jobs: NDArray[Any], workloads: int) -> Columns:
    return _count_runs(runs, jobs, workloads) | _count_stories(runs, long, workloads) | _long_medians(long, workloads)


def _count_runs(runs: Columns, long_jobs: NDArray[Any], workloads: int) -> Columns:
    wid, elapsed, cost, flags = runs["wid"], runs["elapsed_s"], runs["cost_ms"], runs["flags"]
    table = _Table(wid, runs["ending"], workloads)
    every, ran = table.counts(), table.counts(elapsed > 0)
    cost_ms = table.sums(cost)
    longest: NDArray[np.int64] = np.zeros(workloads, np.int64)
    np.maximum.at(longest, wid, elapsed)
    total = every.sum(axis=1)
    columns: Columns = {
        "attempts": ran.sum(axis=1),
        "cost_ms": cost_ms.sum(axis=1),
        "delivered_ms": cost_ms[:, _SUCCESS],
        "longest_s": longest.astype(np.float64),
        "limit_s": _longest_limit(wid, runs["limit_s"], workloads),
        "signalled": _tally(wid[flags & _SIGNALLED > 0], workloads) > 0,
        "preemptible": (total > 0) & (2 * _tally(wid[flags & _PREEMPTIBLE > 0], workloads) >= total),
        "queue_s": _median(runs, runs["waited_s"], runs["waited_s"] >= 0, workloads),
        "jobs": _tally(wid[flags & _ONLY_RUN > 0], workloads) + _tally(long_jobs, workloads),
    }
    for name in ENDINGS:
        code = _CODES[name]
        columns[f"n_{name}"] = (every if code == _INFRASTRUCTURE else ran)[:, code]
        columns[f"ms_{name}"] = cost_ms[:, code]
    return columns | _destroyed(runs, workloads)


def _destroyed(runs: Columns, workloads: int) -> Columns:
    """Add up what `history.destroyed` needs."""
    struck = np.flatnonzero(np.isin(runs["ending"], _codes(destroyed.INTERRUPTING)) & (runs["flags"] & _BOOT == 0))
    wid, elapsed, cost, ending, flags = (runs[name][struck] for name in ("wid", "elapsed_s", "cost_ms", "ending", "flags"))
    certain = np.isin(ending, _codes(destroyed.CERTAIN)) | ((ending == _WALLTIME) & (flags & _CONTINUED > 0))
    since_checkpoint = np.minimum(elapsed, destroyed.OWN_CHECKPOINT_S // 2) * (cost // np.maximum(elapsed, 1))
    return {
        "destroyed_high_ms": _tally(wid, workloads, cost),
        "destroyed_certain_ms": _tally(wid[certain], workloads, cost[certain]),
        "destroyed_resumed_ms": _tally(wid[certain], workloads, since_checkpoint[certain]),
    }


def _count_stories(runs: Columns, long: Columns, workloads: int) -> Columns:
    """Count stories: runs that are one, and those of several."""
    own = runs["flags"] & _STORY > 0
    ran = own & (runs["elapsed_s"] > 0)
    table = _Table(runs["wid"], runs["ending"], workloads)
    every, started = table.counts(own), table.counts(ran)
    success, walltime = long["ending"] == _SUCCESS, long["ending"] == _WALLTIME
    wanted = ~np.isin(long["ending"], _codes(OWN_ENDS)) & (long["started"] > 0)
    in_segments = long["segments"] > 0

    def of_long(member: NDArray[np.bool_]) -> NDArray[Any]:
        return _tally(long["wid"][member], workloads)

    def median(run: NDArray[np.bool_], story: NDArray[np.bool_]) -> NDArray[np.float64]:
        wid = np.concatenate([runs["wid"][run], long["wid"][story]])
        return medians.by_group(wid, np.concatenate([runs["elapsed_s"][run], long["last_s"][story]]), workloads)

    segments, continued = (_tally(long["wid"], workloads, long[name]).astype(np.int64) for name in ("segments", "continued"))
    well = runs["ending"] == _SUCCESS
    return {
        "stories": every.sum(axis=1) + _tally(long["wid"], workloads),
        "wanted": np.delete(started, _codes(OWN_ENDS), axis=1).sum(axis=1) + of_long(wanted),
        "singles": started[:, _SUCCESS] + of_long(success & (long["started"] == 1)),
        "successes": every[:, _SUCCESS] + of_long(success),
        "limit_chains": of_long(success & in_segments),
        "cut_off": every[:, _WALLTIME] + of_long(walltime & (long["continued"] == 0)),
        "repeated": segments - continued,
        "continued": continued,
        "interrupted_successes": of_long(success & (long["interrupted"] > 0) & ~in_segments),
        "segments": segments,
        "single_s": median(ran & well, success & (long["started"] == 1)),
        "final_s": median(own & well, success & ~in_segments),
    }


def _long_medians(long: Columns, workloads: int) -> Columns:
    """Return the medians over stories of several runs; `total_s` matters where no other ended well."""
    success = long["ending"] == _SUCCESS
    return {
        "total_s": _median(long, long["work_s"], success, workloads),
        "limit_chain_s": _median(long, long["work_s"], success & (long["segments"] > 0), workloads),
        "open_chain_s": _median(long, long["work_s"], ~success & (long["continued"] > 0), workloads),
    }


class _Table:
    """Counts and sums by workload (rows) and ending (columns)."""

    def __init__(self, wid: NDArray[Any], ending: NDArray[Any], workloads: int) -> None:
        self._place = wid.astype(np.int64) * len(_CODES) + ending
        self._shape = (workloads, len(_CODES))

    def counts(self, member: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        place = self._place if member is None else self._place[member]
        return _tally(place, self._shape[0] * self._shape[1]).reshape(self._shape)

    def sums(self, weights: NDArray[Any]) -> NDArray[np.float64]:
        return _tally(self._place, self._shape[0] * self._shape[1], weights).reshape(self._shape)


def _tally(place: NDArray[Any], size: int, weights: NDArray[Any] | None = None) -> NDArray[Any]:
    """Count what falls to each place (whole numbers), or add up its `weights` (floats)."""
    if weights is None:
        return np.bincount(place, minlength=size)
    return np.bincount(place, weights.astype(np.float64), minlength=size).astype(np.float64)  # of nothing, it counts in whole numbers


def _median(rows: Columns, value: NDArray[Any], member: NDArray[np.bool_], workloads: int) -> NDArray[np.float64]:
    return medians.by_group(rows["wid"][member], value[member], workloads)


def _longest_limit(wid: NDArray[Any], limit_s: NDArray[np.float64], workloads: int) -> NDArray[np.float64]:
    """Return the longest limit of each workload, NaN where none is known."""
    known = ~np.isnan(limit_s)
    longest: NDArray[np.float64] = np.full(workloads, -np.inf)
    np.maximum.at(longest, wid[known], limit_s[known])
    return np.where(longest == -np.inf, np.nan, longest)


def _codes(endings: tuple[str, ...]) -> list[int]:
    return [_CODES[name] for name in endings]
