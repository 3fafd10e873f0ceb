"""Conduct one run of one arm: start it, watch it, break it, start it again, and write down all that happens. Called by `harness`.

Both arms are started, watched, broken, timed and started again by the same lines, on the same clock. Which arm it is decides two things:
where the workload's processes are found, and that ``perdure run`` is believed when it says that the workload runs.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from perdure import errors
from perdure.evaluation import arms, faults, local, requests, restarter
from perdure.evaluation.checkpoints import Checkpoints
from perdure.evaluation.disk import Disk
from perdure.evaluation.local import Life, Told
from perdure.evaluation.places import Places
from perdure.evaluation.plan import Plan
from perdure.evaluation.restarter import End
from perdure.evaluation.runs import Recorder
from perdure.evaluation.schedule import Planned
from perdure.evaluation.watching import Watch
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind

_TURN_S = 0.05
"""Whatever has to be looked at is looked at this often; what the command prints is read at once."""
_READY_S = 1800.0
_JUST_BEFORE_S = 1e-6


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is given."""

    plan: Plan
    arm: Arm
    places: Places
    planned: tuple[Planned, ...]
    """Faults to come, in order."""
    clock: Callable[[], float]
    """Seconds of the evaluation's clock, which is CLOCK_MONOTONIC."""
    end_unix_s: float | None
    """When the window closes."""
    stop: threading.Event
    """Set to break the run off."""


