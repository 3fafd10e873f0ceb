"""Which runs are missing, and making them: the baseline, and pairs of one unmanaged and one managed run. Called by the commands.

A run is appended to `runs.jsonl` when it ends. A harness that was interrupted, however, is given the same command again: it records what
was broken off and makes what is missing.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import files
from perdure.base.proc import machine
from perdure.evaluation import (
    agenda,
    canonical,
    environment,
    faults,
    places,
    recover,
    runs,
    slurm_programs,
    slurm_script,
    slurm_strike,
    this_machine,
)
from perdure.evaluation import folder as folders
from perdure.evaluation.conduct import Conduct
from perdure.evaluation.folder import Folder, RunLog
from perdure.evaluation.given import Given
from perdure.evaluation.plan import Plan
from perdure.evaluation.runs import Glimpse
from perdure.evaluation.schedule import Planned
from perdure.evaluation.slurm_run import SlurmRun
from perdure.model.evaluation import Arm, EventKind, Run

_CLOCK = ".clock"
_LOOK_S = 0.1


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
        have = sum(agenda.is_disturbed(run) == disturbed for run in agenda.counted(plan, log))
        for number in range(have + 1, wanted + 1):
            planned = agenda.planned(plan, number, agenda.pace_of(plan, folders.read_runs(folder))) if disturbed else ()
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
    pace = agenda.pace_of(plan, log)
    made: list[Run] = []
    todo = agenda.missing(plan, log)
    for index, (pair, lacking) in enumerate(todo if pairs is None else todo[:pairs]):
        planned = agenda.planned(plan, pair, pace)
        tasks = tuple(Task(arm, pair, "arms", planned) for arm in lacking)
        groups = (tasks,) if plan.arms.order == "side-by-side" else tuple((task,) for task in tasks)
        for group in groups:
            _require_open(folder, plan, len(todo) - index)
            made += work.make(group, plan.site.repetitions - len(todo) + index + 1, plan.site.repetitions)
    return tuple(made)


def refuse(plan: Plan) -> None:
    """Raise what forbids to run this plan here: `errors.Unsupported`, `errors.UsageError`, `errors.EnvironmentUnfit`."""
    if not plan.workload.command:
        raise errors.UsageError("the plan has no workload.command", hint="perdure eval status says what is missing")
    if plan.site.where == "slurm":
        gone = slurm_programs.missing()
        if gone:
            raise errors.EnvironmentUnfit(f"{', '.join(gone)}: not found here", hint="run this where jobs are submitted")
        slurm_script.refuse(plan)
        for key, lack, remedy in slurm_strike.lacks(plan):
            raise errors.EnvironmentUnfit(f"{key}: {lack}", hint=remedy)
        return
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
        with ThreadPoolExecutor(len(tasks), "perdure-arm") as pool:
            futures = [pool.submit(self._one, task, log) for task in tasks]
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

    def _one(self, task: Task, log: RunLog) -> Run:
        plan = self._plan
        run_id = f"{task.purpose}-{task.pair:03d}-{task.arm.value}-{secrets.token_hex(3)}"
        found = environment.read(plan)
        if plan.site.where == "slurm":
            found = msgspec.structs.replace(found, clock_offset_s=slurm_programs.clock_offset_s())
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
        finished, conduct = False, None
        try:
            given = Given(
                plan=plan,
                arm=task.arm,
                places=places.of(raw, run_id),
                planned=task.planned,
                clock=self._clock,
                end_unix_s=agenda.window_end_s(plan, log, head.begun_unix_s) if task.purpose == "arms" else None,
                stop=self._stop,
            )
            conduct = SlurmRun(given, recorder) if plan.site.where == "slurm" else Conduct(given, recorder)
            finished = conduct.run()
        finally:
            del self._recorders[run_id]
            run = _judged(recorder.close(finished=finished))
            if conduct is not None and finished:
                run = conduct.settled(run)
            with self._appending:
                folders.append_run(self._folder, run)
        return run


def _require_open(folder: Folder, plan: Plan, lacking: int) -> None:
    now_s = time.time()
    end_s = agenda.window_end_s(plan, folders.read_runs(folder), now_s)
    if end_s is not None and now_s >= end_s:
        raise errors.PartialResult(f"the window closed with {lacking} pairs missing", hint="perdure eval report says what holds")


def _judged(run: Run) -> Run:
    """Return the run, excluded when it never did anything: that tells of a wrong command or plan, not of an arm."""
    if not run.finished or any(event.kind is EventKind.READY for event in run.events):
        return run
    ended = next((event.data for event in reversed(run.events) if event.kind is EventKind.ENDED), {})
    why = ended.get("reason") or f"its command ended with {ended.get('exit_status')}"
    return msgspec.structs.replace(run, excluded=f"it made no progress at all: {why}")


def _begin(folder: Folder, plan: Plan) -> RunLog:
    recover.recover(folder, plan)
    return folders.read_runs(folder)


def _require_completed(run: Run) -> None:
    if not agenda.is_completed(run):
        ended = next((event.data for event in reversed(run.events) if event.kind is EventKind.ENDED), {})
        why = ended.get("reason") or f"its command ended with {ended.get('exit_status')}"
        raise errors.PartialResult(f"{run.id} did not complete: {why}", hint=f"see runs/{run.id} in the evaluation's folder")


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
