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


class WaitingLine:
    """Jobs that wait for nodes, in a line for each size and quality of service."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool
        self._lines: dict[tuple[str, int], deque[Job]] = {}
        self._reservation: _Reservation | None = None

    def add(self, job: Job, *, first: bool = False) -> None:
        """Let `job` wait; `first` puts it ahead of its like."""
        job.queued = True
        line = self._lines.setdefault((job.work.workload.qos, job.work.workload.total_gpus), deque())
        if first:
            line.appendleft(job)
        else:
            line.append(job)

    def start_what_fits(self, now: int, start: Callable[[Job, tuple[int, ...]], None]) -> None:
        """Call `start` with every job that may start now, and its nodes."""
        heads = [entry for key in self._lines if (entry := self._head(key))]
        heapq.heapify(heads)
        reservation: _Reservation | None = None
        while heads:
            _, key = heapq.heappop(heads)
            job = self._lines[key][0]
            if not self._may_start(job, now, reservation):
                if reservation is None and job.work.workload.total_gpus >= self._pool.gpus_per_node:
                    reservation = self._reserve(job, now)
                continue
            self._lines[key].popleft()
            job.queued = False
            start(job, self._take(job, now))
            entry = self._head(key)
            if entry:
                heapq.heappush(heads, entry)

    def _head(self, key: tuple[str, int]) -> tuple[int, tuple[str, int]] | None:
        line = self._lines[key]
        while line and not line[0].queued:
            line.popleft()
        return (_ready(line[0]) - QOS_HEAD_START_S[key[0]], key) if line else None

    def _node_count(self, job: Job) -> int:
        return max(1, job.work.workload.total_gpus // self._pool.gpus_per_node)

    def _may_start(self, job: Job, now: int, reservation: _Reservation | None) -> bool:
        if _ready(job) > now:
            return False
        workload = job.work.workload
        if workload.total_gpus < self._pool.gpus_per_node and self._pool.has_part(workload.total_gpus):
            return True
        count = self._node_count(job)
        if self._pool.idle < count:
            return False
        if reservation is None or now + workload.limit_s <= reservation.shadow:
            return True
        if count <= reservation.spare_nodes:
            reservation.spare_nodes -= count
            return True
        return False

    def _take(self, job: Job, now: int) -> tuple[int, ...]:
        workload = job.work.workload
        expected_end = now + min(workload.limit_s, LONGEST_PLAN_S)
        if workload.total_gpus < self._pool.gpus_per_node:
            return self._pool.take_part(workload.total_gpus, expected_end)
        return self._pool.take_nodes(self._node_count(job), expected_end)

    def _reserve(self, job: Job, now: int) -> _Reservation:
        kept = self._reservation
        if kept is None or kept.job is not job or now - kept.made > RESERVATION_AGE_S:
            shadow, spare = self._pool.reservation(self._node_count(job), now)
            self._reservation = kept = _Reservation(job, now, shadow, spare)
        return kept


def _ready(job: Job) -> int:
    if job.eligible is None:
        raise AssertionError("only jobs whose dependencies have ended wait in a line")
    return job.eligible
