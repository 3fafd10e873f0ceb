"""How fast a history already in an attempts file is advised on: many workloads, and many attempts.

The goal of five seconds for 100,000 workloads is stated for two cores that do nothing else; the figure beside it relates the time
to that which DuckDB alone needs on the same machine, in the same run, to sum GPU-hours by workload from the same file.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import Figure, print_figures
from perdure.advisor import advise as advisor
from perdure.history import table
from perdure.model import attempt

_FILLER = {
    "cluster": "'bench'",
    "db_index": "i",
    "job_id": "id::VARCHAR",
    "raw_id": "id::VARCHAR",
    "user": "'u' || w % 2000",
    "uid": "1000 + w % 2000",
    "account": "'a' || w % 100",
    "partition": "'gpu'",
    "qos": "'normal'",
    # Letters, since digits would make all workloads alike.
    "name": "'job' || translate(w::VARCHAR, '0123456789', 'ghijklmnop') || '_s' || i % 1000",
    "work_dir": "'/home/u' || w % 2000",
    "submit_line": "'sbatch --gpus-per-node=8 --time=1-0 run.sh ' || i",
    "submit": "began",
    "eligible": "began",
    "start": "began + to_seconds(600)",
    "end": "began + to_seconds(600 + elapsed)",
    "elapsed_s": "elapsed",
    "suspended_s": "0",
    "limit_s": "86400",
    "nodes": "greatest(1, gpus // 8)",
    "cpus": "64",
    "gpus": "gpus",
    "gpu_source": "'alloc_tres'",
    "state": "CASE outcome WHEN 'success' THEN 'COMPLETED' WHEN 'infrastructure' THEN 'NODE_FAIL' ELSE 'FAILED' END",
    "exit_code": "0",
    "exit_signal": "0",
    "outcome": "outcome",
    "source": "'bench'",
    "line": "i",
}


def make_history(path: Path, *, attempts: int, workloads: int) -> None:
    """Write an attempts file: every twentieth attempt fails and is requeued, three in ten others do not end well."""
    connection = table.connect(threads=2)
    columns = ", ".join(f'({_FILLER.get(column.name, "NULL")})::{column.sql} AS "{column.name}"' for column in attempt.COLUMNS)
    # The requeued attempt takes workload, size and id of the one before it.
    query = f"""
        SELECT {columns} FROM (
            SELECT i, w, id, 1 << (w % 8)::INTEGER AS gpus,
                   (3600 + hash(w) % 36000)::BIGINT * (500 + hash(i * 13) % 1000)::BIGINT // 1000 AS elapsed,
                   TIMESTAMP '2026-01-05' + to_seconds((hash(id * 3) % 7776000)::BIGINT + CASE WHEN id < i THEN 108000 ELSE 0 END) AS began,
                   CASE WHEN i % 20 = 0 THEN 'infrastructure' WHEN u < 700 THEN 'success' WHEN u < 820 THEN 'user_failure'
                        WHEN u < 900 THEN 'user_cancel' WHEN u < 950 THEN 'walltime'
                        WHEN u < 970 THEN 'preempted' ELSE 'requeued' END AS outcome
            FROM (SELECT i, hash(i * 7 + 1) % 1000 AS u, CASE WHEN i % 20 = 1 THEN i - 1 ELSE i END AS id,
                         (hash(id) % {workloads})::BIGINT AS w
                  FROM range({attempts}) numbers(i)))"""
    table.write_attempts(connection, path, query=query)


def measure_scan(path: Path) -> float:
    """Return the seconds that DuckDB alone needs to sum GPU-hours by user, account, name and size."""
    connection = table.connect(threads=2)
    table.open_attempts(connection, path)
    return _seconds(
        lambda: connection.execute('SELECT "user", account, name, gpus, sum(gpus * elapsed_s) FROM attempts GROUP BY ALL').fetchnumpy()
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    del result  # which takes its time for a million records, and no caller waits for it
    return seconds


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure advise on 100,000 workloads, best of three."""
    parser = argparse.ArgumentParser(prog="advise_speed", description=__doc__)
    parser.add_argument("--workloads", type=int, default=100_000)
    parser.add_argument("--attempts", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    chosen = parser.parse_args(list(arguments))
    size = f"{chosen.attempts:,} attempts, {chosen.workloads:,} workloads, best of {chosen.repeat}"
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        path = Path(folder) / "attempts.parquet"
        print(f"advise_speed: making {size}", file=sys.stderr)
        make_history(path, attempts=chosen.attempts, workloads=chosen.workloads)
        scan = min(measure_scan(path) for _ in range(chosen.repeat))
        advised = min(_seconds(lambda: advisor.advise(path, threads=2)) for _ in range(chosen.repeat))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    standard = chosen.workloads == 100_000
    return [
        Figure("advise, attempts file", advised, "s", "< 5" if standard else "", advised < 5 if standard else None, f"{size}, two threads"),
        Figure("advise, against DuckDB's sum by workload", advised / scan, "x", note="the same file"),
        Figure("advise, attempts a second", chosen.attempts / advised, "rows/s"),
        Figure("advise, peak memory", peak_mib, "MiB", "< 3,072", peak_mib < 3072, size),
    ]


def main() -> None:
    """Print the figures."""
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
