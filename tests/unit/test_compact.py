"""Reading a file straight into compact rows, against importing it and taking the rows from the attempts."""

from __future__ import annotations

import concurrent.futures
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.history import checks, compact, doubts, importer, simulate, table
from perdure.model import advice
from perdure.model.attempt import Cause

# What is known of files alone, and where a record stood.
_OF_FILES = {"db_index", "same", "has_end", "line", "doubts"}
_COLUMNS = ", ".join(f'"{name}"' for name in compact.TYPES if name not in _OF_FILES)

HEAD = "JobIDRaw|JobID|User|State|Submit|Start|End|ElapsedRaw|Suspended|TimelimitRaw|AllocTRES|Restarts|SubmitLine|JobName"
ONCE = "1|1|ann|COMPLETED|2026-01-05T00:00:00|2026-01-05T00:01:00|2026-01-05T01:01:00|3600|00:00:00|60|gres/gpu=8,node=1|0|sbatch x|a_1"
LINES = {
    "plain": ONCE,
    "steps": "1.batch|1.batch||COMPLETED|2026-01-05T00:01:00|2026-01-05T00:01:00|2026-01-05T01:01:00|3600|||||0|",
    "broken": "2|2|bob|FAILED|2026-03-29T01:30:00|2026-03-29T01:31:00|2026-03-29T04:31:00|7200|00:00:00|600|node=2|3|sbatch x|a\nb|c",
    "midnight": "3|3|bob|NODE_FAIL|2026-01-05T09:00:00|2026-01-06T00:00:00|Unknown|60|00:00:00|UNLIMITED||1|sbatch --signal=B x|d 7",
    "running": "4|4|ann|RUNNING|2026-01-01T00:00:00|2026-01-01T00:00:10|Unknown|900000|00:00:00|60|gres/gpu=1,node=1|0||",
    "array": "5|5_[0-9,11|ann|PENDING|2026-01-01T00:00:00|Unknown|Unknown|0|00:00:00|60||0||array",
    "twice": ONCE,
    "lead": "6|6+0|ann|NODE_FAIL|2026-01-05T00:00:00|2026-01-05T00:01:00|2026-01-05T01:01:00|3600|00:00:00|60|gres/gpu=8,node=1|0||het",
    "second": "7|6+1|ann|COMPLETED|2026-01-05T00:00:00|2026-01-05T00:01:00|2026-01-05T01:01:00|3600|00:00:00|60|node=4|0||het",
    "continued": "8|8|eve|TIMEOUT|2026-01-05T00:00:00|2026-01-05T00:01:00|2026-01-05T01:01:00|3600|00:00:00|60|node=4|0|sbatch|name\n"
    "that goes on",
}


def _both_ways(path: Path, tz: str) -> None:
    read, imported = table.connect(threads=1), table.connect(threads=1)
    request = importer.Request(tz=tz)
    told = importer.open_for_analysis(read, path, request)
    summary = importer.import_files(imported, [path], request)
    compact.take(imported, where="")
    query = f"SELECT {_COLUMNS} FROM compact ORDER BY ALL"
    assert read.execute(query).fetchall() == imported.execute(query).fetchall()
    unknown = {"unknown_states": {}, "clamped": 0, "notes": ()}
    assert msgspec.structs.replace(told, **unknown) == msgspec.structs.replace(summary, **unknown)


@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("index", [False, True], ids=["no-index", "db-index"])
def test_a_file_read_at_once_gives_the_rows_of_its_attempts(tmp_path, tz, index):
    path = tmp_path / "sacct.txt"
    lines = list(LINES.values())
    numbers = [str(10 + lines.index(line)) for line in lines]  # the repeated record has the index of the first
    path.write_text(
        "\n".join(
            [f"{'DBIndex|' if index else ''}{HEAD}", *(f"{n}|{line}" if index else line for n, line in zip(numbers, lines, strict=True))]
        )
    )
    _both_ways(path, tz)


