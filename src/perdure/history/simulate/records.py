"""What accounting writes down: one `Row` for each attempt and each job that never started. Called by `engine`."""

from __future__ import annotations

from collections.abc import Callable

from perdure.history.simulate import endings
from perdure.history.simulate.draws import Stream
from perdure.history.simulate.endings import Ending
from perdure.history.simulate.jobs import Job, Row

_OPERATOR_COMMENTS = ("maintenance: rack power", "draining for firmware update", "job hung, killed by operator", "maintenance: cooling")


class Recorder:
    """Collects rows, and for the truth one `Row` per attempt with what was decided about it."""

    def __init__(self, new_record: Callable[[], int], stream: Stream) -> None:
        self._new_record = new_record
        self._stream = stream
        self.rows: list[Row] = []
        self.attempts: list[tuple[Row, Ending]] = []
        """Each attempt once, also those of heterogeneous jobs, which leave two rows."""

    def ended(self, job: Job, start: int, nodes: tuple[int, ...], ending: Ending, failed_node: int | None) -> None:
        """Record the end of an attempt."""
        row = self._row(job, ending.cause, start=start, end=start + ending.elapsed_s + ending.suspended_s, nodes=nodes)
        row.elapsed_s, row.suspended_s, row.failed_node = ending.elapsed_s, ending.suspended_s, failed_node
        if ending.cause == "operator":
            row.canceller, row.comment = 0, self._stream.pick(_OPERATOR_COMMENTS)
        elif ending.cause == "user_cancel":
            row.canceller = job.work.workload.user.uid
        self._add(row, ending)

    def running(self, job: Job, start: int, nodes: tuple[int, ...], ending: Ending, now: int) -> None:
        """Record an attempt that still runs when the history is read."""
        row = self._row(job, "running", start=start, end=None, nodes=nodes)
        row.elapsed_s = now - start
        self._add(row, ending)

    def never_started(self, job: Job, cause: str, now: int) -> None:
        """Record a job that ended before it was given nodes."""
        row = self._row(job, cause, end=now)
        row.canceller = job.work.workload.user.uid if cause == "withdrawn" else None
        row.reason = "Dependency" if job.eligible is None else "Priority"
        self._add(row, None)

    def pending(self, jobs: list[Job]) -> None:
        """Record the jobs that wait when the history is read; the fresh tasks of an array as one row."""
        arrays: dict[int, list[Job]] = {}
        for job in jobs:
            if job.array_job is not None and not job.restarts:
                arrays.setdefault(job.array_job, []).append(job)
            else:
                self._pending(job)
        for array_job, tasks in arrays.items():
            last = tasks[-1]
            row = self._pending(last)
            if last.raw_id == array_job:
                row.pending_tasks = tuple(sorted(task.array_task for task in tasks if task.array_task is not None))
            else:
                for task in tasks[:-1]:
                    self._pending(task)

    def _pending(self, job: Job) -> Row:
        row = self._row(job, "pending", end=None)
        row.reason = "Dependency" if job.eligible is None else "Priority"
        self._add(row, None)
        return row

    def _row(self, job: Job, cause: str, *, end: int | None, start: int | None = None, nodes: tuple[int, ...] = ()) -> Row:
        state, code, signal = endings.STATES.get(cause) or ("FAILED", *self._stream.pick(endings.USER_EXITS))
        row = Row(job, job.db_index, job.submit, job.eligible, job.restarts, start, end, 0, 0, state, cause, nodes=nodes)
        row.exit_code, row.exit_signal = code, signal
        return row

    def _add(self, row: Row, ending: Ending | None) -> None:
        if ending is not None:
            self.attempts.append((row, ending))
        workload = row.job.work.workload
        if not workload.het_gpus:
            self.rows.append(row)
            return
        # Component 0 holds the coordinating node, component 1 those that compute; both share every time.
        self.rows += [self._component(row, 0), self._component(row, 1)]

    def _component(self, row: Row, offset: int) -> Row:
        nodes = row.nodes[:1] if offset == 0 else row.nodes[1:]
        failed = row.failed_node if row.failed_node in nodes else None
        db_index = row.db_index if offset == 0 else self._new_record()
        return Row(
            row.job, db_index, row.submit, row.eligible, row.restarts, row.start, row.end, row.elapsed_s, row.suspended_s,
            row.state, row.cause, row.canceller, row.exit_code, row.exit_signal, nodes, failed, row.comment, row.reason, offset,
        )  # fmt: skip
