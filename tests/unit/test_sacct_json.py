"""`sacct --json` of all data parsers becomes the same attempt that text becomes."""

from __future__ import annotations

import json
import math

import pytest
import reading

from perdure import errors
from perdure.history import json_stream, sacct_json


def job(parser: int, **changes):
    """One job as the data parser 0.0.`parser` writes it."""
    wrapped = (lambda value: {"set": True, "infinite": False, "number": value}) if parser >= 39 else (lambda value: value)
    state = "FAILED" if parser < 40 else ["FAILED"]
    code = (
        {"status": "ERROR", "return_code": 3}
        if parser < 40
        else {"status": ["ERROR"], "return_code": wrapped(3), "signal": {"id": wrapped(0)}}
    )
    return {
        "cluster": "alpha", "job_id": 77, "user": "ann", "account": "bio", "partition": "gpu", "qos": "normal", "name": "train",
        "nodes": "g[1-2]",
        "allocation_nodes": 2, "state": {"current": state, "reason": "None"}, "exit_code": code, "kill_request_user": "",
        "time": {"submission": 1767600000, "eligible": 1767600001, "start": 1767600010, "end": 1767603610, "elapsed": 3600, "suspended": 0,
                 "limit": wrapped(1440)},
        "tres": {"allocated": [{"type": "cpu", "name": "", "count": 64}, {"type": "energy", "name": "", "count": 2**64 - 2},
                               {"type": "gres", "name": "gpu", "count": 8}, {"type": "gres", "name": "gpu:a100", "count": 8}],
                 "requested": []},
        "submit_line": "sbatch --dependency=afterok:70 a.sh", "working_directory": "/w", "failed_node": "",
    } | changes  # fmt: skip


def write(folder, *documents):
    path = folder / "jobs.json"
    path.write_text("".join(json.dumps(document) for document in documents))
    return path


def document(*jobs, parser=44):
    return {"meta": {"plugin": {"data_parser": f"data_parser/v0.0.{parser}"}}, "jobs": jobs, "errors": [], "warnings": []}


@pytest.mark.parametrize("parser", range(38, 46))
def test_every_data_parser_gives_the_attempt_that_text_gives(tmp_path, parser):
    (row,), summary = reading.read(write(tmp_path, document(job(parser), parser=parser)))
    assert summary.files[0].notes == ()
    (text,), _ = reading.read_text(
        tmp_path,
        "Cluster|JobID|JobIDRaw|User|Account|Partition|QOS|Submit|Eligible|Start|End|ElapsedRaw|Suspended|TimelimitRaw|State|ExitCode|"
        "AllocNodes|AllocCPUS|AllocTRES|NodeList|WorkDir|SubmitLine|JobName\n"
        "alpha|77|77|ann|bio|gpu|normal|1767600000|1767600001|1767600010|1767603610|3600|00:00:00|1440|FAILED|3:0|"
        "2|64|cpu=64,gres/gpu=8,gres/gpu:a100=8|g[1-2]|/w|sbatch --dependency=afterok:70 a.sh|train\n",
    )
    where = ("source", "line")
    assert {name: value for name, value in row.items() if name not in where} == {
        name: value for name, value in text.items() if name not in where
    }
    assert (row["gpus"], row["outcome"], row["depends_on"]) == (8, "user_failure", "70")


@pytest.mark.parametrize("parser", [40, 44])
@pytest.mark.parametrize("flag", ["REQUEUED", "RESIZING"])
def test_runs_that_ended_in_a_flag_are_those_of_text(tmp_path, parser, flag):
    """slurmdbd stores the flag alone, without a base state, and the data parser shows a base of 0 as PENDING."""
    starts = (1767600010, 1767603610)
    jobs = [
        job(parser, state={"current": ["PENDING", flag]}, time={"submission": 1767600000, "start": at, "end": at + 3600, "elapsed": 3600})
        for at in starts
    ]
    rows, summary = reading.read(write(tmp_path, document(*jobs, parser=parser)))
    lines = [f"alpha|77|{flag}|1767600000|{at}|{at + 3600}|3600\n" for at in starts]
    texts, told = reading.read_text(tmp_path, "Cluster|JobIDRaw|State|Submit|Start|End|ElapsedRaw\n" + "".join(lines))
    columns = ("state", "outcome", "start", "end", "elapsed_s")
    assert [[row[name] for name in columns] for row in rows] == [[row[name] for name in columns] for row in texts]
    assert (summary.outcomes, summary.skipped) == (told.outcomes, told.skipped)


