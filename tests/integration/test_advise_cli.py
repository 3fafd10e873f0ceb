"""`perdure advise` as a person runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from factories import parquet, row

import perdure as library
from perdure.model import rates

HEADER = "JobIDRaw|Cluster|User|Account|JobName|Submit|Start|End|ElapsedRaw|TimelimitRaw|State|NNodes|AllocTRES|ExitCode"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Large work that is interrupted often, and small work that is not."""
    rows = []
    for index in range(12):
        rows.append(row(100 * index, 9, job_id=f"a{index}", name="pretrain", gpus=512.0, nodes=64, outcome="infrastructure"))
        rows.append(row(100 * index + 10, 20, job_id=f"a{index}", name="pretrain", gpus=512.0, nodes=64))
        rows.append(row(100 * index, 1, job_id=f"b{index}", name="small", user="bob", gpus=1.0))
    return parquet(tmp_path / "attempts.parquet", rows)


def test_prints_verdicts_with_the_totals(perdure, history: Path) -> None:
    done = perdure("advise", history)
    assert (done.returncode, done.stderr) == (0, "")
    first = next(line for line in done.stdout.splitlines() if line.startswith("pretrain"))
    assert "512 GPUs" in first
    assert "RESUME" in first
    assert "RETRY" in next(line for line in done.stdout.splitlines() if line.startswith("small"))


def test_json_is_what_the_library_returns(perdure, history: Path) -> None:
    done = perdure("advise", history, "--json", "--what-if", "--seed", "5", "--level", "0.8")
    document = json.loads(done.stdout)
    answer = library.advise(history, what_if=True, seed=5, level=0.8)
    assert [one["verdict"]["verdict"] for one in document["workloads"]] == [one.verdict.verdict.value for one in answer.workloads]
    assert document["replay"][0]["lost_gpu_hours"] == pytest.approx(answer.replay[0].lost_gpu_hours)
    assert document["rates"][0]["bins"][0]["interval"]["level"] == 0.8
    assert document["workloads"][0]["evidence"]["work_minutes"] == 1200


def test_sacct_text_needs_no_import(perdure, tmp_path: Path) -> None:
    text = tmp_path / "sacct.txt"
    line = "1|c|u|a|job|2026-01-05T00:00:00|2026-01-05T00:00:00|2026-01-05T02:00:00|7200|1440|COMPLETED|1|billing=8,gres/gpu=8,node=1|0:0"
    text.write_text(f"{HEADER}\n{line}\n")
    document = json.loads(perdure("advise", text, "--json").stdout)
    assert document["exposure"]["gpu_hours"] == 16
    assert document["workloads"][0]["evidence"]["key"]["name"] == "job"


def test_flags_stand_above_the_policy_file(perdure, history: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text('[costs]\ncheckpoint_cost = "9m"\nrestore_cost = "8m"\n')
    done = perdure("advise", history, "--json", "--policy", tmp_path / "policy.toml", "--checkpoint-cost", "90s", "--gpu-hour-price", "2")
    costs = json.loads(done.stdout)["workloads"][0]["question"]["costs"]
    assert (costs["checkpoint_cost_minutes"], costs["restore_cost_minutes"], costs["gpu_hour_price"]) == (1.5, 8, 2)
    assert json.loads(done.stdout)["assumptions"]["checkpoint_cost_minutes"] == "1m30s (--checkpoint-cost)"
    assert json.loads(done.stdout)["workloads"][0]["saved_money"] > 0


def test_the_policy_of_the_configuration_is_used(perdure, history: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[costs]\ncheckpoint_cost = "9m"\n')
    done = perdure("advise", history, "--json", env={"PERDURE_POLICY": str(tmp_path / "mine.toml")})
    assert json.loads(done.stdout)["workloads"][0]["question"]["costs"]["checkpoint_cost_minutes"] == 9


def test_writes_what_is_asked_for(perdure, history: Path, tmp_path: Path) -> None:
    done = perdure(
        "advise", history, "--csv", tmp_path / "all.csv", "--parquet", tmp_path / "all.parquet", "--html", tmp_path / "report.html"
    )
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "all.csv", newline="") as handle:
        assert len(list(csv.DictReader(handle))) == 2
    assert (tmp_path / "report.html").read_text().startswith("<!")
    assert (tmp_path / "all.parquet").read_bytes()[:4] == b"PAR1"
    assert all(str(tmp_path / name) in done.stderr for name in ("all.csv", "all.parquet", "report.html"))


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere.txt"], 2, "no such file"),
        (["{history}", "--policy", "nowhere.toml"], 2, "no such policy file"),
        (["{history}", "--checkpoint-cost", "-2m"], 2, "--checkpoint-cost"),
        (["{history}", "--checkpoint-cost", "soon"], 2, "--checkpoint-cost"),
        (["{history}", "--level", "1.5"], 2, "level"),
        (["{history}", "--level", "high"], 2, "level"),
        (["{history}", "--top", "-1"], 2, "--top"),
        (["{history}", "--classification", "vague"], 2, "classification"),
        (["{history}", "--cluster", "other"], 2, "no attempts of cluster 'other'"),
        (["{history}", "--html", "no/such/folder/report.html"], 20, "no folder"),
        (["{history}", "--csv", "same", "--html", "same"], 2, "same file"),
        (["{history}", "--csv", "."], 20, "is a directory"),
        ([], 2, "HISTORY"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(perdure, history: Path, arguments: list[str], status: int, words: str) -> None:
    done = perdure("advise", *(argument.format(history=history) for argument in arguments))
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_untrusted_names_do_not_reach_the_terminal(perdure, tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", [row(0, 1, name="\x1b[2Jevil\n=cmd()", user="a\u202eb")])
    for command in (["advise"], ["history", "show"]):
        done = perdure(*command, path)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert "\u202e" not in done.stdout


def test_nodes_are_given_how_often_work_of_each_size_is_interrupted(perdure, history: Path, tmp_path: Path) -> None:
    done = perdure("advise", history, "--json", "--rates", tmp_path / "rates.json")
    assert done.returncode == 0, done.stderr
    known = {one["evidence"]["key"]["name"]: one["mttf"]["minutes"] for one in json.loads(done.stdout)["workloads"]}
    found = rates.decode_rates((tmp_path / "rates.json").read_bytes())
    assert found.mttf_minutes("gpu", 512) == pytest.approx(known["pretrain"])
    assert found.mttf_minutes("gpu", 1) == pytest.approx(known["small"])
    assert known["pretrain"] < found.mttf_minutes("gpu", 100) < known["small"]
    assert (found.node, found.classification) == ((), "strict")
    assert (tmp_path / "rates.json").stat().st_mode & 0o777 == 0o644


def test_rates_that_have_nowhere_to_go_are_told_before_the_work(perdure, history: Path, tmp_path: Path) -> None:
    done = perdure("advise", history, "--rates", tmp_path / "none" / "rates.json")
    assert done.returncode != 0
    assert "there is no folder" in done.stderr