class Conduct:
    """One run. Its events go to `recorder`."""

    def __init__(self, given: Given, recorder: Recorder) -> None:
        self._given = given
        self._plan = given.plan
        self._recorder = recorder
        self._coming = list(given.planned)
        self._watch = Watch(given.plan.workload, given.places, given.clock, signal=self._signalled, saved=self._saved)
        self._listener = arms.Listener(given.places.events)
        self._checkpoints = Checkpoints(recorder.signals)
        self._disk: Disk | None = None
        self._life: Life | None = None
        self._number = 0
        self._began_s = 0.0
        self._up_s: float | None = None
        """When the workload itself ran: at once, or when Perdure said so."""
        self._first_ready_s: float | None = None
        self._last_signal_s: float | None = None
        """In this life."""
        self._struck: Planned | None = None
        self._struck_s = 0.0
        self._faults_met = 0
        self._is_down = False
        """Interrupted, and not useful again."""
        self._hung = False
        self._kill_s: float | None = None
        self._fruitless = 0
        self._restarted: Event | None = None
        self._told: Told | None = None
        self._told_rest = b""
        self._detected_s: float | None = None
        self._reached = False
        self._cut = ""
        """Why the run is broken off or ended early; empty: it is not."""

    def run(self) -> bool:
        """Conduct the run; returns False when it was broken off. Nothing of it is left when this returns or raises.

        Raises `errors.EnvironmentUnfit` when the plan's setup fails or what was started cannot be ended, and what starting raises.
        """
        try:
            self._prepare()
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

    def _prepare(self) -> None:
        self._given.places.scratch.mkdir(0o700, exist_ok=True)
        work = self._plan.workload
        if work.setup:
            with open(self._given.places.raw / "setup.log", "wb") as log:
                setup = tuple(self._given.places.expand(word) for word in work.setup)
                done = subprocess.run(
                    setup,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=work.working_directory,
                    env=self._environment(),
                    check=False,
                )
            if done.returncode != 0:
                raise errors.EnvironmentUnfit(f"workload.setup ended with {done.returncode}", hint=f"see {log.name}")
        if FaultKind.DISK_FULL in self._plan.faults.kinds:
            self._disk = Disk(faults.disk_place(self._plan.faults.disk_path, work.working_directory or ".", self._given.places.raw))
        for each in self._coming:
            data: dict[str, Any] = {"kind": each.kind.value} | ({} if each.drawn_s is None else {"drawn_s": each.drawn_s})
            if each.kind is FaultKind.TIME_LIMIT:
                data["after_s"] = self._plan.faults.time_limit_s
            self._event(EventKind.FAULT_PLANNED, each.counter, data)

    def _environment(self) -> dict[str, str]:
        given = self._given
        found = arms.environment(given.arm, given.places, self._recorder.run_id, os.environ)
        if self._disk is not None and self._plan.faults.disk_path is None:
            found["TMPDIR"] = str(self._disk.place)
        if (limit_s := self._limit_s()) is not None:
            found["SLURM_JOB_END_TIME"] = str(int(time.time() + limit_s))
        return found

    def _limit_s(self) -> float | None:
        """Return the time limit of a life that begins now, None when it has none."""
        return self._plan.faults.time_limit_s if self._coming and self._coming[0].kind is FaultKind.TIME_LIMIT else None

    def _live(self) -> restarter.Next:
        """Start a life and stay with it until nothing of it is left."""
        self._number += 1
        self._told, self._told_rest, self._detected_s, self._last_signal_s = None, b"", None, None
        self._hung, self._kill_s, self._up_s = False, None, None
        command = arms.command(self._plan, self._given.arm, self._given.places)
        is_node = FaultKind.NODE_LOST in self._plan.faults.kinds
        where = self._plan.workload.working_directory or "."
        self._watch.begin(self._number)
        self._began_s = self._given.clock()
        life = Life(command, working_directory=where, environment=self._environment(), is_node=is_node)
        self._life = life
        if self._given.arm is Arm.UNMANAGED:
            self._up_s = self._began_s
        self._commanded(life)
        self._watch.began(life)
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
        with selectors.DefaultSelector() as waiting:
            waiting.register(life.output, selectors.EVENT_READ, self._read_output)
            waiting.register(life.told, selectors.EVENT_READ, self._read_told)
            while waiting.get_map():
                for key, _ in waiting.select(_TURN_S):
                    if not key.data(life):
                        waiting.unregister(key.fd)
                self._watch.poll(is_up=self._restarted is None)
                self._listen()
                self._turn(life)
        self._watch.poll(is_up=self._restarted is None)
        self._listen()
        self._tell_restarted("start")

    def _read_output(self, life: Life) -> bool:
        try:
            content = os.read(life.output, 1 << 16)
        except BlockingIOError:
            return True
        if content:
            self._watch.printed(content, self._given.clock())
        return bool(content)

    def _read_told(self, life: Life) -> bool:
        try:
            content = os.read(life.told, 4096)
        except BlockingIOError:
            return True
        *whole, self._told_rest = (self._told_rest + content).split(b"\n")
        for line in whole:
            told = msgspec.json.decode(line, type=Told)
            if told.started is None:
                self._told = told
                self._detected("end of its process")
        if not content and self._told is None:
            self._detected("loss of its node")
        return bool(content)

    def _detected(self, how: str) -> None:
        """Whoever restarts the workload knows that it is down."""
        if self._detected_s is None:
            self._detected_s = self._given.clock()
            status = None if self._told is None else self._told.ended
            if self._struck is not None or self._hung or status == restarter.TRY_AGAIN:
                self._event(EventKind.DETECTED, None, {"how": how, "exit_status": status}, self._detected_s)

    def _listen(self) -> None:
        offset_s = time.time() - self._given.clock()
        for said in self._listener.poll():
            at_s = min(said.at_ns / 1e9 - offset_s, self._given.clock())
            if said.phase == "running":
                self._up_s = at_s
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
        if self._cut or (self._kill_s is not None and now_s >= self._kill_s):
            life.end()
            return
        asked = requests.take(self._given.places.raw)
        if asked is not None:
            self._strike(Planned(asked, None))
        limit_s = self._limit_s()
        if limit_s is not None and self._struck is None and now_s - self._began_s >= limit_s:
            self._strike(self._coming.pop(0))
        if now_s - max(self._began_s, self._up_s or 0.0, self._last_signal_s or 0.0) >= self._silence_limit_s():
            self._hung = True
            self._detected("missing heartbeat")
            life.end()
        elif self._struck is not None and self._struck.kind in faults.SURVIVABLE and now_s - self._struck_s >= self._plan_heartbeat_s():
            self._get_over()

    def _get_over(self) -> None:
        """The fault is over, and the life with it or not."""
        self._struck = None
        if self._disk is not None:
            self._disk.free()

    def _plan_heartbeat_s(self) -> float:
        return self._plan.workload.progress.heartbeat_s if self._plan.workload.progress else _READY_S

    def _silence_limit_s(self) -> float:
        ready = self._plan.workload.ready
        return restarter.silence_limit_s(
            heartbeat_s=self._plan_heartbeat_s(),
            has_signalled=self._last_signal_s is not None,
            is_up=self._up_s is not None,
            first_ready_s=self._first_ready_s,
            ready_limit_s=_READY_S if ready is None else ready.timeout_s,
        )

    def _signalled(self, at_s: float, counter: float) -> None:
        """The workload's counter was seen."""
        if self._struck is not None and self._struck.kind in faults.AT_ONCE:
            # It was said before the fault, and read after it.
            at_s = min(at_s, self._struck_s - _JUST_BEFORE_S)
            self._recorder.signal(at_s, counter)
            return
        if self._last_signal_s is None:
            self._recorder.event(Event(at_s, EventKind.READY, counter))
            if self._first_ready_s is None:
                self._first_ready_s = at_s - self._began_s
            if self._is_down:
                self._recorder.event(Event(at_s, EventKind.USEFUL, counter))
            self._is_down, self._fruitless = False, 0
        self._last_signal_s = at_s
        self._recorder.signal(at_s, counter)
        target = self._plan.workload.progress.target if self._plan.workload.progress else None
        if target is not None and counter >= target and not self._reached:
            self._reached = True
            if self._life is not None:
                self._life.end()
            return
        due = self._coming[0] if self._coming else None
        if due is None or due.counter is None or due.kind is FaultKind.TIME_LIMIT:
            return
        if counter >= due.counter and self._struck is None:
            self._strike(self._coming.pop(0))

    def _saved(self, at_s: float, counter: float) -> None:
        self._event(EventKind.RECOVERABLE, counter, {"source": "own"}, at_s)

    def _strike(self, planned: Planned) -> None:
        """Do a fault to this life, once it has one."""
        life = self._life
        if life is None:
            return
        data: dict[str, Any] = {"kind": planned.kind.value, "life": self._number}
        if planned.counter is None:
            data["by_hand"] = True
        try:
            if self._struck is not None:
                raise errors.Unsupported(f"the {self._struck.kind.value} before it is not over yet")
            done = faults.inject(planned.kind, life.processes(self._given.arm), node=life.node, disk=self._disk)
        except (errors.ProcessGone, errors.Unsupported) as error:
            self._event(EventKind.FAULT_PLANNED, planned.counter, data | {"failed": str(error)})
            return
        self._struck, self._struck_s = planned, self._given.clock()
        self._faults_met += 1
        self._event(EventKind.FAULT_INJECTED, planned.counter, data | done, self._struck_s)
        if planned.kind in faults.ASKED_FIRST:
            self._kill_s = self._struck_s + self._plan.faults.grace_s

    def _after(self) -> restarter.Next:
        """Nothing of the life is left: say what follows."""
        self._fruitless = self._fruitless + 1 if self._last_signal_s is None else 0
        following = restarter.after(
            End(
                status=None if self._told is None else self._told.ended,
                struck=None if self._struck is None else self._struck.kind,
                hung=self._hung,
                is_target_reached=self._reached,
                fruitless=self._fruitless,
                has_recovered=self._faults_met > 0,
            )
        )
        if self._cut:
            return "failed"
        if following == "restart":
            self._is_down = True
            self._get_over()
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
        elif self._fruitless >= restarter.MOST_FRUITLESS:
            data["reason"] = f"{self._fruitless} lives in a row made no progress"
        if self._reached:
            data["reason"] = "the target was reached"
        self._event(EventKind.ENDED, None, data, self._detected_s)

    def _event(self, kind: EventKind, value: float | None = None, data: dict[str, Any] | None = None, at_s: float | None = None) -> None:
        self._recorder.event(Event(self._given.clock() if at_s is None else at_s, kind, value, data or {}))

    def _clean(self) -> None:
        """Leave no process, disk or checkpoint behind."""
        if self._life is not None:
            self._life.close()
        self._watch.close()
        if self._disk is not None:
            self._disk.close()
        local.kill(local.leftovers(self._recorder.run_id), signal.SIGKILL)
        local.remove(self._given.places)
