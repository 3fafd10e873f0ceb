"""How fast sacct text is read, beside what DuckDB alone, pandas and slurm2sql need for the same file.

Each measurement is a process of its own; rounds alternate, and the median counts. Ratios compare within one run: absolute times
belong to the machine. Twenty million rows: ``python -m bench import_speed --rows 20000000 --rounds 1 --only advise`` (9 GB of
text, and about twice that for what spills; set TMPDIR).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import Figure, print_figures

FIELDS = (
    "Cluster", "DBIndex", "JobID", "JobIDRaw", "UID", "User", "Account", "Partition", "QOS", "Submit",
    "Eligible", "Start", "End", "ElapsedRaw", "Suspended", "TimelimitRaw", "State", "ExitCode", "DerivedExitCode", "Reason",
    "NNodes", "AllocNodes", "AllocCPUS", "ReqTRES", "AllocTRES", "NodeList", "FailedNode", "Restarts", "Planned", "Flags",
    "WCKey", "Constraints", "AdminComment", "SystemComment", "Comment", "Extra", "WorkDir", "GID", "SubmitLine", "JobName",
)  # fmt: skip
ROUNDS = 3
SLURM2SQL_ROWS = 20_000
"""It takes minutes for a million rows: it is given the first of them, and compared by the row."""
_MOST, _LEAST = 1.5, 6.0
"""Goals: import + advise in units of DuckDB alone, and pandas in units of import + advise."""


def generate(path: Path, rows: int) -> None:
    """Write `rows` attempts as sacct -P text of 40 fields, the same for the same `rows`."""
    import duckdb

    source = f"""
        WITH drawn AS (SELECT i, hash(i) AS a, hash(i, 1) AS b, hash(i, 2) AS c FROM range({{first}}, {{past}}) t(i)),
        sized AS (SELECT *, [1, 1, 1, 2, 4, 8, 8, 8, 16, 32, 64, 128][1 + (a % 12)::INT] AS gpus,
                         (b % 86400)::BIGINT AS elapsed,
                         (c % 7200)::BIGINT AS wait, epoch_ms(1767225600000 + i * 7776000000 // {rows}) AS submit,
                         (b // 86400) % 100 AS share
                  FROM drawn),
        placed AS (SELECT *, greatest(1, gpus // 8) AS nodes, submit + to_seconds(wait) AS start,
                          'billing=' || greatest(1, gpus // 8) * 64 || ',cpu=' || greatest(1, gpus // 8) * 64 AS trackable FROM sized)
        SELECT 'alpha', 1000000 + i, 500000 + i, 500000 + i, 1000 + a % 300, 'user' || lpad((a % 300)::TEXT, 4, '0'), 'acct' || a % 40,
               ['gpu', 'gpu-long', 'debug'][1 + (c % 3)::INT], 'normal', strftime(submit, '%Y-%m-%dT%H:%M:%S'),
               strftime(submit + INTERVAL 5 SECOND, '%Y-%m-%dT%H:%M:%S'), strftime(start, '%Y-%m-%dT%H:%M:%S'),
               strftime(start + to_seconds(elapsed), '%Y-%m-%dT%H:%M:%S'), elapsed, '00:00:00', [60, 240, 1440, 2880][1 + (c % 4)::INT],
               CASE WHEN share < 60 THEN 'COMPLETED' WHEN share < 84 THEN 'FAILED' WHEN share < 92 THEN 'CANCELLED by ' || 1000 + a % 300
                    WHEN share < 97 THEN 'PREEMPTED' WHEN share < 98 THEN 'TIMEOUT' WHEN share < 99 THEN 'NODE_FAIL' ELSE 'REQUEUED' END,
               CASE WHEN share BETWEEN 60 AND 83 THEN '1:0' ELSE '0:0' END, '0:0', 'None', nodes, nodes, nodes * 64,
               trackable || ',gres/gpu=' || gpus || ',mem=' || nodes * 512 || 'G,node=' || nodes,
               trackable || ',gres/gpu:a100=' || gpus || ',gres/gpu=' || gpus || ',mem=' || nodes * 512 || 'G,node=' || nodes,
               CASE WHEN nodes = 1 THEN 'gpu' || lpad((a % 256)::TEXT, 3, '0')
                    ELSE 'gpu[' || lpad((a % 200)::TEXT, 3, '0') || '-' || lpad((a % 200 + nodes - 1)::TEXT, 3, '0') || ']' END,
               CASE WHEN share = 98 THEN 'gpu001' END, 0, strftime(epoch_ms(wait * 1000), '%H:%M:%S'), 'SchedMain', '', '', '', '', '', '',
               '/home/user' || a % 300 || '/projects/run' || b % 500, 1000,
               'sbatch --gres=gpu:8 --time=1-00:00:00 train.sh --lr ' || a % 10,
               'train_s' || b % 2000
        FROM placed ORDER BY i"""
    body = path.with_suffix(".body")
    with path.open("wb") as out:
        out.write(("|".join(FIELDS) + "\n").encode())
        # A million at a time: they are sorted in memory.
        for first in range(0, rows, 1_000_000):
            query = source.format(first=first, past=min(first + 1_000_000, rows))
            duckdb.execute(f"COPY ({query}) TO '{body}' (FORMAT csv, DELIMITER '|', HEADER false, QUOTE '', ESCAPE '')")
            with body.open("rb") as made:
                while chunk := made.read(1 << 24):
                    out.write(chunk)
    body.unlink()
    quoted = f"read_csv('{path}', delim = '|', quote = '', escape = '', header = true, all_varchar = true)"
    duckdb.execute(f"COPY (FROM {quoted} LIMIT {SLURM2SQL_ROWS}) TO '{path}.csv' (FORMAT csv, HEADER true)")


def duckdb_alone(path: str) -> None:
    """Scan the file and sum GPU-hours by state: what any reader must do at the least."""
    import duckdb

    connection = duckdb.connect(config={"preserve_insertion_order": False, "memory_limit": "2GiB"})
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in FIELDS)
    gpus = "coalesce(try_cast(split_part(split_part(AllocTRES, 'gres/gpu=', 2), ',', 1) AS DOUBLE), 0)"
    file = f"read_csv('{path}', delim = '|', quote = '', escape = '', header = true, auto_detect = false, columns = {{{columns}}})"
    connection.execute(f"SELECT State, sum(CAST(ElapsedRaw AS BIGINT) * {gpus}) / 3600 FROM {file} GROUP BY 1").fetchall()


def scan_for_advice(path: str) -> None:
    """Scan the columns that advice needs and count what is in them: what reading for advice with DuckDB takes at the least."""
    import duckdb

    from perdure.history import fields

    connection = duckdb.connect(config={"preserve_insertion_order": False, "memory_limit": "2GiB"})
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in FIELDS)
    counts = ", ".join(f'count("{name}")' for name in FIELDS if name.lower() in fields.USED and name not in ("AllocCPUS", "NodeList"))
    file = f"read_csv('{path}', delim = '|', quote = '', escape = '', header = true, auto_detect = false, columns = {{{columns}}})"
    connection.execute(f"SELECT {counts} FROM {file}").fetchall()


def import_for_advice(path: str) -> None:
    """Read what advice needs, into memory."""
    from perdure.history import importer, table

    importer.open_for_analysis(table.connect(), path)


def import_to_parquet(path: str) -> None:
    """Read everything and write the attempts file, as `perdure history import` does."""
    from perdure.history import importer, table

    connection = table.connect()
    importer.import_files(connection, [path])
    table.write_attempts(connection, path + ".parquet")
    os.unlink(path + ".parquet")


def import_and_advise(path: str) -> None:
    """What `perdure advise FILE` does, printing aside."""
    import perdure

    perdure.advise(path)


def pandas_sum(path: str) -> None:
    """The same sum by pandas."""
    import pandas

    frame = pandas.read_csv(path, sep="|", quoting=3, usecols=["State", "ElapsedRaw", "AllocTRES"], dtype=str)
    gpus = frame["AllocTRES"].str.extract(r"gres/gpu=(\d+)", expand=False).fillna("0").astype(float)
    (frame["ElapsedRaw"].astype(float) * gpus / 3600).groupby(frame["State"]).sum()


def slurm2sql_import(path: str) -> None:
    """slurm2sql into an SQLite database, from the comma-separated form that it takes."""
    from slurm2sql import main as slurm2sql

    with tempfile.TemporaryDirectory() as folder:
        slurm2sql([os.path.join(folder, "out.db"), "--csv-input", path + ".csv"])


TASKS = (duckdb_alone, scan_for_advice, import_for_advice, import_to_parquet, import_and_advise, pandas_sum, slurm2sql_import)
_ONLY = {
    "scan": ("duckdb_alone", "scan_for_advice", "import_for_advice", "import_and_advise"),
    "perdure": ("import_for_advice", "import_to_parquet", "import_and_advise"),
    "advise": ("import_and_advise",),
}


def measure(path: Path, names: list[str], rounds: int) -> dict[str, tuple[float, float]]:
    """Return seconds (median over `rounds`, alternating) and peak memory in GiB of each task that can be run here."""
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, float] = dict.fromkeys(names, 0.0)
    for _ in range(rounds):
        for name in names:
            command = [sys.executable, "-m", "bench.import_speed", "--task", name, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                seconds, peak = map(float, done.stdout.split())
                times[name].append(seconds)
                peaks[name] = max(peaks[name], peak)
    return {name: (statistics.median(found), peaks[name]) for name, found in times.items() if found}


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure every task on one file and return the ratios."""
    parser = argparse.ArgumentParser(prog="import_speed")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--only", choices=tuple(_ONLY), help="beside DuckDB's scans, our own tasks, or import + advise alone: 20 million rows fit no other"
    )
    options = parser.parse_args(arguments)
    names = list(_ONLY[options.only]) if options.only else [task.__name__ for task in TASKS]
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        path = Path(folder) / "sacct.txt"
        generate(path, options.rows)
        size_mib = path.stat().st_size / 2**20
        print(f"  {options.rows:,} rows, {size_mib:,.0f} MiB, {len(FIELDS)} fields, {os.cpu_count()} cores", file=sys.stderr)
        found = measure(path, names, options.rounds)
    return _figures(found, names, options.rows)


def _figures(found: dict[str, tuple[float, float]], names: list[str], rows: int) -> list[Figure]:
    per_row = {name: seconds / (min(rows, SLURM2SQL_ROWS) if name == "slurm2sql_import" else rows) for name, (seconds, _) in found.items()}

    def ratio(name: str, label: str, of: str, *, most: bool = False, least: bool = False) -> Figure:
        if name not in found or of not in found:
            return Figure(label, None, "x", note="not installed here, or it failed")
        note = f"{found[name][0]:.2f} s, {1 / per_row[name] / 1e6:.3f} million rows/s, peak {found[name][1]:.2f} GiB"
        value = per_row[name] / per_row[of]
        met = value <= _MOST if most else value >= _LEAST if least else None
        text = f"≤ {_MOST:g}" if most else f"≥ {_LEAST:g}" if least else ""
        return Figure(label, value, "x", text, met, note)

    figures = [
        ratio("scan_for_advice", "scan of what advice needs / DuckDB alone", "duckdb_alone"),
        ratio("import_for_advice", "import for advice / DuckDB alone", "duckdb_alone"),
        ratio("import_to_parquet", "import to Parquet / DuckDB alone", "duckdb_alone"),
        ratio("import_and_advise", "import + advise / DuckDB alone", "duckdb_alone", most=True),
        ratio("pandas_sum", "pandas' sum / import + advise", "import_and_advise", least=True),
        ratio("slurm2sql_import", "slurm2sql's import / import + advise", "import_and_advise"),
    ]
    if "duckdb_alone" not in names:
        seconds, peak = found["import_and_advise"]
        return [Figure("import + advise, peak memory", peak, "GiB", "≤ 3", peak <= 3, f"{seconds:.0f} s for {rows:,} rows")]
    return figures


def _peak_gib() -> float:
    """Peak resident memory of this process. (getrusage would count the parent's, from before exec.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**20
    return float("nan")


def main() -> None:
    """Run from the command line, or one task for `measure`."""
    if sys.argv[1:2] == ["--task"]:
        name, path = sys.argv[2:]
        task = {task.__name__: task for task in TASKS}[name]
        start = time.perf_counter()
        task(path)
        elapsed = time.perf_counter() - start
        print(elapsed, _peak_gib())
        return
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
