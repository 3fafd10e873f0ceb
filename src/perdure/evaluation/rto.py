"""Recovery time as a statement to others. Called by `measures` and reports. Pure.

A number of seconds promises nothing unless it says what was killed, what the clock started and stopped on, how many runs it is of, the
worst of them, and in what state the workload came back.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from perdure.evaluation import course as courses
from perdure.evaluation import loss, paired
from perdure.evaluation.course import Course, Interruption
from perdure.model.evaluation import Arm, FaultKind, RtoStatement, Run

STARTED = "the fault was injected"
STOPPED = "the workload's first progress after it"
KILLED = {
    FaultKind.KILL: "the main process, by SIGKILL",
    FaultKind.KILL_TREE: "every process of the workload, by SIGKILL at once",
    FaultKind.NODE_LOST: "the node: all its processes and its network at once",
    FaultKind.OUT_OF_MEMORY: "the workload, for want of memory",
    FaultKind.HANG: "nothing: the workload was stopped by SIGSTOP, and nobody told",
    FaultKind.DISK_FULL: "the free space of the disk",
    FaultKind.AGENT_KILLED: "Perdure's own agent",
    FaultKind.PREEMPTION: "the workload, by SIGTERM, and SIGKILL after the grace time",
    FaultKind.TIME_LIMIT: "the attempt, by its wall-time limit",
}


def statements(runs: Iterable[Run]) -> tuple[RtoStatement, ...]:
    """Return a statement for each arm and each kind of fault that interrupted counted runs of it."""
    met: dict[tuple[Arm, FaultKind], list[tuple[Course, Interruption]]] = {}
    for run in runs:
        if courses.counts(run):
            read = courses.read(run)
            for each in read.interruptions:
                if each.interrupted and each.kind is not None:
                    met.setdefault((run.arm, each.kind), []).append((read, each))
    return tuple(_state(arm, kind, met[arm, kind]) for arm in Arm for kind in FaultKind if (arm, kind) in met)


def _state(arm: Arm, kind: FaultKind, met: Sequence[tuple[Course, Interruption]]) -> RtoStatement:
    back = [(course, each) for course, each in met if each.useful is not None]
    times_s = [each.useful.at_s - each.fault.at_s for _, each in back if each.useful is not None]
    all_back = len(back) == len(met)
    worst_s = max(times_s) if times_s and all_back else None
    # One that is not back yet takes longer than all that are.
    percentile = paired.nearest_rank([*times_s, *[float("inf")] * (len(met) - len(back))], 0.95)
    percentile_s = None if percentile == float("inf") else percentile
    runs = len({course.run.id for course, _ in met})
    state = _came_back(back, len(met))
    figures = _figures(times_s, percentile_s, worst_s, len(met))
    return RtoStatement(
        arm=arm,
        killed=kind,
        clock_started=STARTED,
        clock_stopped=STOPPED,
        runs=runs,
        interruptions=len(met),
        came_back=len(back),
        median_s=statistics.median(times_s) if times_s else None,
        percentile_95_s=percentile_s,
        worst_s=worst_s,
        state=state,
        statement=(
            f"{arm.value.capitalize()}: killed was {KILLED[kind]}. The clock started when {STARTED} and stopped on {STOPPED}. "
            f"{len(met)} {_plural('interruption', len(met))} in {runs} {_plural('run', runs)}: {figures}. It came back {state}."
        ),
    )


def _figures(times_s: Sequence[float], percentile_s: float | None, worst_s: float | None, met: int) -> str:
    missing = met - len(times_s)
    said = [] if not times_s else [f"median {statistics.median(times_s):.1f} s"]
    said.append("no 95th percentile" if percentile_s is None else f"95th percentile {percentile_s:.1f} s{_few(met)}")
    said.append(f"{missing} did not come back, so there is no worst" if worst_s is None else f"worst {worst_s:.1f} s")
    return ", ".join(said)


def _few(met: int) -> str:
    return " (with fewer than 20 it is the worst)" if met < 20 else ""


def _came_back(back: Sequence[tuple[Course, Interruption]], met: int) -> str:
    if not back:
        return "never"
    sources: dict[str, int] = {}
    behind: list[float] = []
    for course, each in back:
        recoverable, source = loss.came_back_to(course, each)
        at_fault = course.counter_at(each.gone_s)
        sources[source] = sources.get(source, 0) + 1
        if at_fault is not None:
            behind.append(max(0.0, at_fault - recoverable))
    words = {
        "perdure": "from a checkpoint of Perdure's",
        "own": "from a checkpoint of its own",
        "start": "from the start of the job",
        "earlier": "from further back than its checkpoints said",
    }
    said = ", ".join(f"{words[source]} ({count} of {met})" for source, count in sorted(sources.items()))
    far = f", {statistics.median(behind):g} units of its counter behind in the middle, {max(behind):g} at most" if behind else ""
    done = sum(course.completed for course in {course.run.id: course for course, _ in back}.values())
    total = len({course.run.id for course, _ in back})
    return f"{said}{far}; {done} of {total} {_plural('run', total)} finished the work"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
