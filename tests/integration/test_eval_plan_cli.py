"""`perdure eval init | lock | amend | status` as a person meets them: what is missing, and nothing changed in secret."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import evaluations
import pytest

from perdure.evaluation.folder import Folder


@pytest.fixture
def there(tmp_path) -> Folder:
    """A complete plan with its baseline measured."""
    place = tmp_path / "trial"
    place.mkdir()
    made = evaluations.begin(place)
    evaluations.measure_baseline(made)
    return made


def test_from_nothing_to_a_lock(perdure, tmp_path):
    began = perdure(
        "eval",
        "init",
        "--dir",
        "trial",
        "--owner",
        "speech group",
        "--progress",
        "step ([0-9]+)",
        "--window",
        "1h",
        "--fault",
        "kill",
        "--",
        "sh",
        "-c",
        "echo step 1",
    )
    assert began.returncode == 0, began.stderr
    assert began.stdout == "trial/evaluation.toml\n"
    assert "perdure eval status" in began.stderr
    place = tmp_path / "trial"
    path = place / "evaluation.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700

    missing = perdure("eval", "lock", "--dir", "trial")
    assert missing.returncode == 4
    assert "workload.made_for_evaluation" in missing.stdout
    assert "perdure: trial/evaluation.toml cannot be locked yet" in missing.stderr

    # Fill in what only a person knows, as the template asks for it.
    text = path.read_text()
    for pattern, written in (
        (r"# (made_for_evaluation = false)", r"\1"),
        (r"# (\[workload\.own_checkpoint\])\n# (kind = \"none\")", r"\1\n\2"),
        (r"# (\[success\.(?:recovery-time|overhead)\])\n# (at_most = [0-9.]+)", r"\1\n\2\nreason = 'what the group can bear at night'"),
        (r"# (\[success\.work-lost\])\n.*\n# (ratio_at_most = [0-9.]+)", r"\1\n\2\nreason = 'what the group can bear at night'"),
        (r"# (\[success\.utilisation\])\n.*\n# (gain_at_least = [0-9.]+)", r"\1\n\2\nreason = 'what the group can bear at night'"),
        (r"# commands = .*", "commands = [['true']]"),
        (r"# who = .*", "who = 'Maria Rossi'"),
        (r"# at_progress = .*", "at_progress = [20.0, 50.0, 80.0]"),
    ):
        text, count = re.subn(pattern, written, text)
        assert count, pattern
    path.write_text(text)
    still = perdure("eval", "lock", "--check", "--dir", "trial", "--json")
    assert still.returncode == 4
    assert [lack["key"] for lack in json.loads(still.stdout)["lacks"]] == ["baseline"]

    evaluations.measure_baseline(Folder(place), 3)
    assert perdure("eval", "lock", "--check", "--dir", "trial").returncode == 0
    assert not (place / "evaluation.lock").exists()
    done = perdure("eval", "lock", "--dir", "trial", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert re.fullmatch("[0-9a-f]{64}", document["plan_sha256"])
    assert len(document["baseline"]["runs"]) == 3
    assert json.loads((place / "evaluation.lock").read_text())["plan_sha256"] == document["plan_sha256"]


def test_init_never_overwrites(perdure, tmp_path):
    assert perdure("eval", "init", "--", "true").returncode == 0
    before = (tmp_path / "evaluation.toml").read_bytes()
    again = perdure("eval", "init", "--", "false")
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert (tmp_path / "evaluation.toml").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "evaluation.toml").symlink_to(tmp_path / "nowhere")
    assert perdure("eval", "init", "--dir", "other").returncode == 2
    assert not (tmp_path / "nowhere").exists()


def test_init_refuses_what_no_plan_may_hold(perdure, tmp_path):
    for arguments in (("--gpus", "-1"), ("--progress", "no group"), ("--name", "a b"), ("--window", "soon"), ("--repetitions", "0")):
        done = perdure("eval", "init", *arguments, "--", "true")
        assert done.returncode == 2, arguments
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "evaluation.toml").exists()


def test_init_writes_what_it_finds_here(perdure, tmp_path):
    done = perdure("eval", "init", "--json", "--", sys.executable, "train.py", "--note", 'say "é"\t')
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "evaluation.toml").read_text()
    assert f"seed = {json.loads(done.stdout)['seed']}" in text
    assert f'nodes = ["{evaluations.HOST}"]' in text
    assert f'working_directory = "{tmp_path}"' in text
    assert f'python = ["{sys.executable}", "--version"]' in text


def test_a_change_after_the_lock_is_found_by_every_command(perdure, there):
    assert perdure("eval", "lock", "--dir", there.path).returncode == 0
    there.plan.write_text(evaluations.text(there.path, seed="seed = 8"))
    status = perdure("eval", "status", "--dir", there.path)
    assert status.returncode == 4
    assert "BROKEN" in status.stdout
    assert "faults.seed" in status.stderr
    assert perdure("eval", "lock", "--dir", there.path).returncode == 2
    assert perdure("eval", "amend", "--dir", there.path, "--reason", "x").returncode == 2
    amended = perdure("eval", "amend", "--dir", there.path, "--reason", "the old seed had no fault before the end", "--json")
    assert amended.returncode == 0, amended.stderr
    document = json.loads(amended.stdout)
    assert document["changes"] == [{"key": "faults.seed", "old": 7, "new": 8}]
    assert document["data_existed"] is False
    sound = perdure("eval", "status", "--dir", there.path, "--json")
    assert sound.returncode == 0
    assert json.loads(sound.stdout)["amendments"] == 1
    assert json.loads(sound.stdout)["next"] == "perdure eval run"


def test_text_of_a_plan_cannot_speak_to_the_terminal(perdure, there):
    evil = r'"evil\u001b[31m\u202e\n"'
    there.plan.write_text(evaluations.text(there.path, owner=f"owner = {evil}", seed="", command=f"command = [{evil}]"))
    for command in (("lock",), ("lock", "--check"), ("status",)):
        done = perdure("eval", *command, "--dir", there.path)
        for text in (done.stdout, done.stderr):
            assert not {"\x1b", "\u202e"} & set(text)
    there.plan.write_text(evaluations.text(there.path))
    assert perdure("eval", "lock", "--dir", there.path).returncode == 0
    there.plan.write_text(evaluations.text(there.path, owner=f"owner = {evil}"))
    for command in (("status",), ("amend", "--reason", "a new owner has come in")):
        done = perdure("eval", *command, "--dir", there.path)
        assert not {"\x1b", "\u202e"} & set(done.stdout + done.stderr)
    there.plan.write_text(f"[evaluation]\n{evil} = 1\n")
    done = perdure("eval", "status", "--dir", there.path)
    assert done.returncode == 2
    assert not {"\x1b", "\u202e"} & set(done.stderr)


def test_without_a_plan_the_way_to_one_is_named(perdure):
    for command in (("lock",), ("status",), ("amend", "--reason", "no reason at all")):
        done = perdure("eval", *command)
        assert done.returncode == 2
        assert "perdure eval init" in done.stderr
    assert perdure("eval", "status", "--dir", "none").returncode == 2


def test_two_locks_at_once_make_one(there):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "perdure", "eval", "lock", "--dir", str(there.path), "--quiet"]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    ended = sorted(process.wait(300) for process in both)
    assert ended in ([0, 2], [0, 11])
    assert json.loads(there.lock.read_bytes())["format"] == 1


def test_a_reader_need_not_be_able_to_write(perdure, there):
    assert perdure("eval", "lock", "--dir", there.path).returncode == 0
    with open(there.runs, "ab") as handle:
        handle.write(b'{"id": "torn')
    before = {path.name: path.read_bytes() for path in there.path.iterdir()}
    done = perdure("eval", "status", "--dir", there.path, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["runs"]["torn"] == 1
    assert {path.name: path.read_bytes() for path in there.path.iterdir()} == before
