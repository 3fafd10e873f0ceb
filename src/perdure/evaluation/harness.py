"""Which runs are missing, and making them: the baseline, and pairs of one unmanaged and one managed run. Called by the commands.

A run is appended to `runs.jsonl` when it ends. A harness that was interrupted, however, is given the same command again: it records what
was broken off and makes what is missing.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import files
from perdure.base.proc import machine
from perdure.evaluation import canonical, environment, evidence, faults, places, recover, runs, schedule, this_machine
from perdure.evaluation import folder as folders
from perdure.evaluation.conduct import Conduct, Given
from perdure.evaluation.folder import Folder, RunLog
from perdure.evaluation.plan import Plan
from perdure.evaluation.runs import Glimpse
from perdure.evaluation.schedule import Pace, Planned
from perdure.model.evaluation import Arm, EventKind, Run

_CLOCK = ".clock"
_LOOK_S = 0.1
_ARMS = (Arm.UNMANAGED, Arm.MANAGED)


class Task(msgspec.Struct, frozen=True):
    """One run to make."""

    arm: Arm
    pair: int
    purpose: Literal["baseline", "arms"]
    planned: tuple[Planned, ...]


class Step(msgspec.Struct, frozen=True):
    """What a person is told while runs are made."""

    run: Run
    done: int
    wanted: int


Say = Callable[[Step], None]
"""Is told of each run when it has ended."""
Look = Callable[[tuple[Glimpse, ...]], None]
"""Is shown the runs in progress, again and again."""


class _Clock(msgspec.Struct, frozen=True):
    boot_id: str
    origin_s: float


def _look_away(_glimpses: tuple[Glimpse, ...]) -> None:
    """Show nothing."""


def baseline(folder: Folder, plan: Plan, *, with_faults: bool, say: Say, stop: threading.Event, look: Look = _look_away) -> tuple[Run, ...]:
    """Make the runs of the baseline that are missing: undisturbed ones, and as many with the plan's faults where it has any.

    Returns the runs that were made. Raises what forbids them, and `errors.PartialResult` when `stop` was set or one did not complete.
    """
    refuse(plan)
    log = _begin(folder, plan)
    work = _Work(folder, plan, stop, say, look)
    wanted = plan.baseline.repetitions
    made: list[Run] = []
    for disturbed in (False, True) if with_faults and plan.faults.kinds and plan.faults.seed is not None else (False,):
        have = sum(_is_disturbed(run) == disturbed for run in _counted(plan, log))
        for number in range(have + 1, wanted + 1):
            planned = _planned(plan, number, pace_of(plan, folders.read_runs(folder))) if disturbed else ()
            made += work.make((Task(Arm.UNMANAGED, number, "baseline", planned),), len(made) + 1, wanted * (1 + with_faults))
            _require_completed(made[-1])
    return tuple(made)


def arms(
    folder: Folder, plan: Plan, *, say: Say, stop: threading.Event, pairs: int | None = None, look: Look = _look_away
) -> tuple[Run, ...]:
    """Make the pairs of runs that are missing, or `pairs` of them; returns the runs that were made.

    Raises what forbids them, and `errors.PartialResult` when `stop` was set or the window closed before all were made.
    """
    refuse(plan)
    log = _begin(folder, plan)
    work = _Work(folder, plan, stop, say, look)
    pace = pace_of(plan, log)
    made: list[Run] = []
    todo = missing(plan, log)
    for index, (pair, lacking) in enumerate(todo if pairs is None else todo[:pairs]):
        end_s = window_end_s(plan, folders.read_runs(folder))
        if end_s is not None and time.time() >= end_s:
            raise errors.PartialResult(
                f"the window closed with {len(todo) - index} pairs missing", hint="perdure eval report says what holds"
            )
        planned = _planned(plan, pair, pace)
        tasks = tuple(Task(arm, pair, "arms", planned) for arm in lacking)
        groups = (tasks,) if plan.arms.order == "side-by-side" else tuple((task,) for task in tasks)
        for group in groups:
            made += work.make(group, plan.site.repetitions - len(todo) + index + 1, plan.site.repetitions)
    return tuple(made)


def missing(plan: Plan, log: RunLog) -> tuple[tuple[int, tuple[Arm, ...]], ...]:
    """Return the pairs that are not complete, each with the arms that it lacks in the order in which they are to run.

    In alternating order the first arm changes from pair to pair, and a pair that has one arm gets the other. Side by side both arms of a
    pair run at once: a broken pair is made anew under a number of its own. Broken and excluded runs do not count.
    """
    have: dict[int, set[Arm]] = {}
    for run in log.runs:
        if run.purpose == "arms" and run.finished and run.excluded is None:
            have.setdefault(run.pair, set()).add(run.arm)
    complete = {pair for pair, found in have.items() if len(found) == len(_ARMS)}
    if plan.arms.order == "side-by-side":
        used = {run.pair for run in log.runs if run.purpose == "arms"}
        free = (number for number in range(1, plan.site.repetitions + len(used) + 1) if number not in used)
        return tuple((next(free), _ARMS) for _ in range(plan.site.repetitions - len(complete)))
    numbers = range(1, plan.site.repetitions + 1)
    return tuple(
        (pair, tuple(arm for arm in (_ARMS if pair % 2 else _ARMS[::-1]) if arm not in have.get(pair, set())))
        for pair in numbers
        if pair not in complete
    )


def pace_of(plan: Plan, log: RunLog) -> Pace | None:
    """Return how the workload counts undisturbed, by the medians of the baseline; None without such a run."""
    found = [pace for run in _counted(plan, log) if not _is_disturbed(run) and (pace := _pace(run)) is not None]
    if not found:
        return None
    return Pace(statistics.median(each.per_s for each in found), statistics.median(each.last for each in found))


def window_end_s(plan: Plan, log: RunLog) -> float | None:
    """Return when the window closes, seconds since 1970: as the plan says, else its duration after the first run of an arm began."""
    window = plan.site.window
    if window is None:
        return None
    if window.end is not None:
        return window.end.timestamp()
    if window.duration_s is None:
        return None
    begun = [run.begun_unix_s for run in log.runs if run.purpose == "arms"]
    start_s = window.start.timestamp() if window.start is not None else min(begun, default=time.time())
    return start_s + window.duration_s


def refuse(plan: Plan) -> None:
    """Raise what forbids to run this plan here: `errors.Unsupported`, `errors.UsageError`, `errors.EnvironmentUnfit`."""
    if plan.site.where != "local":
        raise errors.Unsupported(
            'site.where is "slurm": runs are started on this machine alone', hint='write where = "local", and run this on the node itself'
        )
    if not plan.workload.command:
        raise errors.UsageError("the plan has no workload.command", hint="perdure eval status says what is missing")
    here = this_machine.hostname()
    if plan.site.nodes and here not in plan.site.nodes:
        raise errors.UsageError(f"the plan names the nodes {', '.join(plan.site.nodes)}, and this is {here}", hint="run it there")
    for lack in faults.lacks(plan.faults.kinds):
        raise errors.EnvironmentUnfit(lack, hint="run as root, or take it out of faults.kinds")


class _Work:
    """Makes runs, one or two at once, and appends each when it ends."""

    def __init__(self, folder: Folder, plan: Plan, stop: threading.Event, say: Say, look: Look) -> None:
        self._folder = folder
        self._plan = plan
        self._stop = stop
        self._say = say
        self._look = look
        self._recorders: dict[str, runs.Recorder] = {}
        self._clock = _clock(folder)
        self._appending = threading.Lock()

    def make(self, tasks: tuple[Task, ...], done: int, wanted: int) -> list[Run]:
        """Make the runs of `tasks` at once; raises the first error of them when all have ended."""
        log = folders.read_runs(self._folder)
        end_s = window_end_s(self._plan, log) if tasks[0].purpose == "arms" else None
        with ThreadPoolExecutor(len(tasks), "perdure-arm") as pool:
            futures = [pool.submit(self._one, task, end_s) for task in tasks]
            found = [future.result() for future in self._awaited(futures)]
        for run in found:
            self._say(Step(run, done, wanted))
            if run.excluded is not None:
                raise errors.PartialResult(
                    f"{run.id} does not count: {run.excluded}", hint=f"see what it printed: {self._folder.raw / run.id}/life-1-output.log"
                )
        if self._stop.is_set():
            raise errors.PartialResult("broken off: the run in progress is recorded as cut short", hint="the same command again goes on")
        return found

    def _awaited(self, futures: list[Future[Run]]) -> Iterator[Future[Run]]:
        """Yield the futures when all are done; one that failed breaks off the other."""
        with contextlib.ExitStack() as undone:
            undone.callback(self._stop.set)
            while not all(future.done() for future in futures):
                for future in futures:
                    if future.done() and future.exception() is not None:
                        self._stop.set()
                self._look(tuple(recorder.glimpse() for recorder in list(self._recorders.values())))
                time.sleep(_LOOK_S)
            undone.pop_all()
        failed = next((future for future in futures if future.exception() is not None), None)
        if failed is not None:
            failed.result()
        yield from futures

    def _one(self, task: Task, end_unix_s: float | None) -> Run:
        plan = self._plan
        run_id = f"{task.purpose}-{task.pair:03d}-{task.arm.value}-{secrets.token_hex(3)}"
        found = environment.read(plan)
        raw = folders.make_raw(self._folder, run_id)
        head = Run(
            id=run_id,
            arm=task.arm,
            pair=task.pair,
            repetition=task.pair,
            node=found.host,
            nodes=plan.workload.nodes,
            gpus=plan.workload.gpus,
            begun_unix_s=time.time(),
            environment=found,
            command=plan.workload.command,
            events=(),
            plan_hash=canonical.hash_for(plan, task.purpose),
            warm_up_s=plan.arms.warm_up_s,
            purpose=task.purpose,
        )
        recorder = runs.Recorder(raw, head)
        self._recorders[run_id] = recorder
        finished = False
        try:
            given = Given(
                plan=plan,
                arm=task.arm,
                places=places.of(raw, run_id),
                planned=task.planned,
                clock=self._clock,
                end_unix_s=end_unix_s,
                stop=self._stop,
            )
            finished = Conduct(given, recorder).run()
        finally:
            del self._recorders[run_id]
            run = _judged(recorder.close(finished=finished))
            with self._appending:
                folders.append_run(self._folder, run)
        return run


def _judged(run: Run) -> Run:
    """Return the run, excluded when it never did anything: that tells of a wrong command or plan, not of an arm."""
    if not run.finished or any(event.kind is EventKind.READY for event in run.events):
        return run
    ended = next((event.data for event in reversed(run.events) if event.kind is EventKind.ENDED), {})
    return msgspec.structs.replace(run, excluded=f"it made no progress at all, and its command ended with {ended.get('exit_status')}")


def _begin(folder: Folder, plan: Plan) -> RunLog:
    recover.recover(folder, plan)
    return folders.read_runs(folder)


def _planned(plan: Plan, pair: int, pace: Pace | None) -> tuple[Planned, ...]:
    if not plan.faults.kinds or plan.faults.seed is None:
        return ()
    if plan.faults.rate_per_hour is not None and pace is None:
        raise errors.UsageError("faults.rate_per_hour needs the pace of an undisturbed baseline", hint="perdure eval baseline measures it")
    return schedule.draw(plan.faults, pair=pair, pace=pace)


def _counted(plan: Plan, log: RunLog) -> tuple[Run, ...]:
    stands = {each.id for each in evidence.collect(plan, log)}
    return tuple(run for run in log.runs if run.id in stands and _completed(run))


def _completed(run: Run) -> bool:
    return any(event.kind is EventKind.ENDED and event.data.get("completed") is True for event in run.events)


def _require_completed(run: Run) -> None:
    if not _completed(run):
        ended = next((event.data for event in reversed(run.events) if event.kind is EventKind.ENDED), {})
        why = ended.get("reason") or f"its command ended with {ended.get('exit_status')}"
        raise errors.PartialResult(f"{run.id} did not complete: {why}", hint=f"see runs/{run.id} in the evaluation's folder")


def _is_disturbed(run: Run) -> bool:
    """Tell whether a run was planned to meet faults."""
    return any(event.kind in (EventKind.FAULT_PLANNED, EventKind.FAULT_INJECTED) for event in run.events)


def _pace(run: Run) -> Pace | None:
    signals = [event for event in run.events if event.kind is EventKind.PROGRESS and event.value is not None]
    if len(signals) < 2 or signals[-1].at_s <= signals[0].at_s:
        return None
    far = (signals[-1].value or 0.0) - (signals[0].value or 0.0)
    return Pace(far / (signals[-1].at_s - signals[0].at_s), signals[-1].value or 0.0) if far > 0 else None


def _clock(folder: Folder) -> Callable[[], float]:
    """Return the evaluation's clock: CLOCK_MONOTONIC since the first run on this boot, which a harness that goes on shares."""
    path = folder.path / _CLOCK
    boot_id = machine.boot_id()
    known = None
    with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
        known = msgspec.json.decode(path.read_bytes(), type=_Clock)
    if known is None or known.boot_id != boot_id:
        known = _Clock(boot_id, time.clock_gettime(time.CLOCK_MONOTONIC))
        files.write_bytes(path, msgspec.json.encode(known), mode=0o600)
    origin_s = known.origin_s
    return lambda: time.clock_gettime(time.CLOCK_MONOTONIC) - origin_s
