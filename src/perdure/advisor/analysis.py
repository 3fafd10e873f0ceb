"""What follows once a history is read: chains, evidence, rates, verdicts. The one place where history, stats and decision meet.

Called by `advise`, which reads the history while this module and what it stands on are imported.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from perdure.advisor import assumptions, losses, replay
from perdure.decision import figures
from perdure.decision import verdict as verdicts
from perdure.decision.policy import Policy
from perdure.history import cells, chains, exposure, table, workloads
from perdure.history.evidence import Workloads
from perdure.model import advice
from perdure.model.attempt import Cause
from perdure.stats import dispersion, rates

if TYPE_CHECKING:
    import duckdb

SCHEMA = 1
"""Version of the `Advice` document."""
FEW_JOBS = 3


class Wishes(msgspec.Struct, frozen=True):
    """What a caller of `advise` may choose beside the policy; its docstring says what each is."""

    level: float
    seed: int
    classification: Literal["strict", "inclusive"]
    what_if: bool


def analyse(
    connection: duckdb.DuckDBPyConnection,
    policy: Policy | None,
    wishes: Wishes,
    *,
    history: str,
    notes: tuple[str, ...],
    cluster: str | None,
) -> advice.Advice:
    """Return the advice for what was read into `connection` (`source.open_source`) from `history`, with the reader's `notes`."""
    level, classification = wishes.level, wishes.classification
    chains.build(connection, cluster=cluster)
    # The rates need little of the database and much of Python; the evidence is the other way round.
    with futures.ThreadPoolExecutor(1, "perdure-rates") as pool, table.beside(connection) as second:
        pending = pool.submit(estimate, second, level=level, seed=wishes.seed)
        found = workloads.build(connection, classification=classification)
        restarts = workloads.measure_restarts(connection)
        estimated = pending.result()
        # Its sums are the database's, the verdicts are Python's.
        measured = pool.submit(exposure.measure, second, found)
        with _collector_paused():
            rows, order, assumed = _decide(found, estimated, restarts, policy or Policy(), level=level, classification=classification)
        seen = measured.result()
    replayed = replay.replay(connection, found, rows) if wishes.what_if else ()
    return advice.Advice(
        schema=SCHEMA,
        history=history,
        exposure=seen,
        rates=estimated,
        workloads=tuple(rows[index] for index in order),
        replay=replayed,
        assumptions=assumed.listed | _method(wishes),
        notes=notes + _notes(estimated, classification),
    )


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python from looking for cycles among a million new frozen records, which have none; it takes a quarter of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def estimate(connection: duckdb.DuckDBPyConnection, *, level: float, seed: int) -> tuple[advice.CauseRates, ...]:
    """Return the rates of every cause, classification and unit that the tables of `chains.build` hold."""
    # A generator of its own for each estimate: none depends on which others were made before it.
    return tuple(
        rates.estimate_rates(
            one.cells,
            one.event_times_h,
            cause=one.cause,
            classification=one.classification,
            unit=one.unit,
            level=level,
            generator=np.random.default_rng([seed, number]),
        )
        for number, one in enumerate(cells.read_cells(connection))
    )


def _decide(
    found: Workloads,
    estimated: tuple[advice.CauseRates, ...],
    restarts: workloads.Restarts,
    policy: Policy,
    *,
    level: float,
    classification: Literal["strict", "inclusive"],
) -> tuple[list[advice.WorkloadAdvice], list[int], assumptions.Assumed]:
    """Return the rows in the order of `found`, the order in which they are shown, and what was assumed."""
    evidence = found.evidence()
    keys = [one.key for one in evidence]
    assumed = assumptions.assume(found, keys, restarts, policy)
    other: Literal["strict", "inclusive"] = "inclusive" if classification == "strict" else "strict"
    mttfs = _mttfs(found, estimated, classification, level)
    questions = _questions(evidence, mttfs, assumed)
    asked = figures.gather(questions)
    answers = verdicts.decide_all(questions, asked)
    alternatives = _alternatives(asked, mttfs, answers, _mttfs(found, estimated, other, level))
    lost = losses.expect(asked.terms, questions, answers, found.wanted(), found.gpu_hours())
    hours = zip(*(_known(figure) for figure in (lost.retry, lost.resume, lost.saved(), lost.money)), strict=True)
    rows = []
    for one, mttf, question, answer, alternative, lost_and_saved in zip(
        evidence, mttfs, questions, answers, alternatives, hours, strict=True
    ):
        full = answer
        if alternative is not None or one.jobs < FEW_JOBS or one.resumes_itself or one.work_source != "completed":
            warnings = _warnings(one, question, alternative, other)
            full = msgspec.structs.replace(answer, warnings=answer.warnings + warnings)
        rows.append(advice.WorkloadAdvice(one, mttf, question, full, *lost_and_saved))
    return rows, _worst_first(found, lost, keys), assumed


def _mttfs(found: Workloads, estimated: tuple[advice.CauseRates, ...], classification: str, level: float) -> list[advice.Mttf]:
    """Return each workload's mean time to interruption; preemption counts only for those that are mostly run where it was seen."""
    chosen = [one for one in estimated if one.classification == classification]
    preemptible = found.columns["preemptible"].astype(bool)
    sizes = found.columns["milli_size"] / 1000.0
    result = np.empty(len(found), dtype=object)
    for unit in cells.UNITS:
        for exposed in (False, True):
            member = np.flatnonzero((found.columns["is_gpu"] == (unit == "gpu")) & (preemptible == exposed))
            causes = chosen if exposed else [one for one in chosen if one.cause is not Cause.PREEMPTION]
            if member.size:
                for index, record in zip(member, rates.mttf_for_sizes(causes, sizes[member], unit, level=level), strict=True):
                    result[index] = record
    return list(result)


