"""Conduct one run of one arm on Slurm: submit it, watch it, break it, and have it run again as Slurm does. Called by `harness`.

The job is one batch script in both arms; the managed one carries a comment that opts it in. Slurm puts a job into the queue again whose
node was lost or which was preempted. A job that ended otherwise by a fault is put there by the harness, in place of its owner, in both
arms. What is seen here is written down when it is seen; `slurm_course` then puts it where the accounting has it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from perdure import errors
from perdure.evaluation import faults, local, requests, restarter, slurm_course, slurm_job, slurm_output, slurm_programs, slurm_script
from perdure.evaluation.accounting import Look
from perdure.evaluation.conduct import Given
from perdure.evaluation.runs import Recorder
from perdure.evaluation.schedule import Planned
from perdure.evaluation.slurm_job import Job
from perdure.evaluation.slurm_strike import Strikes
from perdure.evaluation.watching import Watch
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

_TURN_S = 0.2
_LOOK_S = 1.0
"""squeue is asked this often."""
_LOOK_STRUCK_S = 0.5
"""After a fault it is asked more often: the next life must be seen to begin before what it writes is read."""
_READY_S = 1800.0
_JUST_BEFORE_S = 1e-6
_BY_SLURM = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "REQUEUED"})
"""States of a job that ended through no doing of its own."""
_LIMIT_SHARE = 0.5
"""A job that leaves in this last share of its time limit left because of it."""


class SlurmRun:
    """One run. Its events go to `recorder`."""

    def __init__(self, given: Given, recorder: Recorder) -> None:
        self._given = given
        self._plan = given.plan
        self._recorder = recorder
        self._watch = Watch(given.plan.workload, given.places, given.clock, signal=self._signalled, saved=self._saved)
        self._tail = slurm_output.Tail(given.places.raw / slurm_script.OUTPUT)
        self._keeping = slurm_output.Keeping(is_wanted=given.arm is Arm.MANAGED)
        self._strikes = Strikes(given.plan, recorder.run_id)
        self._coming = list(given.planned)
        self._struck: FaultKind | None = None
        self._fault_s = 0.0
        self._met = 0
        self._life = 0
        """Number of the life that was seen last, from 1; 0: none yet."""
        self._began_s = 0.0
        self._is_down = False
        """The life that was seen last is over."""
        self._is_hung = False
        """It is down because it hung, and Slurm is ending it: what it may still write is its own."""
        self._is_awaited = False
        """Interrupted, and not useful again."""
        self._last_signal_s: float | None = None
        self._first_ready_s: float | None = None
        self._fruitless = 0
        self._reached = False
        self._cut = ""
        self._looked_s = -float("inf")
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
        run = slurm_course.settle(run, found, origin_unix_s=began_unix_s + run.environment.clock_offset_s)
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
        for each in self._coming:
            data: dict[str, Any] = {"kind": each.kind.value} | ({} if each.drawn_s is None else {"drawn_s": each.drawn_s})
            self._event(EventKind.FAULT_PLANNED, each.counter, data)
        is_limited = any(each.kind is FaultKind.TIME_LIMIT for each in self._coming)
        limit_s = self._plan.faults.time_limit_s if is_limited else None
        path = there.raw / slurm_script.SCRIPT
        command = [there.expand(word) for word in work.command]
        path.write_text(slurm_script.script(command, self._recorder.run_id, there.raw, self._plan.versions), "utf-8")
        options = slurm_script.options(self._plan, self._given.arm, self._recorder.run_id, there.raw, limit_s)
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
        if self._cut or self._reached:
            return "completed" if self._reached else "failed"
        asked = requests.take(self._given.places.raw)
        if asked is not None and self._life and not self._is_down:
            self._strike(Planned(asked, None))
        following = None
        pause_s = _LOOK_S if self._struck is None else _LOOK_STRUCK_S
        if (self._is_down and self._tail.grown()) or now_s - self._looked_s >= pause_s:
            following = self._look()
        if not self._is_down or self._is_hung:
            self._read()  # what is written after a life's end is the next life's, and waits for its begin
        silent_s = now_s - max(self._began_s, self._last_signal_s or 0.0)
        if following is None and not self._is_down and self._life and silent_s >= self._silence_limit_s():
            self._hung()
        return following

    def _look(self) -> restarter.Next | None:
        self._looked_s = self._given.clock()
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
        self._began_s = self._given.clock()
        self._is_down, self._is_hung, self._last_signal_s, self._struck = False, False, None, None
        data = {"life": self._life, "job": self._job.number, "node": seen.node}
        if len(self._nodes) == 1:
            self._event(EventKind.LAUNCHED, self._watch.existing(), data)
        else:
            self._event(EventKind.RESTARTED, None, data | {"how": "start"})

    def _down(self, seen: Look) -> None:
        """The life is over, as Slurm shows."""
        self._is_down = True
        self._strike_at_limit(seen)
        if seen.state == "COMPLETED":
            return
        self._fruitless = self._fruitless + 1 if self._last_signal_s is None else 0
        self._event(EventKind.DETECTED, None, {"how": f"Slurm: {seen.state}", "exit_status": None})
        self._is_awaited = True
        self._strikes.is_down()

    def _over(self, seen: Look) -> restarter.Next | None:
        """The job has ended, and Slurm does not start it again by itself."""
        if seen.state == "COMPLETED":
            return "completed"
        end = restarter.End(
            status=None if seen.state in _BY_SLURM else 1, struck=self._struck, fruitless=self._fruitless, has_recovered=self._met > 0
        )
        if restarter.after(end) != "restart":
            fruitless = self._fruitless >= restarter.MOST_FRUITLESS
            self._cut = f"{self._fruitless} lives in a row made no progress" if fruitless else f"Slurm says {seen.state}"
            return "failed"
        self._cut = self._job.requeue()
        return "failed" if self._cut else None

    def _read(self) -> None:
        """Read what was written, for the counter and for Perdure's own words."""
        if not self._life:
            return
        content = self._tail.read()
        if content:
            for origin in self._keeping.feed(content):
                self._event(EventKind.RESTORED, None, {"from": origin})
            self._watch.printed(content, self._given.clock())
        self._watch.poll(is_up=True)

    def _signalled(self, at_s: float, counter: float) -> None:
        if self._struck in faults.AT_ONCE:
            self._recorder.signal(min(at_s, self._fault_s - _JUST_BEFORE_S), counter)
            return
        if self._last_signal_s is None:
            self._event(EventKind.READY, counter, at_s=at_s)
            if self._first_ready_s is None:
                self._first_ready_s = at_s - self._began_s
            if self._is_awaited:
                self._event(EventKind.USEFUL, counter, at_s=at_s)
            self._is_awaited, self._fruitless = False, 0
        self._last_signal_s = at_s
        self._recorder.signal(at_s, counter)
        target = self._plan.workload.progress.target if self._plan.workload.progress else None
        if target is not None and counter >= target:
            self._reached = True
        else:
            self._strike_at(counter)

    def _saved(self, at_s: float, counter: float) -> None:
        self._event(EventKind.RECOVERABLE, counter, {"source": "own"}, at_s)

    def _strike_at(self, counter: float) -> None:
        """The counter is at `counter`: strike if a fault is due there."""
        due = self._coming[0] if self._coming else None
        if due is None or due.counter is None or counter < due.counter or self._struck is not None or self._is_down:
            return
        if due.kind is FaultKind.TIME_LIMIT:
            return  # Slurm's own clock strikes
        self._strike(self._coming.pop(0))

    def _strike(self, planned: Planned) -> None:
        began_s = self._given.clock()
        data: dict[str, Any] = {"kind": planned.kind.value, "life": self._life}
        if planned.counter is None:
            data["by_hand"] = True
        try:
            if self._struck is not None:
                raise errors.Unsupported(f"the {self._struck.value} before it is not over yet")
            done = self._strikes.strike(planned.kind, self._job.number, self._nodes[-1])
        except (errors.Unsupported, errors.SchedulerUnavailable) as error:
            self._event(EventKind.FAULT_PLANNED, planned.counter, data | {"failed": str(error)})
            return
        # It struck while the command ran. Its begin is taken, in both arms: no recovery is called shorter than it was.
        self._struck, self._fault_s = planned.kind, began_s
        self._met += 1
        self._event(EventKind.FAULT_INJECTED, planned.counter, data | done | {"took_s": self._given.clock() - began_s}, began_s)

    def _strike_at_limit(self, seen: Look) -> None:
        """The life is over: by its time limit?"""
        due = self._coming[0] if self._coming else None
        limit_s = self._plan.faults.time_limit_s
        if due is None or due.kind is not FaultKind.TIME_LIMIT or limit_s is None or self._struck is not None:
            return
        now_s = self._given.clock()
        if seen.state != "TIMEOUT" and now_s - self._began_s < _LIMIT_SHARE * limit_s:
            return
        self._coming.pop(0)
        way = "Slurm ended it at its time limit" if seen.state == "TIMEOUT" else "it left before its time limit"
        self._struck, self._fault_s = FaultKind.TIME_LIMIT, now_s
        self._met += 1
        self._event(EventKind.FAULT_INJECTED, None, {"kind": FaultKind.TIME_LIMIT.value, "life": self._life, "way": way})

    def _hung(self) -> None:
        """Nobody but the harness finds a job that stands still."""
        self._is_down, self._is_hung, self._is_awaited = True, True, True
        self._fruitless = self._fruitless + 1 if self._last_signal_s is None else 0
        self._event(EventKind.DETECTED, None, {"how": "missing heartbeat", "exit_status": None})
        if self._fruitless >= restarter.MOST_FRUITLESS:
            self._cut = f"{self._fruitless} lives in a row made no progress"
            return
        if self._struck is None:
            # Nobody broke it: what it may still write was worked out before it stood still.
            self._struck, self._fault_s = FaultKind.HANG, self._given.clock()
        self._cut = self._job.requeue()

    def _silence_limit_s(self) -> float:
        work = self._plan.workload
        return restarter.silence_limit_s(
            heartbeat_s=work.progress.heartbeat_s if work.progress else _READY_S,
            has_signalled=self._last_signal_s is not None,
            is_up=True,
            first_ready_s=self._first_ready_s,
            ready_limit_s=_READY_S if work.ready is None else work.ready.timeout_s,
        )

    def _ended(self, following: restarter.Next) -> None:
        data: dict[str, Any] = {
            "exit_status": 0 if following == "completed" else None,
            "completed": following == "completed",
            "lives": len(self._nodes),
            "job": self._job.number,
        }
        if self._given.arm is Arm.MANAGED:
            data["checkpoints_told"] = False
        if self._cut:
            data["reason"] = self._cut
        if self._reached:
            data["reason"] = "the target was reached"
        self._event(EventKind.ENDED, None, data, max(self._given.clock(), self._recorder.last_s))

    def _event(self, kind: EventKind, value: float | None = None, data: dict[str, Any] | None = None, at_s: float | None = None) -> None:
        self._recorder.event(Event(self._given.clock() if at_s is None else at_s, kind, value, data or {}))

    def _clean(self) -> None:
        """Leave no job of this run behind, and bring nodes back that it lost."""
        self._watch.close()
        slurm_job.leave(self._recorder.run_id)
        self._strikes.close()
        local.remove(self._given.places)
