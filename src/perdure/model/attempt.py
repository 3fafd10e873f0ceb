"""The attempt: one run of one job, the record that every accounting source is turned into.

`COLUMNS` is the one definition of the attempts table (a Parquet file): readers produce exactly these columns in this
order, every analysis starts from them. A change here needs a new `FORMAT`.
"""

from __future__ import annotations

import enum

import msgspec

FORMAT = 1
"""Version of the attempts table, stored in the Parquet key-value metadata under ``perdure_attempts_format``."""


class Outcome(enum.StrEnum):
    """How an attempt ended, as far as accounting can tell. The value is what the table holds."""

    SUCCESS = "success"
    USER_FAILURE = "user_failure"
    """Ended by the job's own logic: FAILED, OUT_OF_MEMORY. Never an interruption."""
    INFRASTRUCTURE = "infrastructure"
    """NODE_FAIL, BOOT_FAIL, LAUNCH_FAILED, RECONFIG_FAIL."""
    SUSPECTED_INFRASTRUCTURE = "suspected_infrastructure"
    """FAILED with a failed node named, or killed by a signal the job did not send itself; only the inclusive rate counts it."""
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    """A requeue record: somebody or something asked for another attempt; the cause is unknown. Inclusive only."""
    WALLTIME = "walltime"
    """TIMEOUT. Deterministic: never part of a rate."""
    DEADLINE = "deadline"
    USER_CANCEL = "user_cancel"
    OPERATOR_CANCEL = "operator_cancel"
    """Cancelled by root, the scheduler's user or anybody but the owner."""
    CENSORED = "censored"
    """Still running or suspended when the history was read: exposure without an event."""
    NEVER_STARTED = "never_started"
    """Pending, or ended before it was given nodes. No exposure."""
    OTHER = "other"
    """A state this version does not know; kept, exposed, no event."""


class Cause(enum.StrEnum):
    """The causes of interruption that are kept apart."""

    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    OPERATOR = "operator"
    WALLTIME = "walltime"


STRICT: dict[Outcome, Cause] = {
    Outcome.INFRASTRUCTURE: Cause.INFRASTRUCTURE,
    Outcome.PREEMPTED: Cause.PREEMPTION,
    Outcome.OPERATOR_CANCEL: Cause.OPERATOR,
    Outcome.WALLTIME: Cause.WALLTIME,
}
"""What counts as an interruption when only unmistakable records count."""

INCLUSIVE: dict[Outcome, Cause] = {
    **STRICT,
    Outcome.SUSPECTED_INFRASTRUCTURE: Cause.INFRASTRUCTURE,
    Outcome.REQUEUED: Cause.INFRASTRUCTURE,
}
"""What counts when every record that may hide an infrastructure failure counts as one."""


class Column(msgspec.Struct, frozen=True):
    """One column of the attempts table. `sql` is its DuckDB type; every column may be NULL, meaning *not known*."""

    name: str
    sql: str
    doc: str


COLUMNS: tuple[Column, ...] = (
    Column("cluster", "VARCHAR", "cluster name, from the record, else from --cluster"),
    Column("db_index", "BIGINT", "slurmdbd's DBIndex: unique per record within a cluster"),
    Column("job_id", "VARCHAR", "the id as the user knows it: 123, 123_4, 123+1"),
    Column("raw_id", "VARCHAR", "JobIDRaw: one number per array task and het component; other sources: their own id"),
    Column("array_job", "BIGINT", "array's job id"),
    Column("array_task", "BIGINT", "task index in the array"),
    Column("array_tasks", "BIGINT", "tasks a pending summary row stands for (123_[0-9%2] → 10)"),
    Column("het_job", "BIGINT", "leading job id of a heterogeneous job"),
    Column("het_offset", "INTEGER", "component of a heterogeneous job"),
    Column("user", "VARCHAR", "user name"),
    Column("uid", "BIGINT", "numeric user id"),
    Column("account", "VARCHAR", "account charged"),
    Column("partition", "VARCHAR", "partition or queue"),
    Column("qos", "VARCHAR", "quality of service"),
    Column("name", "VARCHAR", "job name, as the user gave it: untrusted text"),
    Column("work_dir", "VARCHAR", "working directory: untrusted text"),
    Column("submit_line", "VARCHAR", "command line of the submission: untrusted text"),
    Column("submit", "TIMESTAMP", "submitted, UTC; a requeue makes a new one"),
    Column("eligible", "TIMESTAMP", "eligible to run, UTC"),
    Column("start", "TIMESTAMP", "started, UTC"),
    Column("end", "TIMESTAMP", "ended, UTC; NULL while running"),
    Column("elapsed_s", "BIGINT", "seconds run, suspension excluded; at the reading for a running attempt"),
    Column("suspended_s", "BIGINT", "seconds suspended"),
    Column("limit_s", "DOUBLE", "wall-time limit in seconds; +inf: unlimited; NULL: unknown"),
    Column("nodes", "INTEGER", "nodes allocated; 0 when none ever were"),
    Column("cpus", "INTEGER", "CPUs allocated"),
    Column("gpus", "DOUBLE", "GPUs allocated, 0 for none; fractions of a shared GPU occur in some sources"),
    Column("gpu_source", "VARCHAR", "where the count came from: alloc_tres, req_tres, gres, submit_line, column, none"),
    Column("gpu_type", "VARCHAR", "GPU model as the scheduler names it"),
    Column("node_list", "VARCHAR", "nodes, in the scheduler's compressed form"),
    Column("state", "VARCHAR", "base state, Slurm's words: COMPLETED, NODE_FAIL …"),
    Column("state_flags", "VARCHAR", "further state words, comma-separated"),
    Column("canceller_uid", "BIGINT", "who cancelled, for CANCELLED by UID"),
    Column("exit_code", "INTEGER", "exit code as recorded"),
    Column("exit_signal", "INTEGER", "signal as recorded, or meant by a shell's 128+n"),
    Column("failed_node", "VARCHAR", "the node whose failure ended the attempt (Slurm 23.02 and later)"),
    Column("restarts", "INTEGER", "Slurm's own restart count (24.11 and later)"),
    Column("planned_s", "BIGINT", "seconds of planned wait (Planned, formerly Reserved)"),
    Column("depends_on", "VARCHAR", "job ids that --dependency names, comma-separated"),
    Column("outcome", "VARCHAR", "one of `Outcome`"),
    Column("source", "VARCHAR", "file the record came from"),
    Column("line", "BIGINT", "line (text), record index (JSON) in that file, from 1"),
)
