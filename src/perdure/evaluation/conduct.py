"""Conduct one run of one arm: start it, watch it, break it, start it again, and write down all that happens. Called by `harness`.

Both arms are started, watched, broken, timed and started again by the same lines, on the same clock. Which arm it is decides two things:
where the workload's processes are found, and that ``perdure run`` is believed when it says that the workload runs.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import msgspec

from perdure import errors
from perdure.evaluation import arms, faults, local, proof, requests, restarter
from perdure.evaluation.checkpoints import Checkpoints
from perdure.evaluation.device import Sampler
from perdure.evaluation.given import Given
from perdure.evaluation.local import Life, Told
from perdure.evaluation.pipes import Pipes
from perdure.evaluation.restarter import End
from perdure.evaluation.runs import Recorder
from perdure.evaluation.signs import Signs
from perdure.evaluation.striking import Striking
from perdure.evaluation.watching import Watch
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Run

_TURN_S = 0.05
"""Whatever has to be looked at is looked at this often; what the command prints is read at once."""


class Conduct:
    """One run. Its events go to `recorder`."""

    def __init__(self, given: Given, recorder: Recorder) -> None:
        self._given = given
        self._plan = given.plan
        self._recorder = recorder
        self._watch = Watch(given.plan.workload, given.places, given.clock, signal=self._signalled, saved=self._saved)
        self._listener = arms.Listener(given.places.events)
        self._checkpoints = Checkpoints(recorder.signals)
        self._signs = Signs(given.plan.workload, recorder)
        self._striking = Striking(
            given.plan.faults,
            given.arm,
            given.planned,
            heartbeat_s=self._signs.heartbeat_s,
            record=recorder.event,
            clock=given.clock,
        )
        self._device = Sampler(given.plan.workload.gpus)
        self._life: Life | None = None
        self._number = 0
        self._began_s = 0.0
        self._hung = False
        self._restarted: Event | None = None
        self._told: Told | None = None
        self._detected_s: float | None = None
        self._detection: Event | None = None
        """Not written yet: the end of a life that nothing interrupted is none."""
        self._cut = ""
        """Why the run is broken off or ended early; empty: it is not."""

    def run(self) -> bool:
        """Conduct the run; returns False when it was broken off. Nothing of it is left when this returns or raises.

        Raises `errors.EnvironmentUnfit` when the plan's setup fails or what was started cannot be ended, and what starting raises.
        """
        try:
            self._prepare()
            self._device.start()
            following = self._live()
            while following == "restart":
                if not self._wait_in_queue():
                    break
                following = self._live()
            if not self._given.stop.is_set():
                self._ended(following)
            return not self._given.stop.is_set()
        finally:
            self._clean()

    def settled(self, run: Run) -> Run:
        """Return the finished `run` with what its restores prove."""
        return msgspec.structs.replace(run, events=proof.prove(run.events, is_each_heard=self._watch.is_each_heard))

    def _prepare(self) -> None:
        self._given.places.scratch.mkdir(0o700, exist_ok=True)
        work = self._plan.workload
        if work.setup:
            setup = tuple(self._given.places.expand(word) for word in work.setup)
            local.set_up(setup, work.working_directory, self._environment(), self._given.places.raw / "setup.log")
        self._striking.prepare(faults.disk_place(self._plan.faults.disk_path, work.working_directory or ".", self._given.places.raw))

    def _environment(self) -> dict[str, str]:
        given = self._given
        found = arms.environment(given.arm, given.places, self._recorder.run_id, os.environ)
        if self._striking.disk is not None and self._plan.faults.disk_path is None:
            found["TMPDIR"] = str(self._striking.disk.place)
        if (limit_s := self._striking.limit_s()) is not None:
            found["SLURM_JOB_END_TIME"] = str(int(time.time() + limit_s))
        return found

    def _live(self) -> restarter.Next:
        """Start a life and stay with it until nothing of it is left."""
        self._number += 1
        self._told, self._detected_s = None, None
        self._hung, self._detection = False, None
        self._striking.begin(self._number)
        command = arms.command(self._plan, self._given.arm, self._given.places)
        is_node = FaultKind.NODE_LOST in self._plan.faults.kinds
        where = self._plan.workload.working_directory or "."
        self._watch.begin(self._number)
        self._began_s = self._given.clock()
        life = Life(command, working_directory=where, environment=self._environment(), is_node=is_node)
        self._life = life
        # The workload itself runs at once, or when Perdure says so.
        self._signs.begin(self._began_s, is_up=self._given.arm is Arm.UNMANAGED)
        self._commanded(life)
        try:
            self._stay(life)
        finally:
            life.close()
            self._life = None
            self._watch.end()
        if self._told is not None and self._told.failed is not None:
            raise errors.CommandMissing(f"cannot start {command[0]}: {self._told.failed}", hint="correct workload.command")
        return self._after()

    def _commanded(self, life: Life) -> None:
        """Write down that the command was given."""
        data: dict[str, Any] = {"life": self._number, "pid": life.pid}
        if self._number == 1:
            self._event(EventKind.LAUNCHED, self._watch.existing(), data, self._began_s)
            return
        how = "restore" if self._checkpoints.committed else "start"
        event = Event(self._began_s, EventKind.RESTARTED, None, data | {"how": how})
        if self._given.arm is Arm.MANAGED and self._checkpoints.committed:
            self._restarted = event  # written when Perdure says which of the two it is
        else:
            self._recorder.event(event)

    def _stay(self, life: Life) -> None:
        with Pipes(life, printed=self._printed, told=self._heard_cell, lost=lambda: self._detected("loss of its node")) as pipes:
            while pipes.are_open:
                pipes.wait(_TURN_S)
                self._watch.poll(is_up=self._restarted is None)
                self._listen()
                self._turn(life)
        self._watch.poll(is_up=self._restarted is None)
        self._listen()
        self._tell_restarted("start")

    def _printed(self, content: bytes) -> None:
        self._watch.printed(content, self._given.clock())

    def _heard_cell(self, told: Told) -> None:
        if told.started is not None and self._life is not None:
            self._watch.began(self._life)
        elif told.started is None:
            self._told = told
            self._detected("end of its process")

    def _detected(self, how: str) -> None:
        """Whoever restarts the workload knows that it is down."""
        if self._detected_s is None:
            self._detected_s = self._given.clock()
            status = None if self._told is None else self._told.ended
            self._detection = Event(self._detected_s, EventKind.DETECTED, data={"how": how, "exit_status": status})
            if self._striking.struck is not None or self._hung:
                self._tell_detected()

    def _tell_detected(self) -> None:
        if self._detection is not None:
            event, self._detection = self._detection, None
            self._recorder.event(event)

    def _listen(self) -> None:
        offset_s = time.time() - self._given.clock()
        for said in self._listener.poll():
            at_s = min(said.at_ns / 1e9 - offset_s, self._given.clock())
            if said.phase == "running":
                self._signs.up(at_s)
                self._tell_restarted("restore" if said.text else "start")
                if said.text:
                    self._watch.restored()
            for event in self._checkpoints.hear(said, at_s):
                self._recorder.event(event)

    def _tell_restarted(self, how: str) -> None:
        if self._restarted is not None:
            event, self._restarted = self._restarted, None
            self._recorder.event(msgspec.structs.replace(event, data=event.data | {"how": how}))

    def _turn(self, life: Life) -> None:
        """Do what time brings."""
        now_s = self._given.clock()
        if self._detected_s is not None:
            return
        if self._given.stop.is_set():
            self._cut = "the evaluation was broken off"
        elif self._given.end_unix_s is not None and time.time() >= self._given.end_unix_s:
            self._cut = "the window closed"
        if self._cut or (self._striking.kill_s is not None and now_s >= self._striking.kill_s):
            life.end()
            return
        asked = requests.take(self._given.places.raw)
        if asked is not None:
            self._striking.by_hand(asked, life)
        self._striking.pass_time(self._began_s, life)
        if self._signs.is_silent(now_s):
            self._hung = True
            self._detected("missing heartbeat")
            life.end()

    def _signalled(self, at_s: float, counter: float) -> None:
        """The workload's counter was seen."""
        if self._striking.struck in faults.AT_ONCE:
            self._signs.hear_late(at_s, counter, fault_s=self._striking.at_s)
            return
        self._signs.hear(at_s, counter)
        if self._life is None:
            return
        if self._signs.has_reached:
            self._life.end()
        else:
            self._striking.reached(counter, self._life)

    def _saved(self, at_s: float, counter: float) -> None:
        self._event(EventKind.RECOVERABLE, counter, {"source": "own"}, at_s)

    def _after(self) -> restarter.Next:
        """Nothing of the life is left: say what follows."""
        self._signs.end()
        following = restarter.after(
            End(
                status=None if self._told is None else self._told.ended,
                struck=self._striking.struck,
                hung=self._hung,
                is_target_reached=self._signs.has_reached,
                fruitless=self._signs.fruitless,
                has_recovered=self._striking.met > 0,
            )
        )
        if self._cut:
            return "failed"
        if following == "restart":
            self._tell_detected()
            self._signs.await_useful()
            self._striking.get_over()
        return following

    def _wait_in_queue(self) -> bool:
        """Wait as long as a requeued job waits, from the moment its end was known; returns False when the run is to end instead."""
        since_s = self._given.clock() if self._detected_s is None else self._detected_s
        left_s = since_s + self._plan.arms.requeue_delay_s - self._given.clock()
        if self._given.end_unix_s is not None and time.time() + left_s >= self._given.end_unix_s:
            left_s = self._given.end_unix_s - time.time()
            self._cut = "the window closed"
        return not self._given.stop.wait(max(0.0, left_s)) and not self._cut

    def _ended(self, following: restarter.Next) -> None:
        data: dict[str, Any] = {
            "exit_status": None if self._told is None else self._told.ended,
            "completed": following == "completed",
            "lives": self._number,
        }
        if self._cut:
            data["reason"] = self._cut
        elif self._signs.is_given_up:
            data["reason"] = f"{self._signs.fruitless} lives in a row made no progress"
        if self._signs.has_reached:
            data["reason"] = "the target was reached"
        data |= self._device.close()
        # What was printed last may have been read after the end was told.
        ended_s = self._given.clock() if self._detected_s is None else self._detected_s
        self._event(EventKind.ENDED, None, data, max(ended_s, self._recorder.last_s))

    def _event(self, kind: EventKind, value: float | None = None, data: dict[str, Any] | None = None, at_s: float | None = None) -> None:
        self._recorder.event(Event(self._given.clock() if at_s is None else at_s, kind, value, data or {}))

    def _clean(self) -> None:
        """Leave no process, disk or checkpoint behind."""
        self._device.close()
        if self._life is not None:
            self._life.close()
        self._watch.close()
        self._striking.close()
        local.kill(local.leftovers(self._recorder.run_id), signal.SIGKILL)
        local.remove(self._given.places)
