"""A fleet's rows as the text that `sacct -a -D -X -P --noconvert` prints, with the fields of the recommended pull. Called by `fleet`.

Fields that users control come last, as a careful site orders them, so that a delimiter in a job name can be told from a column.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from perdure import errors
from perdure.history.simulate.jobs import DAY_S, Row
from perdure.history.simulate.spec import FleetSpec
from perdure.history.simulate.submissions import clock

FIELDS: tuple[str, ...] = (
    "Cluster", "DBIndex", "JobID", "JobIDRaw", "UID", "User", "Account", "Partition", "QOS", "Submit", "Eligible", "Start", "End",
    "ElapsedRaw", "Suspended", "TimelimitRaw", "State", "ExitCode", "DerivedExitCode", "Reason", "NNodes", "AllocNodes", "AllocCPUS",
    "ReqTRES", "AllocTRES", "NodeList", "FailedNode", "Restarts", "Planned", "Flags", "WCKey", "Constraints", "AdminComment",
    "SystemComment", "Comment", "Extra", "WorkDir", "SubmitLine", "JobName",
)  # fmt: skip

CPUS_PER_GPU = 12
MEMORY_PER_GPU_MB = 122_880
GPU_TYPE = "a100"
PARTITION = "gpu"


def check_delimiter(delimiter: str) -> None:
    """Refuse a delimiter that occurs in what Slurm itself writes. Raises `errors.UsageError`."""
    if not delimiter or not delimiter.isascii() or any(char.isalnum() or char in " -:=,[]%_./+()\r\n" for char in delimiter):
        raise errors.UsageError(f"delimiter {delimiter!r} would be taken for a part of the fields", hint="use | or |# or ^|^ or a tab")


class Renderer:
    """Formats the rows of one fleet. Strings that repeat are made once."""

    def __init__(self, spec: FleetSpec) -> None:
        first = datetime.date.fromisoformat(spec.start)
        self._days = [(first + datetime.timedelta(days=day)).isoformat() + "T" for day in range(spec.days + 1)]
        self._digits = max(3, len(str(spec.gpus // spec.gpus_per_node)))
        self._cluster = spec.cluster
        self._tres: dict[tuple[int, int], str] = {}

    def lines(self, rows: list[Row], delimiter: str) -> Iterator[str]:
        """Yield the header and one line a row, each with its newline; a command line may hold one more.

        Raises `errors.UsageError` for an impossible delimiter.
        """
        check_delimiter(delimiter)
        yield delimiter.join(FIELDS) + "\n"
        for row in rows:
            yield delimiter.join(self.cells(row)) + "\n"

    def cells(self, row: Row) -> tuple[str, ...]:
        """Return one row's texts, in the order of `FIELDS`."""
        job = row.job
        workload = job.work.workload
        user = workload.user
        gpus, wanted_nodes = size_of(row)
        job_id, raw_id = ids(row)
        started = row.start is not None
        requested = self._tres_text(gpus, wanted_nodes)
        return (
            self._cluster, str(row.db_index), job_id, str(raw_id), str(user.uid), user.name, user.account, PARTITION, workload.qos,
            self.time(row.submit), "Unknown" if row.eligible is None else self.time(row.eligible), self._start(row),
            "Unknown" if row.end is None else self.time(row.end), str(row.elapsed_s), clock(row.suspended_s), workload.limit_word,
            row.state if row.canceller is None else f"{row.state} by {row.canceller}",
            f"{row.exit_code}:{row.exit_signal}", f"{row.exit_code}:0", row.reason,
            str(wanted_nodes), str(len(row.nodes)), str(gpus * CPUS_PER_GPU if started else 0), requested, requested if started else "",
            self.node_list(row.nodes) if row.nodes else "None assigned",
            "" if row.failed_node is None else self._node(row.failed_node), str(row.restarts), clock(planned_s(row) or 0),
            "SchedMain" if started else "", "", workload.constraint, row.comment, "", "", "",
            work_dir(row), job.submit_line, job.name,
        )  # fmt: skip

    def time(self, second: int) -> str:
        """Format a second of the simulation as Slurm prints times."""
        day, rest = divmod(second, DAY_S)
        return "%s%02d:%02d:%02d" % (self._days[day], rest // 3600, rest % 3600 // 60, rest % 60)  # noqa: UP031 — twice as fast here

    def node_list(self, nodes: tuple[int, ...]) -> str:
        """Compress sorted nodes as Slurm does: ``gpu[001-004,007]``."""
        if len(nodes) == 1:
            return self._node(nodes[0])
        parts, first, last = [], nodes[0], nodes[0]
        for node in (*nodes[1:], -1):
            if node == last + 1:
                last = node
                continue
            low, high = (str(number + 1).zfill(self._digits) for number in (first, last))
            parts.append(low if first == last else f"{low}-{high}")
            first = last = node
        return parts[0].join(("gpu[", "]")) if len(parts) == 1 else f"gpu[{','.join(parts)}]"

    def _node(self, node: int) -> str:
        return "gpu" + str(node + 1).zfill(self._digits)

    def _start(self, row: Row) -> str:
        if row.start is not None:
            return self.time(row.start)
        return "Unknown" if row.end is None else "None"

    def _tres_text(self, gpus: int, nodes: int) -> str:
        text = self._tres.get((gpus, nodes))
        if text is None:
            cpus, memory = gpus * CPUS_PER_GPU, gpus * MEMORY_PER_GPU_MB
            text = f"billing={cpus},cpu={cpus},gres/gpu:{GPU_TYPE}={gpus},gres/gpu={gpus},mem={memory}M,node={nodes}"
            self._tres[gpus, nodes] = text
        return text


def size_of(row: Row) -> tuple[int, int]:
    """Return the GPUs and nodes that the row's job, or its component, asked for."""
    workload = row.job.work.workload
    return (workload.het_gpus, 1) if row.het_offset == 0 else (workload.gpus, workload.nodes)


def ids(row: Row) -> tuple[str, int]:
    """Return JobID and JobIDRaw."""
    job = row.job
    if row.pending_tasks:
        throttle = job.work.workload.throttle
        return f"{job.array_job}_[{_ranges(row.pending_tasks)}{f'%{throttle}' if throttle else ''}]", job.raw_id
    if row.het_offset is not None:
        return f"{job.raw_id}+{row.het_offset}", job.raw_id + row.het_offset
    return job.job_id, job.raw_id


def planned_s(row: Row) -> int | None:
    """Return the seconds from eligible to start; None without a start."""
    return None if row.start is None or row.eligible is None else max(0, row.start - row.eligible)


def work_dir(row: Row) -> str:
    """Return the working directory: one for each workload."""
    workload = row.job.work.workload
    return f"/scratch/{workload.user.name}/{workload.stem}"


def _ranges(tasks: tuple[int, ...]) -> str:
    parts, first, last = [], tasks[0], tasks[0]
    for task in (*tasks[1:], -1):
        if task == last + 1:
            last = task
            continue
        parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = task
    return ",".join(parts)