@pytest.mark.parametrize("apart", [1, 10**12], ids=["dense", "sparse"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_records_of_one_index_are_one_attempt(tmp_path, apart, twice):
    path = tmp_path / "sacct.txt"
    indices = [5, 5 + apart, 5 if twice else 5 + 2 * apart]
    lines = [f"{index}|{index}|COMPLETED|2026-01-05T00:00:00|3600" for index in indices]
    path.write_text("\n".join(["DBIndex|JobIDRaw|State|Start|ElapsedRaw", *lines, ""]))
    summary = importer.open_for_analysis(table.connect(threads=1), path)
    assert (summary.attempts, summary.skipped) == ((2, {"duplicate": 1}) if twice else (3, {}))


def test_equal_indices_of_different_jobs_are_several_attempts(tmp_path):
    """Pulls of clusters that they do not name, put one behind the other."""
    path = tmp_path / "sacct.txt"
    lines = [f"5|{number}|COMPLETED|2026-01-05T00:00:00|3600" for number in (1, 701, 701)]
    path.write_text("\n".join(["DBIndex|JobIDRaw|State|Start|ElapsedRaw", *lines, ""]))
    summary = importer.open_for_analysis(table.connect(threads=1), path)
    assert (summary.attempts, summary.skipped) == (2, {"duplicate": 1})


def test_a_fleet_read_at_once_gives_the_rows_and_the_advice_of_its_attempts(tmp_path):
    fleet = simulate.simulate(simulate.FleetSpec(gpus=128, days=10), 5)
    fleet.write(tmp_path)
    path = tmp_path / "sacct.txt"
    _both_ways(path, "America/Denver")
    connection = table.connect(threads=1)
    importer.import_files(connection, [path])
    table.write_attempts(connection, tmp_path / "attempts.parquet")
    at_once, later = perdure.advise(path, what_if=True), perdure.advise(tmp_path / "attempts.parquet", what_if=True)
    assert msgspec.structs.replace(at_once, history="", notes=()) == msgspec.structs.replace(later, history="", notes=())


def test_attempts_through_a_pipe_give_the_same_advice(tmp_path):
    fleet = simulate.simulate(simulate.FleetSpec(gpus=64, days=5), 6)
    connection = table.connect(threads=1)
    fleet.fill(connection)
    path = tmp_path / "attempts.parquet"
    table.write_attempts(connection, path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        written = pool.submit(pipe.write_bytes, path.read_bytes())
        piped = perdure.advise(pipe)
        written.result()
    assert msgspec.structs.replace(piped, history="", notes=()) == msgspec.structs.replace(perdure.advise(path), history="", notes=())


@pytest.mark.parametrize("end", ["Unknown", "2026-12-01T00:00:00"])
@pytest.mark.parametrize("imported", [False, True], ids=["at-once", "imported"])
def test_a_runaway_record_counts_up_to_its_limit(tmp_path, end, imported):
    gpus_64 = "1440|gres/gpu=64,node=8"
    ended = [
        f"{day}|{'NODE_FAIL' if day % 5 == 0 else 'COMPLETED'}|2026-01-{day:02}T01:00:00|2026-01-{day:02}T11:00:00|36000|{gpus_64}"
        for day in range(10, 32)
    ]
    runaway = f"90|RUNNING|2026-01-10T02:00:00|{end}|{330 * 86400}|{gpus_64}"

    def advise(name: str, lines: list[str]) -> advice.Advice:
        text, attempts = tmp_path / f"{name}.txt", tmp_path / f"{name}.parquet"
        text.write_text("\n".join(["JobIDRaw|State|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES", *lines, ""]))
        if not imported:
            return perdure.advise(text)
        connection = table.connect(threads=1)
        importer.import_files(connection, [text])
        table.write_attempts(connection, attempts)
        return perdure.advise(attempts)

    without, beside = advise("without", ended), advise("with", [*ended, runaway])
    assert beside.exposure.gpu_hours - without.exposure.gpu_hours == pytest.approx(24 * 64)
    assert (beside.exposure.start, beside.exposure.end) == (without.exposure.start, without.exposure.end)
    for one, other in zip(beside.rates, without.rates, strict=True):
        assert one.events == other.events
        exposed = one.cause is not Cause.PREEMPTION  # nothing was preempted
        assert one.gpu_hours - other.gpu_hours == pytest.approx(24 * 64 if exposed else 0)
    assert any("1 attempts run a day or more beyond their limit" in sentence for sentence in beside.exposure.cannot_tell)
    assert not any("beyond their limit" in sentence for sentence in without.exposure.cannot_tell)
    assert any("counted up to it" in note for note in beside.notes) is not imported


@given(st.from_regex(r"[0-9]{1,3}_\[[0-9,:%-]{0,12}\]?.{0,3}", fullmatch=True))
def test_an_array_is_cut_off_where_its_list_cannot_be_read(text):
    parsed = checks.parse_array_id(text)
    known = parsed is not None and parsed.tasks is not None
    ((cut_off,),) = _CONNECTION.execute(f"SELECT {doubts.ARRAY_CUT_OFF} FROM (SELECT ? AS job_id)", [text]).fetchall()
    assert cut_off is not known


_CONNECTION = table.connect(threads=1)
