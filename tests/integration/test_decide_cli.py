"""`perdure decide` and `perdure interval` as a person meets them: figures, exit status, one line for a mistake."""

from __future__ import annotations

import json

import pytest

COSTS = ("--checkpoint-cost", "2m", "--restore-cost", "10m", "--fresh-cost", "5m", "--downtime", "5m")


def answer(perdure, *arguments):
    done = perdure(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_published_job(perdure):
    found = answer(perdure, "decide", "--gpus", "1024", "--work", "24h", "--mttf", "474m", *COSTS)
    assert found["verdict"] == "RESUME"
    assert found["retry"]["expected_minutes"] == pytest.approx(9615, abs=1)
    assert found["resume"]["expected_minutes"] == pytest.approx(1629, abs=1)
    assert found["resume"]["chunks"] == 34
    assert found["resume"]["interval_minutes"] == pytest.approx(42.35, abs=0.1)
    assert found["break_even"]["work_minutes"] == pytest.approx(66.7, abs=0.2)
    assert {name: found["inputs"][name]["points_to"] for name in ("interruption", "destroyed", "rebuild", "schedule")} == {
        "interruption": "resume",
        "destroyed": "resume",
        "rebuild": "retry",
        "schedule": "either",
    }
    origins = {one["name"]: one["origin"] for one in found["assumptions"]}
    assert origins["checkpoint_cost_minutes"] == "--checkpoint-cost"
    assert origins["durable_fraction"] == "default"


def test_the_other_published_verdicts(perdure):
    assert answer(perdure, "decide", "--gpus", "8", "--work", "1h", "--mttf", "47.7d", *COSTS)["verdict"] == "RETRY"
    due = answer(perdure, "decide", "--gpus", "8", "--work", "20h", "--mttf", "47.7d", "--deadline", "22h", *COSTS)
    assert due["verdict"] == "RESUME-REQUIRED"
    assert 0 < due["retry"]["meets_deadline"] < due["resume"]["meets_deadline"] < 1
    never = answer(perdure, "decide", "--gpus", "1024", "--work", "365d", "--mttf", "1.8h", *COSTS)
    assert never["verdict"].startswith("RESUME")
    assert never["retry"]["expected_minutes"] is None
    assert never["retry"]["never_finishes"] is True


def test_durations_read_as_people_write_them(perdure):
    for text, minutes in (("90s", 1.5), ("2m", 2), ("7.9h", 474), ("47.7d", 68_688), ("1-02:03:04", 1563 + 4 / 60)):
        found = answer(perdure, "decide", "--work", text, "--mttf", "30d")
        assert found["question"]["work_minutes"] == pytest.approx(minutes)


MISTAKES = [
    ("--work", "24h", "--mttf", "0"),
    ("--work", "24h", "--mttf", "-5m"),
    ("--work", "24h", "--mttf", "soon"),
    ("--work", "24h", "--mttf", "5"),
    ("--work", "0", "--mttf", "5h"),
    ("--work", "-1h", "--mttf", "5h"),
    ("--work", "24h"),
    ("--mttf", "5h"),
    ("--work", "24h", "--mttf", "5h", "--rate", "6.5"),
    ("--work", "24h", "--rate", "6.5"),
    ("--work", "24h", "--mttf", "5h", "--gpus", "-3"),
    ("--work", "24h", "--mttf", "5h", "--gpus", "many"),
    ("--work", "24h", "--mttf", "5h", "--checkpoint-cost", "-1m"),
    ("--work", "24h", "--mttf", "5h", "--durable-fraction", "2"),
    ("--work", "24h", "--mttf", "5h", "--mttf-interval", "6h,7h"),
    ("--work", "24h", "--mttf", "5h", "--mttf-interval", "4h"),
    ("--work", "24h", "--mttf", "5h", "--limit", "0"),
    ("--work", "24h", "--mttf", "5h", "--policy", "none.toml"),
    ("--work", "24h", "--mttf", "5h", "--sessions", "3"),
    ("--work", "24h", "--mttf", "5h", "--serving"),
]


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_line(perdure, arguments):
    done = perdure("decide", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("perdure: ")


def test_a_negative_duration_is_called_negative(perdure):
    assert "negative" in perdure("decide", "--work", "24h", "--mttf", "-5m").stderr


def test_the_text_says_what_the_figures_say(perdure):
    done = perdure("decide", "--gpus", "1024", "--work", "24h", "--mttf", "474m", "--idempotent", *COSTS, "--gpu-hour-price", "2")
    assert done.returncode == 0
    assert done.stdout.startswith("RESUME  checkpoint every 42.4 min\n")
    for text in ("9,615 min", "1,629 min", "34", "66.8 min", "136,302 GPU-hours", "272,604.81", "(--checkpoint-cost)", "(default)"):
        assert text in done.stdout
    assert "warning" not in done.stdout


def test_a_rate_per_node_stands_for_the_mttf(perdure):
    found = answer(perdure, "decide", "--gpus", "16384", "--work", "24h", "--rate", "6.5")
    assert found["question"]["mttf_minutes"] == pytest.approx(1.803 * 60, rel=1e-3)
    assert answer(perdure, "decide", "--nodes", "2048", "--work", "24h", "--rate", "6.5")["question"]["size"]["unit"] == "node"


def test_never_interrupted(perdure):
    found = answer(perdure, "decide", "--work", "24h", "--mttf", "never", "--mttf-interval", "5d,never")
    assert found["verdict"] == "EITHER"
    assert found["question"]["mttf_minutes"] is None


def test_a_policy_file(perdure, tmp_path):
    (tmp_path / "site.toml").write_text('[costs]\ndowntime = "1h"\n[[workload]]\nmin_gpus = 64\ncheckpoint_cost = "9m"\ndeadline = "30h"\n')
    found = answer(perdure, "decide", "--gpus", "64", "--work", "24h", "--mttf", "5d", "--policy", "site.toml", "--downtime", "7m")
    assert found["question"]["costs"]["checkpoint_cost_minutes"] == 9.0
    assert found["question"]["costs"]["downtime_minutes"] == 7.0
    assert found["question"]["deadline_minutes"] == 1800.0
    assert found["verdict"] == "RESUME-REQUIRED"
    by_variable = perdure("decide", "--gpus", "64", "--work", "24h", "--mttf", "5d", "--json", env={"PERDURE_POLICY": "site.toml"})
    assert json.loads(by_variable.stdout)["question"]["costs"]["checkpoint_cost_minutes"] == 9.0
    (tmp_path / "site.toml").write_text("[costs]\nchekpoint_cost = '9m'\n")
    wrong = perdure("decide", "--work", "24h", "--mttf", "5d", "--policy", "site.toml")
    assert wrong.returncode == 2
    assert "did you mean checkpoint_cost?" in wrong.stderr


def test_serving(perdure):
    worker = ("--sessions", "200", "--context-tokens", "30000", "--prefill-rate", "20000", "--load-time", "25m")
    found = answer(perdure, "decide", "--gpus", "8", "--work", "30d", "--mttf", "20d", "--serving", *worker)
    assert found["verdict"] == "RESUME"
    assert found["serving"]["rebuild_minutes"] == pytest.approx(30.0)
    assert found["inputs"]["rebuild"]["figure"] == pytest.approx(30.0)
    later = answer(perdure, "decide", "--work", "30d", "--mttf", "20d", "--serving", *worker, "--turns", "10", "--tokens-per-turn", "1200")
    assert later["serving"]["rebuild_minutes"] == pytest.approx(32.0)
    assert later["warnings"]


@pytest.mark.parametrize(
    ("mttf", "cost", "young", "daly", "exact"), [("1440m", "5m", 120.000, 116.690, 116.690), ("10m", "20m", 20.0, 10.0, 9.475)]
)
def test_interval(perdure, mttf, cost, young, daly, exact):
    found = answer(perdure, "interval", "--mttf", mttf, "--checkpoint-cost", cost)
    assert found["young_minutes"] == pytest.approx(young, abs=5e-4)
    assert found["daly_minutes"] == pytest.approx(daly, abs=5e-4)
    assert found["exact_minutes"] == pytest.approx(exact, abs=5e-4)
    text = perdure("interval", "--mttf", mttf, "--checkpoint-cost", cost)
    assert f"{exact:.3f} min" in text.stdout


def test_interval_mistakes(perdure):
    for arguments in (("--mttf", "0", "--checkpoint-cost", "1m"), ("--mttf", "1h", "--checkpoint-cost", "-1m"), ("--mttf", "1h")):
        done = perdure("interval", *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
