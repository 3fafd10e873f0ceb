"""The simulation itself: events in order of time, jobs that wait, run, end, come back. Called by `fleet.simulate`.

Everything happens in whole seconds. What an attempt's end will be is decided when it starts (`endings`); what follows from an
end is decided here. The history stops at the horizon: what runs then is RUNNING, what waits is PENDING.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from perdure.history.simulate import arrivals, endings
from perdure.history.simulate.draws import Stream
from perdure.history.simulate.endings import Ending
from perdure.history.simulate.hazards import Hazards
from perdure.history.simulate.jobs import DAY_S, HOUR_S, Job, Work, Workload
from perdure.history.simulate.nodes import NodePool
from perdure.history.simulate.records import Recorder
from perdure.history.simulate.spec import FleetSpec
from perdure.history.simulate.submissions import Submitter
from perdure.history.simulate.waiting import WaitingJobs

PASS_EVERY_S = 10
"""The scheduler looks at its queue on multiples of this."""

REQUEUE_DELAY_S = 120
"""Slurm's default requeue_delay: the lifetime of a credential."""

KEEPS_PLACE_GPUS = 64
"""A job of this size that is requeued keeps its place and its nodes free for it, as sites arrange with reservations."""

PATIENCE = 6
"""Requeues after which users begin to cancel a job that saves nothing."""

MOST_RESUBMISSIONS = 6
"""After this many new jobs for the same work, users give up."""

_Running = tuple[Job, int, tuple[int, ...], Ending]


