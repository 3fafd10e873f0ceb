"""Attempts for tests: rows with sensible defaults, as a DuckDB table or a Parquet file."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from perdure.history import table
from perdure.model import attempt

EPOCH = datetime.datetime(2026, 1, 5)


def row(start_h: float = 0.0, hours: float = 1.0, **changes: Any) -> dict[str, Any]:
    """One attempt on one 8-GPU node that started `start_h` hours after `EPOCH`, ran `hours` and ended well."""
    start = EPOCH + datetime.timedelta(hours=start_h)
    values: dict[str, Any] = dict.fromkeys(column.name for column in attempt.COLUMNS)
    values |= {
        "cluster": "test",
        "job_id": "1",
        "user": "alice",
        "uid": 1000,
        "account": "physics",
        "partition": "gpu",
        "name": "train",
        "work_dir": "/home/alice/train",
        "submit": start,
        "eligible": start,
        "start": start,
        "end": start + datetime.timedelta(hours=hours),
        "elapsed_s": round(hours * 3600),
        "suspended_s": 0,
        "limit_s": 86400.0,
        "nodes": 1,
        "cpus": 64,
        "gpus": 8.0,
        "gpu_source": "alloc_tres",
        "state": "COMPLETED",
        "exit_code": 0,
        "exit_signal": 0,
        "outcome": "success",
        "source": "factory",
    }
    unknown = set(changes) - set(values)
    if unknown:
        raise KeyError(f"no such column: {unknown}")
    values |= changes
    values["raw_id"] = changes.get("raw_id", values["job_id"])
    return values


def fill(connection: Any, rows: list[dict[str, Any]]) -> None:
    """Create the table ``attempts`` from `rows`."""
    table.create_empty(connection)
    if rows:
        marks = ", ".join("?" for _ in attempt.COLUMNS)
        connection.executemany(f"INSERT INTO attempts VALUES ({marks})", [list(values.values()) for values in rows])


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write `rows` as an attempts file."""
    connection = table.connect()
    fill(connection, rows)
    table.write_attempts(connection, path)
    return path
