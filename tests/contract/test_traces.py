"""Every file of the shared traces imports with every line accounted for (`reading.read` asserts it for each)."""

from __future__ import annotations

import json

import pytest
import reading

from perdure import errors

pytestmark = pytest.mark.shared

# What aws-samples/hpc-cost-simulator asks sacct for; its files have no header.
HCS = (
    "State", "JobID", "ReqCPUS", "ReqMem", "ReqNodes", "Constraints", "Submit", "Eligible", "Start",
    "Elapsed", "Suspended", "End", "ExitCode", "DerivedExitCode", "AllocNodes", "NCPUS", "MaxDiskRead", "MaxDiskWrite",
    "MaxPages", "MaxRSS", "MaxVMSize", "CPUTime", "UserCPU", "SystemCPU", "TotalCPU", "Partition",
)  # fmt: skip


@pytest.fixture
def traces(shared):
    return shared / "traces"


def test_every_file_is_tested_here(traces):
    groups = {path.relative_to(traces).parts[0] for path in traces.rglob("*") if path.is_file()}
    assert groups == {
        "README.md", "acme_cluster_summary.csv", "alibaba_gpu2023_openb_pod_list_default.csv", "aws_hcs",
        "lanl_la-ur-05-7318_README.txt", "lanl_la-ur-05-7318_failures_1996-2005.csv.xz", "meta_gcm", "nrel_eagle_sample_1000.csv",
        "slurm2sql", "slurmweb_json",
    }  # fmt: skip


def test_meta_gcm(traces):
    counted = {}
    for path in sorted((traces / "meta_gcm").iterdir()):
        _, summary = reading.read(path)
        counted[path.name] = (
            summary.lines,
            sum(file.attempts for file in summary.files),
            summary.skipped.get("step", 0),
            summary.unreadable,
        )
    prefix = "sample-sacct-"
    assert {name.removeprefix(prefix).removesuffix(".txt"): counts for name, counts in counted.items()} == {
        "fake-line-break": (6, 2, 2, 0),
        "multiple-multiline": (10, 4, 2, 0),
        "one-multiline": (6, 2, 2, 0),
        "one-multiline-expected": (5, 2, 2, 0),
        "output": (69, 0, 68, 0),
        "output-invalid-utf8": (12, 2, 9, 0),
        "output-midnight-edge-case": (1187, 306, 880, 0),
        "output-midnight-edge-case-small": (12, 3, 8, 0),
        "output-midnight-edge-case-small-expected": (10, 3, 6, 0),
        "output-with-invalid-lines": (2, 0, 0, 1),
        "running-output": (11, 0, 10, 0),
        "running-output-large": (5041, 0, 5040, 0),
    }


def test_a_repaired_file_reads_like_its_expected_form(traces):
    folder = traces / "meta_gcm"
    broken, _ = reading.read(folder / "sample-sacct-one-multiline.txt")
    whole, _ = reading.read(folder / "sample-sacct-one-multiline-expected.txt")
    assert [{**row, "source": "", "line": None, "name": "", "submit_line": ""} for row in broken] == [
        {**row, "source": "", "line": None, "name": "", "submit_line": ""} for row in whole
    ]
    assert {row["gpus"] for row in broken} == {2048, 1024} or all(row["gpus"] > 0 for row in broken)


def test_aws_hpc_cost_simulator(traces):
    for path in sorted((traces / "aws_hcs").iterdir()):
        with pytest.raises(errors.InputFormat) as caught:
            reading.read(path)
        assert "--fields" in caught.value.hint
        rows, summary = reading.read(path, named_fields=HCS)
        assert summary.unreadable == 0, path
        assert all(row["state"] for row in rows)
    rows, summary = reading.read(traces / "aws_hcs" / "sacct-output-v2.txt", named_fields=HCS)
    assert (summary.lines, len(rows), summary.skipped["step"]) == (878, 483, 395)
    assert summary.repaired == {"last fields missing": 846}
    assert {row["state"] for row in rows} == {"OUT_OF_MEMORY", "FAILED", "CANCELLED", "COMPLETED"}


def test_slurm2sql(traces):
    for name in ("test-data1.csv", "test-data2.csv"):
        rows, summary = reading.read(traces / "slurm2sql" / name)
        assert [(row["raw_id"], row["state"], row["canceller_uid"]) for row in rows] == [
            ("43974388", "CANCELLED", 1300204),
            ("43977780", "CANCELLED", 1300204),
        ]
        assert summary.skipped == {"step": 3}
    rows, _ = reading.read(traces / "slurm2sql" / "test-data3.csv")
    assert rows[0]["name"] == "job1"


