"""Mean times to failure by size: written from a history, read on a node, and what a workload's size is."""

from __future__ import annotations

import json
import math

import pytest

from perdure import errors
from perdure.model import rates
from perdure.model.rates import Rates
from perdure.supervisor import interval, rated
from perdure.supervisor.record import Options
from perdure.supervisor.triggers import Triggers

FOUND = Rates(
    history="h",
    end="2026-01-01T00:00:00Z",
    classification="strict",
    gpu=((1.0, 6400.0), (4.0, 1600.0), (64.0, 100.0)),
    node=((1.0, 9000.0),),
)


@pytest.mark.parametrize(
    ("size", "minutes"),
    [(1, 6400.0), (2, 3200.0), (4, 1600.0), (8, 800.0), (64, 100.0), (1024, 100.0), (0.5, 6400.0)],
)
def test_between_two_sizes_it_is_a_straight_line_in_logarithms_and_beyond_them_the_nearest(size, minutes):
    assert FOUND.mttf_minutes("gpu", size) == pytest.approx(minutes)


def test_what_the_history_does_not_have_is_not_known():
    assert FOUND.mttf_minutes("node", 3) == 9000.0
    empty = Rates(history="h", end="", classification="strict", gpu=(), node=())
    assert empty.mttf_minutes("gpu", 8) is None
    assert rated.mttf_s(empty, {}) is None


def test_it_is_read_as_it_was_written():
    assert rates.decode_rates(rates.encode_rates(FOUND)) == FOUND


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"gpu": [[2, 5], [1, 5]]},
        {"gpu": [[1, 5], [1, 5]]},
        {"gpu": [[1, -5]]},
        {"gpu": [[0, 5]]},
        {"gpu": [[1, None]]},
        {"gpu": "none"},
        {"more": 1},
    ],
)
def test_what_is_no_such_file_is_said_to_be_none(change, tmp_path):
    document = json.loads(rates.encode_rates(FOUND)) | change
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(document))
    with pytest.raises(errors.InputFormat, match=r"rates\.json: not a file of rates") as caught:
        rated.read(str(path))
    assert "perdure advise" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 2000, b" " * (rates.MOST_BYTES + 1)])
def test_hostile_content_is_refused(content, tmp_path):
    path = tmp_path / "rates.json"
    path.write_bytes(content)
    with pytest.raises(errors.InputFormat):
        rated.read(str(path))


def test_a_missing_one_is_told_with_its_name(tmp_path):
    with pytest.raises(errors.InputError, match="No such file"):
        rated.read(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("environment", "size"),
    [
        ({}, ("node", 1)),
        ({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0"}, ("gpu", 8)),
        ({"SLURM_GPUS_ON_NODE": "0", "SLURM_JOB_GPUS": "2,3"}, ("gpu", 2)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, ("gpu", 3)),
        ({"CUDA_VISIBLE_DEVICES": ""}, ("node", 1)),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ("node", 1)),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ("node", 1)),
        ({"SLURM_GPUS_ON_NODE": "many"}, ("node", 1)),
        ({"SLURM_GPUS_ON_NODE": "9" * 5000}, ("node", 1)),
    ],
)
def test_the_size_of_a_workload_is_what_it_was_given(environment, size):
    assert rated.size_of(environment) == size


def test_the_interval_follows_the_history_unless_somebody_says_better():
    seconds, what = rated.mttf_s(FOUND, {"SLURM_GPUS_ON_NODE": "8"})
    assert (seconds, what) == (pytest.approx(800.0 * 60.0), "8 GPUs")
    for options, mttf_s in (
        (Options(), interval.ASSUMED_MTTF_S),
        (Options(rated_mttf_s=seconds), seconds),
        (Options(rated_mttf_s=seconds, mttf_s=60.0), 60.0),
    ):
        triggers = Triggers(options, now_s=0.0)
        assert triggers.mttf_s == pytest.approx(mttf_s)
        assert triggers.interval_s == pytest.approx(interval.best_s(mttf_s, interval.ASSUMED_COST_S))
    assert math.isfinite(seconds)