def _questions(evidence: list[advice.WorkloadEvidence], mttfs: list[advice.Mttf], assumed: assumptions.Assumed) -> list[advice.JobQuestion]:
    questions = []
    for one, mttf, costs, deadline in zip(evidence, mttfs, assumed.costs, assumed.deadlines, strict=True):
        limit = one.limit_minutes
        if limit is not None and one.work_source == "completed":
            # It was done in one attempt, so it fits, whatever grace Slurm gave it.
            limit = max(limit, one.work_minutes)
        questions.append(
            advice.JobQuestion(
                one.work_minutes,
                mttf.minutes,
                mttf.interval,
                one.key.size,
                costs,
                limit,
                deadline,
                one.user_failure_share,
                mttf.extrapolated,
            )
        )
    return questions


def _alternatives(
    asked: figures.Asked, mttfs: list[advice.Mttf], answers: list[advice.Verdict], others: list[advice.Mttf]
) -> list[advice.VerdictKind | None]:
    """Return the verdict at `others`, under the other classification, where it differs from that at `mttfs`, else None."""
    pairs = enumerate(zip(mttfs, others, strict=True))
    differing = [index for index, (one, other) in pairs if (one.minutes, one.interval) != (other.minutes, other.interval)]
    result: list[advice.VerdictKind | None] = [None] * len(answers)
    there = asked.pick(np.array(differing, np.intp)).with_mttfs([others[index] for index in differing])
    for index, kind in zip(differing, verdicts.kinds(there), strict=True):
        if kind is not answers[index].verdict:
            result[index] = kind
    return result


def _warnings(
    one: advice.WorkloadEvidence, question: advice.JobQuestion, alternative: advice.VerdictKind | None, other: str
) -> tuple[str, ...]:
    """Say what the evidence of this workload makes doubtful."""
    warnings = []
    if alternative is not None:
        warnings.append(f"With the {other} classification of endings the verdict would be {alternative.value}.")
    if one.resumes_itself:
        kept = question.costs.durable_fraction
        warnings.append(
            f"It seems to resume by itself already: about {kept:.0%} of an interrupted run is taken to survive without Perdure."
        )
    if one.work_source == "limit":
        warnings.append("The length of its work is not known: its limit stands for it, since hardly any of its jobs ended well.")
    elif one.work_source == "longest":
        warnings.append("The length of its work is not known: its longest attempt stands for it, since none of its jobs ended well.")
    elif one.work_source == "chain":
        warnings.append("The length of its work is summed over attempts that went on from each other, losses included: at most that.")
    if one.jobs < FEW_JOBS:
        warnings.append(f"It rests on {one.jobs} job{'s' if one.jobs > 1 else ''}.")
    return tuple(warnings)


def _worst_first(found: Workloads, lost: losses.Losses, keys: Sequence[advice.WorkloadKey]) -> list[int]:
    """Order by what retrying is expected to lose; where that never ends, by all that the workload was given; equals by their keys."""
    _, destroyed = found.destroyed()
    allocated = found.gpu_hours()
    columns = np.column_stack([np.where(np.isfinite(lost.retry), lost.retry, allocated), destroyed, allocated])
    order = np.lexsort((-columns[:, 2], -columns[:, 1], -columns[:, 0]))
    begins = np.flatnonzero((columns[order[1:]] != columns[order[:-1]]).any(axis=1)) + 1
    ranked: list[int] = order.tolist()
    for first, past in itertools.pairwise([0, *begins.tolist(), len(ranked)]):
        if past - first > 1:
            ranked[first:past] = sorted(ranked[first:past], key=lambda index: _key_order(keys[index]))
    return ranked


def _key_order(key: advice.WorkloadKey) -> tuple[Any, ...]:
    return (key.cluster, key.user, key.account, key.name, key.size.count)


def _known(column: NDArray[np.float64]) -> list[float | None]:
    """Return plain numbers, None for what is not finite."""
    return [value if math.isfinite(value) else None for value in column.tolist()]


def _method(wishes: Wishes) -> dict[str, str]:
    listed = {
        "classification": f"{wishes.classification} (flag or default)",
        "level": f"{wishes.level:g} (flag or default)",
        "seed": f"{wishes.seed} (flag or default)",
        "own_checkpoint": "1h between checkpoints of applications that resume by themselves (convention; lower bound of destroyed work)",
    }
    return listed | (replay.ASSUMPTIONS if wishes.what_if else {})


def _notes(estimated: tuple[advice.CauseRates, ...], classification: str) -> tuple[str, ...]:
    notes = []
    for one in estimated:
        if one.classification == classification and one.dispersion.over_dispersed:
            struck = f"{one.cause.value.capitalize()} of jobs counted in {one.unit}s"
            measured = f"{_measured(one.dispersion)} times as much as chance alone would have them"
            notes.append(f"{struck} comes in bursts ({measured}): its intervals are from a bootstrap over days.")
    if not any(one.events for one in estimated if one.classification == classification):
        notes.append("No interruption was seen in this history: all that is known is how rare they are at least.")
    return tuple(notes)


def _measured(found: advice.Dispersion) -> str:
    """Name the figure by which over-dispersion was found."""
    if found.p_value is not None and found.p_value < dispersion.SIGNIFICANCE:
        return f"daily counts vary {found.index:.1f}"
    return f"the times between them vary {found.coefficient_of_variation:.1f}"