def test_slurmweb_json(traces):
    paths = sorted((traces / "slurmweb_json").iterdir())
    assert len(paths) == 44
    for path in paths:
        (row,), summary = reading.read(path)
        job = json.loads(path.read_text())["jobs"][0]
        assert row["raw_id"] == str(job["job_id"])
        current = job["state"]["current"]
        state = current if isinstance(current, str) else current[0]
        assert row["state"] == state
        own = job["kill_request_user"] in ("", job["user"])
        assert (
            row["outcome"]
            == {
                "COMPLETED": "success",
                "FAILED": "user_failure",
                "TIMEOUT": "walltime",
                "RUNNING": "censored",
                "PENDING": "never_started",
                "CANCELLED": "user_cancel" if own else "operator_cancel",
            }[state]
        ), path
        assert row["elapsed_s"] == job["time"]["elapsed"]
        assert row["nodes"] == job["allocation_nodes"]
        assert summary.files[0].notes == ()


def test_slurmweb_gpus_from_the_submit_line(traces):
    seen = {}
    for path in sorted((traces / "slurmweb_json").glob("*gpus*")):
        (row,), _ = reading.read(path)
        seen.setdefault(row["submit_line"].split("partition ")[-1] if row["submit_line"] else "", set()).add(
            (row["gpus"], row["gpu_source"])
        )
    assert seen == {
        "": {(0.0, "none")},
        "gpu --gpus 4": {(4.0, "submit_line")},
        "gpu --gpus 8": {(8.0, "submit_line")},
        "gpu --gpus-per-node h100:1": {(1.0, "submit_line")},
        "ia --gpus 6": {(6.0, "submit_line")},
        "ia --gpus 12": {(12.0, "submit_line")},
        "ia --gpus-per-node h100:1,h200:1": {(2.0, "submit_line")},
    }


def test_all_json_files_in_one(traces, tmp_path):
    paths = sorted((traces / "slurmweb_json").iterdir())
    together = tmp_path / "together.json"
    together.write_text("\n".join(path.read_text() for path in paths))
    rows, summary = reading.read(together)
    assert summary.lines == len(paths)
    assert {row["raw_id"] for row in rows} == {str(json.loads(path.read_text())["jobs"][0]["job_id"]) for path in paths}


def test_nrel_eagle(traces):
    rows, summary = reading.read(traces / "nrel_eagle_sample_1000.csv", csv_map="nrel-eagle")
    assert summary.outcomes == {"success": 985, "walltime": 15}
    assert sum(row["gpus"] > 0 for row in rows) == 4
    first = next(row for row in rows if row["job_id"] == "532209")
    assert (first["elapsed_s"], first["limit_s"], first["nodes"], first["cluster"]) == (99_825, 172_800, 10, "eagle")


def test_alibaba(traces):
    rows, summary = reading.read(traces / "alibaba_gpu2023_openb_pod_list_default.csv", csv_map="alibaba-gpu2023")
    assert summary.outcomes == {"censored": 5193, "user_failure": 1870, "never_started": 897, "success": 192}
    pods = {row["job_id"]: row for row in rows}
    assert pods["openb-pod-0000"]["elapsed_s"] == 12_537_496
    assert pods["openb-pod-0001"]["gpus"] == pytest.approx(0.46)
    assert pods["openb-pod-0017"]["gpus"] == 8


def test_lanl_failures_are_events_without_exposure(traces):
    rows, summary = reading.read(traces / "lanl_la-ur-05-7318_failures_1996-2005.csv.xz", csv_map="lanl-failures")
    assert (summary.lines, sum(file.attempts for file in summary.files)) == (23_740, 23_739)
    assert {row["outcome"] for row in rows} == {"infrastructure"}
    assert sum(row["elapsed_s"] for row in rows) == 0


@pytest.mark.parametrize("name", ["acme_cluster_summary.csv", "README.md", "lanl_la-ur-05-7318_README.txt"])
def test_what_holds_no_jobs_is_refused_with_what_to_do(traces, name):
    with pytest.raises(errors.InputFormat) as caught:
        reading.read(traces / name)
    assert "--map" in caught.value.hint
