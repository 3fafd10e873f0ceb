"""Put one recipe through: run it undisturbed, run it under Perdure, save it, kill it, give the same command again, compare.

Called by `perdure eval matrix`. Perdure is driven through its command line alone, as a user drives it. Each recipe has a folder, a store
and a state of its own, so that none disturbs another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure import errors
from perdure.base.text import printable
from perdure.evaluation import command_line, comparison
from perdure.evaluation.arms import Listener, Said
from perdure.evaluation.command_line import Refusal
from perdure.evaluation.local import MARK
from perdure.evaluation.outcome import KEY, RecipeOutcome
from perdure.evaluation.recipes import Found, Recipe
from perdure.evaluation.watched import Watched
from perdure.model.evaluation import Event, EventKind

_WORKLOAD = "w"
_LATER = 75
_TRIES = 5


class _Ended(Exception):
    """A recipe came to its end before the last step."""

    def __init__(self, outcome: RecipeOutcome) -> None:
        super().__init__(outcome.detail)
        self.outcome = outcome


class Trial:
    """One recipe being put through below the folder `work`, which it makes; sockets go below `run_dir`, whose path must be short.

    `given` is the environment that commands are started in, `clock` counts seconds.
    """

    def __init__(self, found: Found, *, work: Path, run_dir: Path, given: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._recipe: Recipe = found.recipe
        self._beside = found.beside
        self._work = work
        self._folder = work / "folder"
        self._events_file = work / "perdure-events.jsonl"
        self._environment = dict(given) | {MARK: f"matrix-{found.recipe.name}"}
        self._perdure = self._environment | {"PERDURE_STATE": str(work / "state"), "PERDURE_RUN_DIR": str(run_dir)}
        self._clock = clock
        self._known = RecipeOutcome(recipe=found.recipe.name, result="failed", step="setup")
        self.events: list[Event] = []
        """What happened, for the record of its run."""

    def put_through(self) -> RecipeOutcome:
        """Return what became of the recipe. Raises `errors.OutputError` when its folder cannot be made."""
        try:
            self._work.mkdir(mode=0o700)
        except OSError as error:
            raise errors.OutputError(f"cannot make {self._work}: {error.strerror}", hint="choose another place: --work DIR") from error
        try:
            outcome = self._steps()
        except _Ended as end:
            outcome = end.outcome
        except errors.CommandMissing as error:
            outcome = self._now(detail=str(error))
        self.events.append(
            Event(self._clock(), EventKind.ENDED, None, {"completed": outcome.result == "works", KEY: msgspec.to_builtins(outcome)})
        )
        return outcome

    def _steps(self) -> RecipeOutcome:
        missing = [program for program in self._recipe.needs if shutil.which(program, path=self._environment.get("PATH")) is None]
        if missing:
            return self._now(result="not-run", step="needs", detail=f"not on this machine: {', '.join(missing)}")
        self._prepare()
        self._at("undisturbed")
        begun_s = self._clock()
        expected = self._undisturbed("alone")
        self._now(undisturbed_s=self._clock() - begun_s)
        self._prepare()
        self._first_life()
        self._second_life()
        self._at("compare")
        difference = self._difference(self._logs(), expected)
        if difference is not None:
            raise self._end(f"{difference}{self._own_difference(expected)}")
        return self._now(result="works", step="done", detail="")

    # The two runs ------------------------------------------------------------------------------------------------

    def _undisturbed(self, kept_as: str) -> bytes:
        """Run to the end without Perdure in the folder, move the folder away, and return what was printed."""
        log = self._work / f"{kept_as}.log"
        life = Watched(self._recipe.command, working_directory=str(self._folder), environment=self._environment, log=log)
        try:
            status = life.finish(patience_s=self._recipe.timeout_s)
        finally:
            life.close()
        if status != 0:
            how = f"not done after {self._recipe.timeout_s:g} s" if status is None else f"ended with {status}"
            raise self._end(f"{how}, undisturbed: {_tail(log)}")
        self._folder.rename(self._work / kept_as)
        return log.read_bytes()

    def _first_life(self) -> None:
        self._at("start")
        life = self._run("first.log", EventKind.LAUNCHED, {})
        try:
            self._until_checkpoint(life)
            self._at("checkpoint")
            self._save(life)
            if self._recipe.checkpoint_after.lines is not None:
                # What is printed after the checkpoint is printed again by the second life, and must stand there once.
                lines = life.lines
                life.wait(lambda: life.lines > lines, patience_s=self._recipe.timeout_s)
            if life.is_over:
                raise self._end("it ended before it could be killed: give it more to do, or save it earlier")
            self.events.append(Event(self._clock(), EventKind.FAULT_INJECTED, None, {"kind": "kill-tree"}))
        finally:
            life.close()

    def _second_life(self) -> None:
        self._at("restore")
        begun_s = self._clock()
        data = {"how": "restore", "cache": "as it was, in the matrix", "logical_bytes": self._known.logical_bytes}
        listener = Listener(self._events_file)
        list(listener.poll())
        life = self._run("second.log", EventKind.RESTARTED, data)
        try:
            started: list[Said] = []

            def is_started() -> bool:
                started.extend(said for said in listener.poll() if said.phase == "running")
                return bool(started)

            if not life.wait(is_started, patience_s=self._recipe.timeout_s):
                raise self._end(f"the same command again did not bring it back: {_tail(self._work / 'second.log')}")
            if not started[0].text:
                raise self._end("the same command again began anew instead of going on from the checkpoint")
            self._now(restore_s=self._clock() - begun_s)
            self.events.append(Event(self._clock(), EventKind.RESTORED, None, {"from": started[0].text}))
            self._at("end")
            status = life.finish(patience_s=self._recipe.timeout_s)
            if status != 0:
                how = f"was not done after {self._recipe.timeout_s:g} s" if status is None else f"ended with {status}"
                raise self._end(f"brought back, it {how}: {_tail(self._work / 'second.log')}")
        finally:
            life.close()

    def _run(self, log: str, kind: EventKind, data: dict[str, Any]) -> Watched:
        self.events.append(Event(self._clock(), kind, None, data))
        options = ("--name", _WORKLOAD, "--every", "never", "--quiet", "--events", str(self._events_file), *self._recipe.options)
        return Watched(
            (*command_line.perdure("run"), *options, "--", *self._recipe.command),
            working_directory=str(self._folder),
            environment=self._perdure,
            log=self._work / log,
        )

    def _until_checkpoint(self, life: Watched) -> None:
        after = self._recipe.checkpoint_after
        begun_s = self._clock()

        def is_due() -> bool:
            return life.lines >= after.lines if after.lines is not None else self._clock() - begun_s >= (after.seconds or 0.0)

        if not life.wait(is_due, patience_s=self._recipe.timeout_s) or life.is_over:
            how = f"ended with {life.exit_status}" if life.is_over else f"printed {life.lines} lines in {self._recipe.timeout_s:g} s"
            raise self._end(f"it {how} before it was to be saved: {_tail(self._work / 'first.log')}")

    def _save(self, life: Watched) -> None:
        begun_s = self._clock()
        done = self._ask("checkpoint", _WORKLOAD, "--json")
        for _ in range(_TRIES):
            if done.returncode != _LATER:
                break
            done = self._ask("checkpoint", _WORKLOAD, "--json")
        if done.returncode:
            raise self._refused(life, command_line.refusal(done.stderr))
        document = msgspec.json.decode(done.stdout)
        self._now(
            checkpoint=str(document["id"]),
            logical_bytes=document["logical_bytes"],
            stored_bytes=document["stored_bytes"],
            stopped_s=document["stopped_s"],
            checkpoint_s=self._clock() - begun_s,
        )
        sizes = {name: document[name] for name in ("id", "logical_bytes", "stored_bytes", "new_bytes", "stopped_s")}
        self.events.append(Event(self._clock(), EventKind.CHECKPOINT_DONE, None, sizes))

    def _refused(self, life: Watched, error: Refusal) -> _Ended:
        """Tell a refusal, after which the workload must end as if nobody had asked, from a failure."""
        if error.code != "checkpoint-refused":
            return self._end(f"it could not be saved: {error.message}", codes=(error.code,) if error.code else ())
        codes = error.problems or (error.code,)
        status = life.finish(patience_s=self._recipe.timeout_s)
        difference = None if status == 0 else f"it then ended with {status}"
        if difference is None:
            difference = self._difference(self._logs(), (self._work / "alone.log").read_bytes())
        if difference is not None:
            return self._end(f"refused, and the workload did not go on unharmed: {difference}", codes=codes)
        return _Ended(self._now(result="refused", codes=codes, detail=error.message))

    # Comparison --------------------------------------------------------------------------------------------------

    def _logs(self) -> bytes:
        done = self._ask("logs", _WORKLOAD)
        if done.returncode:
            raise self._end(f"what it printed cannot be had: {command_line.refusal(done.stderr).message}")
        return done.stdout

    def _difference(self, printed: bytes, expected: bytes) -> str | None:
        """Say how what is in the folder, and was printed, differs from the undisturbed run; None: it does not."""
        different = comparison.of_output(printed, expected, self._recipe.ignore)
        return different or comparison.of_files(self._folder, self._work / "alone", self._recipe.outputs)

    def _own_difference(self, expected: bytes) -> str:
        """Say so when an undisturbed run differs from another one, too."""
        self._folder.rename(self._work / "kept")
        self._prepare()
        again = self._undisturbed("again")
        self._folder = self._work / "again"
        if self._difference(again, expected) is None:
            return ""
        return "; but so do two undisturbed runs: leave out with ignore what is never the same"

    # Small things ------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make the folder, copy the recipe's files into it, and run its setup."""
        self._folder.mkdir(mode=0o700)
        for name in self._recipe.files:
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy(self._beside / name, target)
            except OSError as error:
                raise self._end(f"{name} cannot be copied: {error.strerror}") from error
        for argv in self._recipe.setup:
            try:
                done = subprocess.run(
                    argv,
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=self._recipe.timeout_s,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise self._end(f"setup: {argv[0]}: {error}") from error
            if done.returncode:
                raise self._end(f"setup: {argv[0]} ended with {done.returncode}: {_words(done.stderr)}")

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a command of ours beside the workload."""
        try:
            return subprocess.run(
                command_line.perdure(*arguments),
                cwd=self._folder,
                env=self._perdure,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._recipe.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self._end(f"perdure {arguments[0]} was not done after {self._recipe.timeout_s:g} s") from error

    def _at(self, step: str) -> None:
        self._now(step=step)

    def _now(self, **known: Any) -> RecipeOutcome:
        self._known = msgspec.structs.replace(self._known, **known)
        return self._known

    def _end(self, detail: str, *, codes: Sequence[str] = ()) -> _Ended:
        return _Ended(self._now(result="failed", detail=detail, codes=tuple(codes)))


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - 400))
            return _words(handle.read())
    except OSError:
        return ""


def _words(said: bytes) -> str:
    return printable(said.decode("utf-8", "replace").strip()[-300:])
