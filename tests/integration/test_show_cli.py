"""`perdure history show` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import parquet, row


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return parquet(
        tmp_path / "attempts.parquet",
        [
            row(0, 2, job_id="1", outcome="infrastructure"),
            row(2.1, 4, job_id="1"),
            row(10, 24.01, job_id="2", name="long", outcome="walltime", user="bob"),
            row(50, 1, job_id="3", name="bug", outcome="user_failure"),
        ],
    )


def test_prints_hours_by_outcome_bounds_and_what_cannot_be_told(perdure, history: Path) -> None:
    done = perdure("history", "show", history)
    assert done.returncode == 0, done.stderr
    assert "3 jobs, 4 attempts" in done.stdout
    assert "16 to 208 GPU-hours" in done.stdout  # 2 h × 8 for certain; 24.01 h × 8 at the limit, of which nobody knows
    assert "Not every job that hit its limit lost all its work" in done.stdout
    assert "Top candidates" in done.stdout


def test_json_holds_the_exposure_and_the_candidates(perdure, history: Path) -> None:
    document = json.loads(perdure("history", "show", history, "--json", "--top", "2").stdout)
    assert document["exposure"]["attempts"] == 4
    assert document["exposure"]["gpu_hours"] == pytest.approx((2 + 4 + 24.01 + 1) * 8, rel=1e-4)
    assert len(document["candidates"]) == 2
    assert {one["outcome"] for one in document["exposure"]["rows"]} == {"infrastructure", "success", "walltime", "user_failure"}


@pytest.mark.parametrize(("arguments", "words"), [(["nowhere"], "no such file"), (["{history}", "--top", "-3"], "--top")])
def test_what_cannot_be_done_is_said_in_one_line(perdure, history: Path, arguments: list[str], words: str) -> None:
    done = perdure("history", "show", *(argument.format(history=history) for argument in arguments))
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert words in done.stderr
