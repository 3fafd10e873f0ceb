"""Replay a history under other policies: what would have been lost, delivered and left undone. Called by `advise` for --what-if.

Every story that ended is walked through once more. It meets the interruptions that it met, each after the run time after which it
came; when they are used up it runs on undisturbed. `walk` is the arithmetic; here it is fed from the tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from perdure.advisor.walk import Terms, Walk
from perdure.history import chains
from perdure.history.evidence import Workloads
from perdure.history.tallies import OWN_ENDS
from perdure.model import advice

if TYPE_CHECKING:
    import duckdb

Floats = NDArray[np.float64]
Policy = Literal["retry-all", "resume-all", "as-advised"]

STORIES_AT_ONCE = 1_000_000

RESUMING = frozenset({advice.VerdictKind.RESUME, advice.VerdictKind.RESUME_REQUIRED})

ASSUMPTIONS: dict[str, str] = {
    "replay.interruptions": "each job meets the interruptions of the history, after the same run time; later ones none (convention)",
    "replay.work": "what its last run took where it ended well, else what its siblings need, at least what it ran (history)",
    "replay.limit": "a job that would run into its limit without being able to resume is never done; its hours in the history are lost",
    "replay.meeting": "a job meets its limit when all its runs together, losses included, take no longer than one limit",
    "replay.left_out": "jobs still running or queued; own failures and cancelled jobs use hours but are not to be delivered",
}


@dataclasses.dataclass
class _Totals:
    lost: float = 0.0
    delivered: float = 0.0
    allocated: float = 0.0
    meeting: int = 0
    jobs: int = 0
    unfinished: int = 0

    def add(self, walk: Walk, own: NDArray[np.bool_], *, ran_s: Floats, size_hours: Floats) -> None:
        """Let `walk` go to its end and add it up. `own`: ended by their own failure or their owner's wish; `ran_s`: in the history."""
        never = walk.finish()
        wanted, work = ~own, walk.terms.work
        used = np.where(never, ran_s, work + walk.lost)
        delivered = np.where(never | own, 0.0, work)
        # A job that never ends has lost all that the history gave it, unless it was not to be delivered at all.
        lost = np.where(never & wanted, ran_s, np.where(never, 0.0, walk.lost))
        self.lost += math.fsum(lost * size_hours)
        self.delivered += math.fsum(delivered * size_hours)
        self.allocated += math.fsum(used * size_hours)
        self.meeting += int(np.count_nonzero(wanted & ~never & (used <= walk.terms.limit * (1 + 1e-9))))
        self.jobs += int(np.count_nonzero(wanted))
        self.unfinished += int(np.count_nonzero(never & wanted))

    def record(self, policy: Policy) -> advice.PolicyReplay:
        share = self.delivered / self.allocated if self.allocated > 0 else 0.0
        return advice.PolicyReplay(policy, self.lost, share, self.meeting, self.jobs, self.unfinished)


