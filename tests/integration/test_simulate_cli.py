"""`perdure history simulate` as a person meets it, and its text as the reader meets it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess

import pytest

from perdure import errors
from perdure.history import importer, table
from perdure.history.simulate import FleetSpec, prepare_folder, simulate

SMALL = ("--gpus", "128", "--days", "8", "--seed", "4")


def test_writes_two_private_files_and_says_so(perdure, tmp_path):
    done = perdure("history", "simulate", *SMALL, "-o", "fleet")
    assert done.returncode == 0, done.stderr
    for name in ("sacct.txt", "truth.json"):
        path = tmp_path / "fleet" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f"fleet/{name}" in done.stdout
    assert sorted(os.listdir(tmp_path / "fleet")) == ["sacct.txt", "truth.json"]
    assert "perdure advise fleet/sacct.txt" in done.stderr


def test_json_says_what_the_truth_says(perdure, tmp_path):
    done = perdure("history", "simulate", *SMALL, "-o", "fleet", "--json", "--quiet")
    assert done.returncode == 0
    assert done.stderr == ""
    said = json.loads(done.stdout)
    truth = json.loads((tmp_path / "fleet" / "truth.json").read_text("utf-8"))
    text = (tmp_path / "fleet" / "sacct.txt").read_bytes()
    assert said["rows"] == truth["rows"]
    assert said["lines"] == truth["lines"] == text.count(b"\n")
    assert said["bytes"] == len(text)
    assert truth["schema"] == 1
    assert truth["seed"] == said["seed"] == 4


def test_a_seed_gives_the_same_history_in_every_process(perdure, tmp_path):
    digests = set()
    for folder, hash_seed in (("one", "1"), ("two", "2")):
        assert perdure("history", "simulate", *SMALL, "-o", folder, env={"PYTHONHASHSEED": hash_seed}).returncode == 0
        digests.add(tuple(hashlib.sha256((tmp_path / folder / name).read_bytes()).hexdigest() for name in ("sacct.txt", "truth.json")))
    assert len(digests) == 1
    assert perdure("history", "simulate", *SMALL[:-1], "5", "-o", "other").returncode == 0
    assert hashlib.sha256((tmp_path / "other" / "sacct.txt").read_bytes()).hexdigest() not in digests.pop()


def test_a_folder_with_something_in_it_needs_force(perdure, tmp_path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "mine.txt").write_text("keep")
    (folder / "sacct.txt").write_text("old")
    refused = perdure("history", "simulate", *SMALL, "-o", "fleet")
    assert refused.returncode == 2
    assert "--force" in refused.stderr
    assert (folder / "sacct.txt").read_text() == "old"
    assert perdure("history", "simulate", *SMALL, "-o", "fleet", "--force").returncode == 0
    assert (folder / "sacct.txt").read_bytes().startswith(b"Cluster|DBIndex|")
    assert (folder / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--gpus", "100"), "104"),
        (("--gpus", "0"), "gpus"),
        (("--days", "-1"), "days"),
        (("--load", "7"), "load"),
        (("--delimiter", ","), "delimiter"),
        (("--gpus", "many"), "many"),
        ((), "output"),
    ],
    ids=str,
)
def test_what_cannot_be_is_one_clear_line_and_leaves_nothing(perdure, tmp_path, arguments, word):
    output = ("-o", "fleet") if arguments else ()
    done = perdure("history", "simulate", *arguments, *output)
    assert done.returncode == 2
    assert word in done.stderr.lower()
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "fleet").exists()


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(errors.OutputError, match="file"):
        prepare_folder(tmp_path / "file" / "fleet")
    with pytest.raises(errors.OutputError):
        prepare_folder(tmp_path / "file")


def test_the_help_has_an_example(perdure):
    done = perdure("history", "simulate", "--help")
    assert done.returncode == 0
    assert "perdure history simulate --seed 1 --gpus 2048 --days 90 -o fleet" in " ".join(done.stdout.split())


def test_the_reader_accounts_for_every_line(tmp_path):
    fleet = simulate(FleetSpec(gpus=256, days=20), 11)
    sacct, _ = fleet.write(tmp_path)
    connection = table.connect()
    summary = importer.open_history(connection, sacct)
    assert summary is not None
    truth = fleet.truth
    assert summary.lines == truth.lines
    assert summary.attempts == truth.rows
    assert (summary.unaccounted, summary.unreadable, summary.skipped) == (0, 0, {})
    assert (summary.missing_history, summary.runaway, summary.truncated_windows, summary.clamped) == (0, 0, 0, 0)
    assert summary.unknown_states == {}
    assert summary.bad_utf8 == truth.quirks["bad_utf8"] > 0
    assert sum(summary.repaired.values()) >= truth.quirks["delimiter_in_name"] + truth.quirks["newline_in_submit_line"] > 0


@pytest.mark.parametrize("delimiter", ["|", "|#"])
def test_filling_a_table_and_reading_the_text_give_the_same_rows(tmp_path, delimiter):
    fleet = simulate(FleetSpec(gpus=128, days=15), 12)
    sacct, _ = fleet.write(tmp_path, delimiter=delimiter)
    read, filled = table.connect(), table.connect()
    importer.open_history(read, sacct)
    fleet.fill(filled)
    query = "SELECT * EXCLUDE (source, line) FROM attempts ORDER BY db_index"
    assert filled.execute(query).fetchall() == read.execute(query).fetchall()
    count, high = filled.execute("SELECT count(*), max(line) FROM attempts").fetchone()
    assert count == high == fleet.truth.rows


def test_classes_that_the_reader_finds_are_the_true_causes(tmp_path):
    fleet = simulate(FleetSpec(gpus=256, days=20, masked_share=0.3, infrastructure_rate=100.0, operator_rate=50.0), 13)
    sacct, _ = fleet.write(tmp_path)
    connection = table.connect()
    importer.open_history(connection, sacct)
    found = dict(connection.execute("SELECT outcome, count(*) FROM attempts GROUP BY 1").fetchall())
    true = fleet.truth.endings
    assert found["infrastructure"] == true["infrastructure"] + true.get("boot", 0)
    assert found["preempted"] == true["preemption"]
    assert found["operator_cancel"] == true["operator"]
    assert found["success"] == true["success"]
    assert found["censored"] == true["running"]
    assert found["requeued"] == true["user_requeue"] + true["self_requeue"]
    assert found["walltime"] >= true["walltime"]
    assert found["suspected_infrastructure"] == true["masked"] > 0


def test_the_demo_script_is_sound_shell():
    script = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "demo")
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert os.access(script, os.X_OK)
