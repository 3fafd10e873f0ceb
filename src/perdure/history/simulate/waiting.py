"""The queue: priority with backfill around one reservation (EASY, Lifka 1995). Called by the engine at each scheduling pass."""

from __future__ import annotations

import dataclasses
import heapq
from collections import deque
from collections.abc import Callable

from perdure.history.simulate.jobs import DAY_S, HOUR_S, Job
from perdure.history.simulate.nodes import NodePool
from perdure.history.simulate.spec import LOW_QOS

QOS_HEAD_START_S: dict[str, int] = {"high": 12 * HOUR_S, "normal": 4 * HOUR_S, LOW_QOS: 0}
"""How much longer than it has a job counts as having waited: Slurm's age and QOS priorities in one."""

RESERVATION_AGE_S = 300
"""A reservation is worked out anew after this long, or when another job waits at the head."""

LONGEST_PLAN_S = 30 * DAY_S
"""An unlimited job is planned to end after this long."""


@dataclasses.dataclass(slots=True)
class _Reservation:
    job: Job
    made: int
    shadow: int
    spare_nodes: int


@dataclasses.dataclass(slots=True)
class _Line:
    """Jobs of one size and quality of service, in the order in which they will start."""

    gpus: int
    nodes: int
    shares_node: bool
    head_start_s: int
    jobs: deque[Job] = dataclasses.field(default_factory=deque)

    def head_waits_since(self) -> int | None:
        """What the priority of the first job that still waits counts from; None when there is none."""
        jobs = self.jobs
        while jobs and not jobs[0].queued:
            jobs.popleft()
        return jobs[0].waits_since if jobs else None


class WaitingJobs:
    """Jobs that wait for nodes."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool
        self._lines: list[_Line] = []
        self._line_of: dict[tuple[str, int], _Line] = {}
        self._reservation: _Reservation | None = None

    def add(self, job: Job, *, first: bool = False) -> None:
        """Let `job` wait; `first` puts it ahead of its like."""
        job.queued = True
        workload = job.work.workload
        key = (workload.qos, workload.total_gpus)
        line = self._line_of.get(key) or self._new_line(key)
        if first:
            line.jobs.appendleft(job)
        else:
            line.jobs.append(job)

    def _new_line(self, key: tuple[str, int]) -> _Line:
        qos, gpus = key
        per_node = self._pool.gpus_per_node
        line = _Line(gpus, max(1, gpus // per_node), gpus < per_node, QOS_HEAD_START_S[qos])
        self._line_of[key] = line
        self._lines.append(line)
        return line

    def start_what_fits(self, now: int, start: Callable[[Job, tuple[int, ...]], None]) -> None:
        """Call `start` with every job that may start now, and its nodes."""
        idle = self._pool.idle
        heads: list[tuple[int, int]] = []
        for index, line in enumerate(self._lines):
            # Without an idle node only jobs that share one can start.
            if (idle or line.shares_node) and (since := line.head_waits_since()) is not None:
                heads.append((since - line.head_start_s, index))
        heapq.heapify(heads)
        reservation: _Reservation | None = None
        while heads:
            _, index = heapq.heappop(heads)
            line = self._lines[index]
            if not self._may_start(line, now, reservation):
                if reservation is None and not line.shares_node:
                    reservation = self._reserve(line, now)
                continue
            job = line.jobs.popleft()
            job.queued = False
            start(job, self._take(line, job, now))
            since = line.head_waits_since()
            if since is not None:
                heapq.heappush(heads, (since - line.head_start_s, index))

    def _may_start(self, line: _Line, now: int, reservation: _Reservation | None) -> bool:
        job = line.jobs[0]
        if _ready(job) > now:
            return False
        if line.shares_node and self._pool.has_part(line.gpus):
            return True
        if self._pool.idle < line.nodes:
            return False
        if reservation is None or now + job.work.workload.limit_s <= reservation.shadow:
            return True
        if line.nodes <= reservation.spare_nodes:
            reservation.spare_nodes -= line.nodes
            return True
        return False

    def _take(self, line: _Line, job: Job, now: int) -> tuple[int, ...]:
        expected_end = now + min(job.work.workload.limit_s, LONGEST_PLAN_S)
        if line.shares_node:
            return self._pool.take_part(line.gpus, expected_end)
        return self._pool.take_nodes(line.nodes, expected_end)

    def _reserve(self, line: _Line, now: int) -> _Reservation:
        job, kept = line.jobs[0], self._reservation
        if kept is None or kept.job is not job or now - kept.made > RESERVATION_AGE_S:
            shadow, spare = self._pool.reservation(line.nodes, now)
            self._reservation = kept = _Reservation(job, now, shadow, spare)
        return kept


def _ready(job: Job) -> int:
    if job.eligible is None:
        raise AssertionError("only jobs whose dependencies have ended wait in a line")
    return job.eligible
