"""Two clocks that end at the same state: a native start from launch to ready, and a restore from the command to ready, by the same probe.

Called by `perdure eval coldstart`. The workload's own recipe is used as it is. First come the native starts, since they write in the folder
that a restored life goes on in; then one life under `perdure run` is brought to ready, asked, saved and killed, and that one checkpoint is
restored again and again. Every start is recorded in `runs.jsonl`, also the first of all, which only fills the page cache and says so.
"""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from perdure import errors
from perdure.evaluation import arms, canonical, command_line, environment, folder, local, page_cache, places, ready, recover, this_machine
from perdure.evaluation.arms import Listener
from perdure.evaluation.folder import Folder
from perdure.evaluation.places import Places
from perdure.evaluation.plan import Plan
from perdure.evaluation.plan_workload import Ready, Request
from perdure.evaluation.ready import Answer
from perdure.evaluation.runs import Recorder
from perdure.evaluation.watched import Watched
from perdure.model.evaluation import Arm, Event, EventKind, Run

Cache = Literal["cold", "warm"]
PREFIX = "coldstart-"
OUTPUT = "output.log"
_PRIMING = "it only filled the page cache, so that the warm starts after it are warm"
_FIRST_LIFE = "it made the checkpoint: a first life under perdure run, neither a native start nor a restore"
_CHECKPOINT_S = 7200.0
_VERIFIED_S = 60.0
"""How long after the first answer the engine may take to say that the workload runs."""