class Engine:
    """One run of one fleet. `run` once, then read `recorder`."""

    def __init__(self, spec: FleetSpec, seed: int, workloads: list[Workload]) -> None:
        self._workloads = workloads
        self._horizon = spec.days * DAY_S
        self.hazards = Hazards(spec, Stream(seed, "hazards"))
        self._pool = NodePool(spec.gpus // spec.gpus_per_node, spec.gpus_per_node)
        self._line = WaitingJobs(self._pool)
        self._fate = endings.Fate(spec, self.hazards, Stream(seed, "fate"))
        self.submitter = Submitter(spec, Stream(seed, "submissions"))
        self.recorder = Recorder(self.submitter.new_record, Stream(seed, "records"))
        self._follow = Stream(seed, "follow")
        self._arrivals = arrivals.plan(workloads, spec.days, Stream(seed, "arrivals"))
        self._events: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._sequence = 0
        self._now = 0
        self._pass_at = -1
        self._running: dict[int, _Running] = {}
        self._waiting: dict[int, Job] = {}

    def run(self, report_day: Callable[[int], None]) -> None:
        """Simulate from the first second to the horizon and record every row. `report_day` hears of each day that is done."""
        for day in range(1, self._horizon // DAY_S):
            self._at(day * DAY_S, report_day, day)
        pending = iter(self._arrivals)
        arrival = next(pending, None)
        while True:
            event_at = self._events[0][0] if self._events else self._horizon
            if arrival is not None and arrival[0] <= event_at:
                self._now = arrival[0]
                self._arrive(*arrival[1:])
                arrival = next(pending, None)
                continue
            if event_at >= self._horizon:
                break
            self._now, _, action, argument = heapq.heappop(self._events)
            action(argument)
        self._now = self._horizon
        for job, start, nodes, ending in self._running.values():
            self.recorder.running(job, start, nodes, ending, self._horizon)
        self.recorder.pending(list(self._waiting.values()))

    def _at(self, when: int, action: Callable[[Any], None], argument: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (max(when, self._now), self._sequence, action, argument))

    # Submission ------------------------------------------------------------------------------------------------------

    def _arrive(self, index: int, first: int, count: int) -> None:
        workload = self._workloads[index]
        works = [self.submitter.new_work(workload, number) for number in range(first, first + count)]
        if workload.array and count > 1:
            self._submit_array(works)
        elif workload.segments > 1:
            self._submit_chain(works[0], workload.segments)
        else:
            for work in works:
                self._submit(self.submitter.single(work, self._now))

    def _submit_array(self, works: list[Work]) -> None:
        jobs = self.submitter.array(works, self._now)
        held = {job.raw_id for waiting in jobs for job in waiting.held}
        for job in jobs:
            self._submit(job, ready=job.raw_id not in held)

    def _submit_chain(self, work: Work, segments: int) -> None:
        for position, job in enumerate(self.submitter.chain(work, self._now, segments)):
            if position:
                job.eligible = None
            self._submit(job, ready=position == 0)

    def _submit(self, job: Job, *, ready: bool = True) -> None:
        job.db_index = self.submitter.new_record()
        self._waiting[job.raw_id] = job
        if job.deadline is not None:
            self._at(job.deadline, self._deadline, job)
        if ready and self._follow.chance(job.work.workload.withdraws):
            self._at(self._now + round(self._follow.log_normal(HOUR_S, 1.0)), self._withdraw, job)
        if ready:
            self._queue(job)

    def _queue(self, job: Job) -> None:
        if job.eligible is None:
            job.eligible = self._now
        job.waits_since = job.eligible
        self._line.add(job)
        self._ask_for_pass(self._now)

    def _release(self, job: Job) -> None:
        """Let a job that was held by another wait for nodes, unless it was cancelled meanwhile."""
        if not job.ended:
            self._queue(job)

    def _deadline(self, job: Job) -> None:
        self._end_unstarted(job, "deadline")

    def _withdraw(self, job: Job) -> None:
        self._end_unstarted(job, "withdrawn")

    def _end_unstarted(self, job: Job, cause: str) -> None:
        if self._waiting.pop(job.raw_id, None) is None:
            return
        job.queued = False
        self.recorder.never_started(job, cause, self._now)
        self._end_job(job)

    # Running ---------------------------------------------------------------------------------------------------------

    def _ask_for_pass(self, when: int) -> None:
        tick = -(-max(when, self._now) // PASS_EVERY_S) * PASS_EVERY_S
        if self._pass_at < self._now or tick < self._pass_at:
            self._pass_at = tick
            self._at(tick, self._pass, None)

    def _pass(self, _: None) -> None:
        self._pass_at = -1
        self._line.start_what_fits(self._now, self._start)

    def _start(self, job: Job, nodes: tuple[int, ...]) -> None:
        del self._waiting[job.raw_id]
        ending = self._fate.decide(job, nodes, self._now)
        running = (job, self._now, nodes, ending)
        self._running[job.raw_id] = running
        self._at(self._now + ending.elapsed_s + ending.suspended_s, self._end, running)

    def _end(self, running: _Running) -> None:
        job, start, nodes, ending = running
        del self._running[job.raw_id]
        gpus_each = min(job.work.workload.total_gpus, self._pool.gpus_per_node)
        for node in self._pool.release(nodes, gpus_each):
            self._repair(node)
        failed = None
        if ending.cause in {"infrastructure", "masked", "boot"}:
            failed = self.hazards.failing_node(nodes, self._follow)
            if self._pool.drain(failed):
                self._repair(failed)
        self.recorder.ended(job, start, nodes, ending, failed)
        self._after(job, ending)
        self._ask_for_pass(self._now)

    def _repair(self, node: int) -> None:
        back = self._now + max(600, round(self._follow.log_normal(HOUR_S, 1.0)))
        self._pool.expect_back(node, back)
        self._at(back, self._repaired, node)

    def _repaired(self, node: int) -> None:
        self._pool.repaired(node)
        self._ask_for_pass(self._now)

    # What follows ----------------------------------------------------------------------------------------------------

    def _after(self, job: Job, ending: Ending) -> None:
        work, workload = job.work, job.work.workload
        work.saved_s = endings.progress_s(job, ending)
        if ending.cause == "success":
            work.finished = True
            self._end_job(job)
            return
        if ending.cause in endings.INTERRUPTIONS:
            work.interrupted = True
        if ending.cause in {"user_requeue", "self_requeue"} or (
            workload.requeue and ending.cause in {"infrastructure", "boot", "preemption"}
        ):
            self._requeue(job)
            return
        had_follower = job.follower is not None and not job.follower.ended
        self._end_job(job)
        if had_follower or ending.cause == "user_cancel":
            return
        if work.resubmitted < MOST_RESUBMISSIONS and self._follow.chance(workload.resubmits):
            work.resubmitted += 1
            self._at(self._now + 30 + round(self._follow.log_normal(900.0, 1.2)), self._resubmit, work)

    def _requeue(self, job: Job) -> None:
        job.restarts += 1
        job.requeues_at_s = None
        job.submit = self._now + self._follow.between(1, 5)
        eligible = job.submit + REQUEUE_DELAY_S + 1
        job.eligible = eligible
        job.db_index = self.submitter.new_record()
        self._waiting[job.raw_id] = job
        if job.deadline is not None:
            self._at(job.deadline, self._deadline, job)
        if job.restarts >= PATIENCE and job.work.workload.app_interval_s is None and self._follow.chance(0.3):
            self._at(self._now + HOUR_S, self._withdraw, job)
        if job.work.workload.total_gpus >= KEEPS_PLACE_GPUS:
            self._line.add(job, first=True)
            self._ask_for_pass(eligible)
        else:
            self._at(eligible, self._requeued, job)

    def _requeued(self, job: Job) -> None:
        if not job.ended:
            job.waits_since = self._now
            self._line.add(job, first=True)
            self._ask_for_pass(self._now)

    def _resubmit(self, work: Work) -> None:
        if work.finished:
            return
        if work.workload.segments > 1:
            self._submit_chain(work, 2)
        else:
            self._submit(self.submitter.single(work, self._now))

    def _end_job(self, job: Job) -> None:
        """Let go what waited for this job to end for good."""
        job.ended = True
        for held in job.held:
            self._release(held)
        follower = job.follower
        if follower is None or follower.ended:
            return
        if job.work.finished and self._follow.chance(0.7):
            self._end_unstarted(follower, "withdrawn")
        else:
            self._release(follower)