def test_pending_jobs_with_flags(tmp_path):
    """One that waits for its next run is pending; one that a federation revoked is the other cluster's."""
    waiting = {"submission": 1767600000, "start": 0, "end": 0, "elapsed": 0}
    jobs = [job(44, job_id=n, state={"current": ["PENDING", flag]}, time=waiting) for n, flag in ((1, "REQUEUED"), (2, "REVOKED"))]
    (row,), summary = reading.read(write(tmp_path, document(*jobs)))
    assert (row["state"], row["state_flags"], row["outcome"]) == ("PENDING", "REQUEUED", "never_started")
    assert summary.skipped == {"revoked": 1}


def test_an_unknown_data_parser_is_read_and_noted(tmp_path):
    _, summary = reading.read(write(tmp_path, document(job(44), parser=61)))
    assert "v0.0.61" in summary.files[0].notes[0]


def test_errors_that_sacct_reported_are_passed_on(tmp_path):
    _, summary = reading.read(write(tmp_path, document(job(44)) | {"errors": [{"description": "slurmdbd went away"}]}))
    assert "slurmdbd went away" in summary.files[0].notes[0]


def test_documents_one_after_the_other_arrays_and_single_jobs(tmp_path):
    jobs = [job(44, job_id=number) for number in range(1, 7)]
    rows, summary = reading.read(write(tmp_path, document(*jobs[:2]), document(jobs[2]), jobs[3:5], jobs[5]))
    assert [row["raw_id"] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert summary.lines == 6


def test_nulls_and_extra_keys_do_no_harm(tmp_path):
    poor = {
        "job_id": 5,
        "state": {"current": ["COMPLETED"]},
        "time": None,
        "tres": None,
        "array": None,
        "het": None,
        "exit_code": None,
        "new": [{}],
    }
    (row,), _ = reading.read(write(tmp_path, document(poor)))
    assert (row["raw_id"], row["outcome"], row["nodes"]) == ("5", "success", 0)


def test_ids_of_arrays_and_groups(tmp_path):
    some = {"set": True, "infinite": False, "number": 4}
    none = {"set": False, "infinite": False, "number": 0}
    jobs = [
        job(44, job_id=101, array={"job_id": 100, "task_id": some, "task": ""}),
        job(44, job_id=100, array={"job_id": 100, "task_id": none, "task": "5-9%2"}, state={"current": ["PENDING"]}),
        job(44, job_id=202, het={"job_id": 201, "job_offset": some}),
    ]
    rows, _ = reading.read(write(tmp_path, document(*jobs)))
    assert {row["job_id"]: (row["raw_id"], row["array_task"], row["array_tasks"], row["het_offset"]) for row in rows} == {
        "100_4": ("101", 4, None, None),
        "100_[5-9%2]": ("100", None, 5, None),
        "201+4": ("202", None, None, 4),
    }


def test_cancelled_by_a_name(tmp_path):
    cancelled = {"state": {"current": ["CANCELLED"]}}
    jobs = [job(44, job_id=number, kill_request_user=who, **cancelled) for number, who in enumerate(("ann", "root", "eve", ""), 1)]
    rows, _ = reading.read(write(tmp_path, document(*jobs)))
    assert {row["raw_id"]: row["outcome"] for row in rows} == {
        "1": "user_cancel",
        "2": "operator_cancel",
        "3": "operator_cancel",
        "4": "user_cancel",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": False, "infinite": False, "number": 5}, None),
        ({"set": True, "infinite": True, "number": 0}, math.inf),
        (7, 7),
        ("7", 7),
        (None, None),
        (True, None),
        (2**64 - 2, None),
        ({}, None),
    ],
)
def test_numbers(value, expected):
    assert sacct_json.number(value) == expected


def test_memory_is_bounded_by_the_largest_job(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_CHUNK_BYTES", 512)
    path = write(tmp_path, document(*(job(44, job_id=number) for number in range(1, 200))))
    longest = 0
    with path.open("rb") as handle:
        stream = json_stream.JsonStream(handle, "jobs")
        for _ in stream.jobs():
            longest = max(longest, len(stream._text))
    assert longest < 8 * 1024 < path.stat().st_size / 10


def test_jobs_that_are_none_are_counted(tmp_path):
    rows, summary = reading.read(write(tmp_path, document(job(44), None, 5, {"state": {"current": "COMPLETED"}})))
    assert len(rows) == 1
    assert summary.unreadable == 3


@pytest.mark.parametrize(
    "content", ['{"jobs": [{"job_id": 1}', '{"jobs": [{"job_id": 1} {"job_id": 2}]}', '{"nodes": []}', "[1, 2", '{"a" 1}']
)
def test_damaged_or_foreign_json_is_refused(tmp_path, content):
    path = tmp_path / "jobs.json"
    path.write_text(content)
    with pytest.raises(errors.InputFormat):
        reading.read(path)