def replay(
    connection: duckdb.DuckDBPyConnection, found: Workloads, rows: Sequence[advice.WorkloadAdvice]
) -> tuple[advice.PolicyReplay, ...]:
    """Return what the history's jobs would have lost under each policy: retry all, resume all, as advised.

    `rows` are in the order of `found`. Hours are GPU-hours, or node-hours for work without GPUs. A resumed workload takes the
    interval of its verdict; one for which no checkpoint pays takes none, and is retried under any policy. `EITHER` and `NEITHER`
    are retried.
    """
    _make_troubles(connection)
    ((total,),) = connection.execute(f"SELECT count(*) FROM stories WHERE {_ENDED}").fetchall()
    parts = max(1, -(-total // STORIES_AT_ONCE))
    figures = _figures(found, rows)
    policies: tuple[Policy, ...] = ("retry-all", "resume-all", "as-advised")
    totals = {policy: _Totals() for policy in policies}
    for part in range(parts):
        stories = connection.execute(f"""
            SELECT story, wid, ending::VARCHAR AS ending, last_s, work_s, run_s, limit_s, segments FROM stories
            WHERE {_ENDED} AND wid % {parts} = {part} ORDER BY wid, run_s, last_s, story""").fetchnumpy()
        troubles = connection.execute(f"SELECT story, nth, elapsed_s FROM troubles WHERE wid % {parts} = {part} ORDER BY nth").fetchnumpy()
        _replay_part(stories, troubles, figures, totals)
    return tuple(totals[policy].record(policy) for policy in policies)


_ENDED = "started > 0 AND ending NOT IN ('censored', 'never_started')"


def _make_troubles(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE troubles AS
        SELECT story, stories.wid, elapsed_s, row_number() OVER (PARTITION BY story ORDER BY seq, no) AS nth
        FROM (SELECT coalesce(thread, job) AS story, coalesce(seq, 0) AS seq, no, elapsed_s
              FROM ordered LEFT JOIN threads USING (job) WHERE ending IN {chains.STOCHASTIC} AND elapsed_s > 0)
        JOIN stories USING (story) WHERE stories.started > 0 AND stories.ending NOT IN ('censored', 'never_started')""")


def _figures(found: Workloads, rows: Sequence[advice.WorkloadAdvice]) -> dict[str, NDArray[Any]]:
    """Return the figures of each workload as columns, seconds."""
    costs = [row.question.costs for row in rows]
    return {
        "wid": found.columns["wid"],
        "size": found.columns["milli_size"] / 1000.0,
        "work": found.work_s,
        "resumes": found.resumes,
        "interval": np.array(
            [np.inf if row.verdict.resume.interval_minutes is None else row.verdict.resume.interval_minutes * 60.0 for row in rows]
        ),
        "advised": np.array([row.verdict.verdict in RESUMING for row in rows], bool),
        "checkpoint": np.array([one.checkpoint_cost_minutes * 60.0 for one in costs]),
        "restore": np.array([one.restore_cost_minutes * 60.0 for one in costs]),
        "durable": np.array([one.durable_fraction for one in costs]),
    }


def _replay_part(
    stories: dict[str, NDArray[Any]], troubles: dict[str, NDArray[Any]], figures: dict[str, NDArray[Any]], totals: dict[Policy, _Totals]
) -> None:
    place = np.searchsorted(figures["wid"], stories["wid"])
    place = np.minimum(place, max(len(figures["wid"]) - 1, 0))
    known = figures["wid"][place] == stories["wid"] if len(figures["wid"]) else np.zeros(len(place), bool)
    stories = {name: column[known] for name, column in stories.items()}
    place = place[known]
    order = np.argsort(stories["story"], kind="stable")
    at = np.minimum(np.searchsorted(stories["story"][order], troubles["story"]), max(len(order) - 1, 0))
    steps = _steps(order[at], troubles) if len(order) else []
    own = np.isin(stories["ending"], OWN_ENDS)
    work = _needed(stories, figures, place, own, steps)
    limit: Floats = np.asarray(np.ma.filled(np.ma.asarray(stories["limit_s"], dtype=float), np.inf))
    limit = np.where(limit > 0, limit, np.inf)
    # What ended well within one run fits its limit, whatever grace it was given.
    limit = np.where((stories["ending"] == "success") & (stories["segments"] == 0), np.maximum(limit, work), limit)
    size_hours = figures["size"][place] / 3600.0
    for policy, sums in totals.items():
        saves = {"retry-all": np.zeros(len(place), bool), "resume-all": np.ones(len(place), bool), "as-advised": figures["advised"][place]}[
            policy
        ]
        terms = Terms(
            work,
            limit,
            np.where(saves, figures["interval"][place], np.inf),
            figures["checkpoint"][place],
            figures["restore"][place],
            figures["durable"][place],
        )
        walk = Walk.of(terms)
        for step_rows, after_s in steps:
            walk.interrupt(step_rows, after_s)
        sums.add(walk, own, ran_s=stories["run_s"].astype(float), size_hours=size_hours)


def _steps(rows: NDArray[np.intp], troubles: dict[str, NDArray[Any]]) -> list[tuple[NDArray[np.intp], Floats]]:
    """Return all stories' first interruptions, all second ones, and so on."""
    nth = troubles["nth"]
    bounds = np.flatnonzero(np.diff(nth, prepend=0, append=nth[-1] + 1 if len(nth) else 0))
    return [(rows[a:b], troubles["elapsed_s"][a:b].astype(float)) for a, b in itertools.pairwise(bounds)]


def _needed(
    stories: dict[str, NDArray[Any]],
    figures: dict[str, NDArray[Any]],
    place: NDArray[np.intp],
    own: NDArray[np.bool_],
    steps: list[tuple[NDArray[np.intp], Floats]],
) -> Floats:
    """Return the run time that each story needs without interruption.

    One that ended by itself: its last run, or, where runs went on from each other, what its workload needs, between its
    last run and all of them together. One that did not: what its workload needs, but at least what it ran without end.
    """
    last, together, usual = stories["last_s"].astype(float), stories["work_s"].astype(float), figures["work"][place]
    goes_on = figures["resumes"][place] | (stories["segments"] > 0)
    longest_cut = np.zeros(len(last))
    for rows, after_s in steps:
        longest_cut[rows] = np.maximum(longest_cut[rows], after_s)
    ended = (stories["ending"] == "success") | own
    in_parts = np.where(stories["segments"] > 0, together, np.clip(usual, last, np.maximum(together, last)))
    by_itself = np.where(goes_on, in_parts, np.maximum(last, longest_cut))
    cut_off = np.maximum(usual, np.where(goes_on, together, np.maximum(last, longest_cut)))
    return np.maximum(np.where(ended, by_itself, cut_off), 1.0)