class Saved(msgspec.Struct, frozen=True):
    """The checkpoint that all restores bring back, where it lies, and what the workload answered before it."""

    id: str
    logical_bytes: int
    stored_bytes: int
    answers: tuple[Answer, ...]
    places: Places


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start to be made: native, the first life under Perdure (`saved` is None), or a restore."""

    id: str
    arm: Arm
    repetition: int
    cache: Cache
    saved: Saved | None = None
    excluded: str | None = None


class _Sides:
    """What is looked at while a start goes on: the probe, and what Perdure tells."""

    def __init__(self, probe: Callable[[], bool], listener: Listener, *, is_restore: bool) -> None:
        self._probe = probe
        self._listener = listener
        self.is_restore = is_restore
        self.is_ready = False
        self.is_restored = False

    def look(self, recorder: Recorder, clock: Callable[[], float]) -> _Sides:
        """Look once, and record what is seen for the first time."""
        if not self.is_ready and self._probe():
            self.is_ready = True
            recorder.event(Event(clock(), EventKind.READY))
        for said in self._listener.poll():
            if said.phase == "running" and said.text and not self.is_restored:
                self.is_restored = True
                at_s = clock() - (time.time_ns() - said.at_ns) / 1e9
                recorder.event(Event(at_s, EventKind.RESTORED, None, {"from": said.text}))
        return self


class Bench:
    """Makes the starts of one evaluation, which is locked; the caller is the only one `at_work`.

    `given` is the environment that the workload is started in; `clock` counts seconds from the begin. What an interrupted harness left is
    recorded first. Raises `errors.UsageError` for a plan that does not say when the workload is ready, or that names other nodes.
    """

    def __init__(self, there: Folder, plan: Plan, given: Mapping[str, str], clock: Callable[[], float]) -> None:
        if plan.workload.ready is None:
            raise errors.UsageError("the plan does not say when the workload is ready", hint="write workload.ready, with an amendment")
        here = this_machine.hostname()
        if plan.site.nodes and here not in plan.site.nodes:
            raise errors.UsageError(f"the plan names the nodes {', '.join(plan.site.nodes)}, and this is {here}", hint="measure it there")
        recover.recover(there, plan)
        _remove_states(there)
        self._ready: Ready = plan.workload.ready
        self._folder = there
        self._plan = plan
        self._given = given
        self._clock = clock
        self._environment = environment.read(plan)
        self._next = 1 + max((_number(name) for name in folder.raw_ids(there)), default=0)

    def measure(self, repetitions: int, caches: tuple[Cache, ...], tell: Callable[[str], None]) -> tuple[Run, ...]:
        """Make all starts, record each, and return them. `tell` is told what begins.

        Raises `errors.CheckpointFailed` when the workload cannot be saved, and what starting and recording raise; what was recorded until
        then stays.
        """
        made: list[Run] = []
        for start in self._natives(repetitions, caches):
            tell(f"native start, {start.cache} page cache")
            made.append(self._record(start)[0])
        tell("a first life under perdure run, to be saved")
        run, saved = self._record(self._start(Arm.MANAGED, 0, "warm", excluded=_FIRST_LIFE))
        made.append(run)
        try:
            if saved is None:
                raise errors.CheckpointFailed(f"{run.id} was not saved: {run.excluded}", hint=f"see {self._folder.raw / run.id}")
            for repetition in range(1, repetitions + 1):
                for cache in caches:
                    tell(f"restore, {cache} page cache")
                    made.append(self._record(self._start(Arm.MANAGED, repetition, cache, saved=saved))[0])
        finally:
            _remove_states(self._folder)
        return tuple(made)

    def _natives(self, repetitions: int, caches: tuple[Cache, ...]) -> Iterable[Start]:
        yield self._start(Arm.UNMANAGED, 0, "warm", excluded=_PRIMING)
        for repetition in range(1, repetitions + 1):
            for cache in caches:
                yield self._start(Arm.UNMANAGED, repetition, cache)

    def _start(self, arm: Arm, repetition: int, cache: Cache, *, saved: Saved | None = None, excluded: str | None = None) -> Start:
        number, self._next = self._next, self._next + 1
        side = "native" if arm is Arm.UNMANAGED else "first-life" if saved is None else "restore"
        # Sockets of evaluations in other folders lie beside ours, by the run's id.
        name = f"{PREFIX}{number:04d}-{side}-{cache}-{secrets.token_hex(3)}"
        return Start(id=name, arm=arm, repetition=repetition, cache=cache, saved=saved, excluded=excluded)

    def _record(self, start: Start) -> tuple[Run, Saved | None]:
        """Make a start and record it; returns the checkpoint of a first life beside it."""
        raw = folder.make_raw(self._folder, start.id)
        there = places.of(raw, start.id) if start.saved is None else start.saved.places
        recorder = Recorder(raw, self._head(start))
        saved, failure = None, None
        answers: tuple[Answer, ...] = ()
        if start.saved is None:
            self._set_up(there)
        listener = Listener(there.events)
        list(listener.poll())  # what earlier lives said
        if start.cache == "cold" and not page_cache.drop():
            raise errors.EnvironmentUnfit("the page cache cannot be emptied here", hint="measure warm starts alone: --cache warm")
        probe = ready.probe(_expanded(self._ready, there), raw / OUTPUT, self._working_directory)
        sides = _Sides(probe, listener, is_restore=start.saved is not None)
        self._say_begun(start, recorder)
        life = Watched(
            self._command(start.arm, there),
            working_directory=self._working_directory,
            environment=arms.environment(start.arm, there, start.id, self._given),
            log=raw / OUTPUT,
        )
        try:
            failure = _until_ready(life, recorder, sides, wanted=self._ready, clock=self._clock)
            if failure is None:
                answers = ready.ask(self._plan.workload.requests)
                if start.arm is Arm.MANAGED and start.saved is None:
                    saved, failure = self._save(start, recorder, there, answers)
        finally:
            life.close()
        verdict = _compared(start, answers)
        data = {"exit_status": life.exit_status, "completed": False, "answers": verdict, "got": msgspec.to_builtins(answers)}
        recorder.event(Event(self._clock(), EventKind.ENDED, None, data))
        run = msgspec.structs.replace(recorder.close(finished=True), excluded=failure or start.excluded)
        folder.append_run(self._folder, run)
        return run, saved

    @property
    def _working_directory(self) -> str:
        return self._plan.workload.working_directory or "."

    def _head(self, start: Start) -> Run:
        return Run(
            id=start.id,
            arm=start.arm,
            pair=start.repetition,
            repetition=start.repetition,
            node=self._environment.host,
            nodes=1,
            gpus=self._plan.workload.gpus,
            begun_unix_s=time.time(),
            environment=self._environment,
            command=self._plan.workload.command,
            events=(),
            plan_hash=canonical.hash_for(self._plan, "coldstart"),
            purpose="coldstart",
        )

    def _command(self, arm: Arm, there: Places) -> tuple[str, ...]:
        """Return the command of a side; nothing but the one checkpoint is made, whatever the plan's interval is."""
        options = _without_interval(self._plan.arms.managed_options)
        arms_table = msgspec.structs.replace(self._plan.arms, managed_options=(*options, "--every", "never"))
        return arms.command(msgspec.structs.replace(self._plan, arms=arms_table), arm, there)

    def _set_up(self, there: Places) -> None:
        there.scratch.mkdir(mode=0o700, exist_ok=True)
        setup = tuple(there.expand(word) for word in self._plan.workload.setup)
        if not setup:
            return
        try:
            done = subprocess.run(setup, cwd=self._working_directory, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError as error:
            raise errors.CommandMissing(f"workload.setup: {setup[0]}: {error.strerror}", hint="correct workload.setup") from error
        if done.returncode:
            raise errors.EnvironmentUnfit(f"workload.setup ended with {done.returncode}", hint="see what it says when run by hand")

    def _say_begun(self, start: Start, recorder: Recorder) -> None:
        data: dict[str, object] = {"cache": start.cache}
        kind = EventKind.LAUNCHED
        if start.saved is not None:
            kind = EventKind.RESTARTED
            data |= {
                "how": "restore",
                "checkpoint": start.saved.id,
                "logical_bytes": start.saved.logical_bytes,
                "stored_bytes": start.saved.stored_bytes,
            }
        recorder.event(Event(self._clock(), kind, None, data))

    def _save(self, start: Start, recorder: Recorder, there: Places, answers: tuple[Answer, ...]) -> tuple[Saved | None, str | None]:
        """Save the first life by our own command; returns the checkpoint, or why there is none.

        One that does not answer is not saved: nothing could be compared with what it answers later.
        """
        silent = _unanswered(self._plan.workload.requests, answers)
        if silent is not None:
            return None, silent
        recorder.event(Event(self._clock(), EventKind.CHECKPOINT_BEGUN))
        done = subprocess.run(
            command_line.perdure("checkpoint", arms.WORKLOAD, "--json"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=arms.environment(start.arm, there, start.id, self._given),
            timeout=_CHECKPOINT_S,
            check=False,
        )
        if done.returncode:
            return None, f"it could not be saved: {command_line.refusal(done.stderr).message}"
        document = msgspec.json.decode(done.stdout)
        saved = Saved(str(document["id"]), int(document["logical_bytes"]), int(document["stored_bytes"]), answers, there)
        sizes = {name: document[name] for name in ("id", "stopped_s", "logical_bytes", "stored_bytes", "new_bytes")}
        recorder.event(Event(self._clock(), EventKind.CHECKPOINT_DONE, None, sizes))
        return saved, None


def _until_ready(life: Watched, recorder: Recorder, sides: _Sides, *, wanted: Ready, clock: Callable[[], float]) -> str | None:
    """Wait until the probe passes, and for a restore also until the engine says that it runs; note when.

    Returns why the start does not count: the probe never passed, or what is ready is no restored workload; else None.
    """
    if life.wait(lambda: sides.look(recorder, clock).is_ready, patience_s=wanted.timeout_s):
        # The engine says so only when the tree is still alive a moment later, which may be after the first answer.
        if sides.is_restore and not life.wait(lambda: sides.look(recorder, clock).is_restored, patience_s=_VERIFIED_S):
            return "it was ready, but the engine did not say that it was restored"
        return None
    if life.is_over:
        return f"it ended with {life.exit_status} before it was ready"
    return f"it was not ready within {wanted.timeout_s:g} s by the {wanted.kind} probe"


def _remove_states(there: Folder) -> None:
    """Remove the checkpoints that first lives left, also those of a harness that was killed; nothing else stands on them."""
    for name in folder.raw_ids(there):
        if name.startswith(PREFIX):
            local.remove(places.of(there.raw / name, name))


def _expanded(wanted: Ready, there: Places) -> Ready:
    """Return the probe with the run's own folder filled in."""
    path = None if wanted.path is None else there.expand(wanted.path)
    return msgspec.structs.replace(wanted, path=path, command=tuple(there.expand(word) for word in wanted.command))


def _compared(start: Start, answers: tuple[Answer, ...]) -> str:
    """Say whether a restore answers as the workload did before the checkpoint; that there is no answer is never the same."""
    if start.saved is None or not start.saved.answers or not answers:
        return "not asked"
    is_answered = all(one.status for one in (*answers, *start.saved.answers))
    return "same" if is_answered and answers == start.saved.answers else "different"


def _unanswered(asked: Sequence[Request], answers: Sequence[Answer]) -> str | None:
    """Say which request was not answered, None when all were."""
    silent = next(((request, answer) for request, answer in zip(asked, answers, strict=False) if not answer.status), None)
    return None if silent is None else f"{silent[0].url} did not answer before the checkpoint: {silent[1].error}"


def _number(name: str) -> int:
    """Return the number in the id of a start, 0 for another run."""
    digits = name.removeprefix(PREFIX).partition("-")[0] if name.startswith(PREFIX) else ""
    return int(digits) if digits.isdigit() else 0


def _without_interval(options: tuple[str, ...]) -> tuple[str, ...]:
    kept, is_value = [], False
    for option in options:
        if is_value or option == "--every":
            is_value = option == "--every" and not is_value
        elif not option.startswith("--every="):
            kept.append(option)
    return tuple(kept)
