"""Conduct one run of one arm on Slurm: submit it, watch it, break it, and have it run again as Slurm does. Called by `harness`.

The job is one batch script in both arms; the managed one carries a comment that opts it in. Slurm puts a job into the queue again whose
node was lost or which was preempted. A job that ended otherwise by a fault is put there by the harness, in place of its owner, in both
arms. What is seen here is written down when it is seen; `slurm_course` then puts it where the accounting has it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from perdure import errors
from perdure.evaluation import (
    local,
    requests,
    restarter,
    signs,
    slurm_course,
    slurm_events,
    slurm_job,
    slurm_output,
    slurm_programs,
    slurm_script,
)
from perdure.evaluation.accounting import Look
from perdure.evaluation.arms import Said
from perdure.evaluation.checkpoints import Checkpoints
from perdure.evaluation.given import Given
from perdure.evaluation.runs import Recorder
from perdure.evaluation.signs import Signs
from perdure.evaluation.slurm_job import Job
from perdure.evaluation.slurm_striking import Striking
from perdure.evaluation.watching import Watch
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

_TURN_S = 0.2
_LOOK_S = 1.0
"""squeue is asked this often."""
_LOOK_STRUCK_S = 0.5
"""After a fault it is asked more often: the next life must be seen to begin before what it writes is read."""
_BY_SLURM = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REQUEUED"})
"""States of a job that ended through no doing of its own."""


class SlurmRun:
    """One run. Its events go to `recorder`."""

    def __init__(self, given: Given, recorder: Recorder) -> None:
        self._given = given
        self._plan = given.plan
        self._recorder = recorder
        self._watch = Watch(given.plan.workload, given.places, given.clock, signal=self._signalled, saved=self._saved)
        self._signs = Signs(given.plan.workload, recorder)
        self._tail = slurm_output.Tail(given.places.raw / slurm_script.OUTPUT)
        self._keeping = slurm_output.Keeping(is_wanted=given.arm is Arm.MANAGED)
        self._parting = slurm_events.Parting()
        self._checkpoints = Checkpoints(recorder.signals)
        self._striking = Striking(
            given.plan,
            given.arm,
            recorder.run_id,
            given.planned,
            heartbeat_s=self._signs.heartbeat_s,
            record=recorder.event,
            clock=given.clock,
        )
        self._life = 0
        """Number of the life that was seen last, from 1; 0: none yet."""
        self._is_down = False
        """The life that was seen last is over, since `_down_s`."""
        self._down_s = 0.0
        self._is_hung = False
        """It is down because it hung, and Slurm is ending it: what it may still write is its own."""
        self._late = b""
        """What was written since the last life was seen to be over, by whom is not known yet."""
        self._cut = ""
        self._looked_s = self._read_s = -float("inf")
        self._nodes: list[str] = []

    def run(self) -> bool:
        """Conduct the run; returns False when it was broken off. No job of it is left when this returns or raises.

        Raises `errors.SchedulerUnavailable` when Slurm does not answer any more, `errors.EnvironmentUnfit` when the setup or one of the
        site's commands fails, and `errors.Unsupported` when Slurm does not take the job.
        """
        try:
            self._job = self._submit()
            following = self._stay()
            if self._given.stop.is_set():
                return False
            self._ended(following)
            return True
        finally:
            self._clean()

    def settled(self, run: Run) -> Run:
        """Return the finished `run` with its times as the accounting has them, and with the environment of its node."""
        given = self._given
        began_unix_s = time.time() - given.clock()
        found = self._job.attempts(len(self._nodes), began_unix_s, given.places.raw)
        origin_unix_s = began_unix_s + run.environment.clock_offset_s
        run = slurm_course.settle(run, found, origin_unix_s=origin_unix_s, is_each_heard=self._watch.is_each_heard)
        facts = given.places.raw / slurm_script.FACTS
        return msgspec.structs.replace(
            run,
            environment=slurm_script.environment(facts.read_text("utf-8", "replace") if facts.exists() else "", run.environment),
            node=",".join(sorted(set(self._nodes))) or run.node,
            excluded=run.excluded or (self._keeping.trouble() if self._nodes else None) or None,
        )

    def _submit(self) -> Job:
        there, work = self._given.places, self._plan.workload
        there.scratch.mkdir(0o700, exist_ok=True)
        if work.setup:
            local.set_up(
                tuple(there.expand(word) for word in work.setup), work.working_directory, dict(os.environ), there.raw / "setup.log"
            )
        self._striking.announce()
        path = there.raw / slurm_script.SCRIPT
        command = [there.expand(word) for word in work.command]
        path.write_text(slurm_script.script(command, self._recorder.run_id, there.raw, self._plan.versions), "utf-8")
        options = slurm_script.options(self._plan, self._given.arm, self._recorder.run_id, there.raw, self._striking.limit_s())
        try:
            return Job(slurm_programs.submit(str(path), options, os.environ), self._given.clock)
        except slurm_programs.Refused as error:
            raise errors.Unsupported(f"sbatch refused the job: {error}", hint=f"try it by hand: {path}") from error

    def _stay(self) -> restarter.Next:
        """Follow the job until nothing more comes of it."""
        while True:
            following = self._turn()
            if following is not None:
                return following
            self._given.stop.wait(_TURN_S)

    def _turn(self) -> restarter.Next | None:
        now_s = self._given.clock()
        if self._given.stop.is_set():
            self._cut = "the evaluation was broken off"
        elif self._given.end_unix_s is not None and time.time() >= self._given.end_unix_s:
            self._cut = "the window closed"
        if self._cut or self._signs.has_reached:
            return "completed" if self._signs.has_reached else "failed"
        asked = requests.take(self._given.places.raw)
        if self._life and not self._is_down:
            self._striking.pass_time()
            if asked is not None:
                self._striking.by_hand(asked)
        following = None
        pause_s = _LOOK_S if self._striking.struck is None else _LOOK_STRUCK_S
        if (self._is_down and self._tail.grown()) or now_s - self._looked_s >= pause_s:
            following = self._look()
        if not self._is_down or self._is_hung:
            self._read()  # what is written after a life's end is the next life's, and waits for its begin
        if following is None and not self._is_down and self._life and self._signs.is_silent(now_s):
            self._hung()
        return following

    def _look(self) -> restarter.Next | None:
        self._looked_s = self._given.clock()
        if self._is_down and not self._is_hung:
            self._late += self._tail.read()
        seen = self._job.look()
        if seen is None:
            return None
        if seen.phase == "runs" and seen.restarts + 1 > self._life:
            self._begin(seen)
        elif seen.phase in ("waits", "over", "held") and self._life and (not self._is_down or self._is_hung):
            self._read()
            if not self._is_down:
                self._down(seen)
            self._is_hung = False
        # A life that Slurm had not begun yet has written nothing of it: a shared file system shows some last words late.
        late, self._late = self._late, b""
        if late:
            self._take(late)
        if seen.phase == "held":
            self._cut = f"Slurm holds the job: {seen.state}"
            return "failed"
        return self._over(seen) if seen.phase == "over" else None

    def _begin(self, seen: Look) -> None:
        """A life runs that was not seen before."""
        if self._life and not self._is_down:
            self._down(seen)
        if self._life:
            self._watch.end()
        self._life = seen.restarts + 1
        self._watch.begin(self._life)
        self._nodes.append(seen.node)
        self._is_down, self._is_hung = False, False
        self._read_s = self._given.clock()
        self._signs.begin(self._read_s, is_up=True)
        self._striking.begin(self._life, self._job.number, seen.node)
        data = {"life": self._life, "job": self._job.number, "node": seen.node}
        if len(self._nodes) == 1:
            self._event(EventKind.LAUNCHED, self._watch.existing(), data)
        else:
            self._event(EventKind.RESTARTED, None, data | {"how": "start"})

    def _down(self, seen: Look) -> None:
        """The life is over, as Slurm shows."""
        self._is_down, self._down_s = True, self._given.clock()
        self._striking.down(seen.state)
        if seen.state == "COMPLETED":
            return
        self._signs.end()
        self._event(EventKind.DETECTED, None, {"how": f"Slurm: {seen.state}", "exit_status": None})
        self._signs.await_useful()
        self._striking.is_down()

    def _over(self, seen: Look) -> restarter.Next | None:
        """The job has ended, and Slurm does not start it again by itself."""
        if seen.state == "COMPLETED":
            return "completed"
        end = restarter.End(
            status=None if seen.state in _BY_SLURM else 1,
            struck=self._striking.struck,
            fruitless=self._signs.fruitless,
            has_recovered=self._striking.met > 0,
        )
        if restarter.after(end) != "restart":
            self._cut = self._fruitless() if self._signs.is_given_up else f"Slurm says {seen.state}"
            return "failed"
        self._cut = self._job.requeue()
        return "failed" if self._cut else None

    def _read(self) -> None:
        """Read what was written, for the counter and for Perdure's own words."""
        if not self._life:
            return
        self._take(self._tail.read())
        self._watch.poll(is_up=True)

    def _take(self, content: bytes) -> None:
        """The life that was seen last has written `content`."""
        now_s = self._given.clock()  # of all that was read at once: it stays in the order in which it is written down
        if content:
            parted = self._parting.feed(content)
            for origin in self._keeping.feed(parted.own):
                self._event(EventKind.RESTORED, None, {"from": origin}, now_s)
            self._hear(parted.said, now_s)
            self._watch.printed(parted.own, now_s)
        self._read_s = now_s

    def _hear(self, told: Iterable[Said], now_s: float) -> None:
        """Perdure told of checkpoints of this life."""
        # What was said of a life that a fault ended at once was said before it. One that hangs may still be saved.
        is_late = self._striking.is_at_once and self._striking.struck is not FaultKind.HANG
        for said, at_s in slurm_events.times(tuple(told), since_s=self._read_s, now_s=now_s):
            if said.phase == "running":
                continue  # it is said in words, too
            for event in self._checkpoints.hear(said, signs.before(self._striking.at_s, at_s) if is_late else at_s):
                self._recorder.event(event)

    def _signalled(self, at_s: float, counter: float) -> None:
        if self._striking.is_at_once:
            self._signs.hear_late(at_s, counter, fault_s=self._striking.at_s)
            return
        if self._is_down:
            self._signs.hear_late(at_s, counter, fault_s=self._down_s)
            return
        self._signs.hear(at_s, counter)
        if not self._signs.has_reached:
            self._striking.reached(counter)

    def _saved(self, at_s: float, counter: float) -> None:
        self._event(EventKind.RECOVERABLE, counter, {"source": "own"}, at_s)

    def _hung(self) -> None:
        """Nobody but the harness finds a job that stands still."""
        self._is_down, self._is_hung, self._down_s = True, True, self._given.clock()
        self._signs.await_useful()
        self._signs.end()
        self._event(EventKind.DETECTED, None, {"how": "missing heartbeat", "exit_status": None})
        if self._signs.is_given_up:
            self._cut = self._fruitless()
            return
        self._striking.hung()
        self._striking.is_down()
        self._cut = self._job.requeue()

    def _fruitless(self) -> str:
        return f"{self._signs.fruitless} lives in a row made no progress"

    def _ended(self, following: restarter.Next) -> None:
        data: dict[str, Any] = {
            "exit_status": 0 if following == "completed" else None,
            "completed": following == "completed",
            "lives": len(self._nodes),
            "job": self._job.number,
        }
        if self._given.arm is Arm.MANAGED and self._parting.lives < self._keeping.lives:
            data["checkpoints_told"] = False
        if self._cut:
            data["reason"] = self._cut
        if self._signs.has_reached:
            data["reason"] = "the target was reached"
        self._event(EventKind.ENDED, None, data, max(self._given.clock(), self._recorder.last_s))

    def _event(self, kind: EventKind, value: float | None = None, data: dict[str, Any] | None = None, at_s: float | None = None) -> None:
        self._recorder.event(Event(self._given.clock() if at_s is None else at_s, kind, value, data or {}))

    def _clean(self) -> None:
        """Leave no job of this run behind, and bring nodes back that it lost."""
        self._watch.close()
        slurm_job.leave(self._recorder.run_id)
        self._striking.close()
        local.remove(self._given.places)
