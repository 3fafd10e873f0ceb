"""The commands of `perdure effects` on what a job left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from children import exit_status, in_child

from perdure.cli import app
from perdure.effects import Ledger


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger with a done step, one that raised, and one whose holder was killed; keys and notes are hostile."""
    address = str(tmp_path / "effects.db") if request.param == "sqlite" else request.getfixturevalue("server").empty()

    def job() -> None:
        with Ledger(address, lease_s=0.1, workload="w\x1b[31m", epoch=2) as ledger:
            ledger.once("done-1", lambda: {"receipt": "é\x1b[2J"}, inputs=[1])
            with pytest.raises(ZeroDivisionError):
                ledger.once("raised-1", lambda: 1 / 0)
            ledger.once("killed-1", lambda: os.kill(os.getpid(), signal.SIGKILL))

    assert exit_status(in_child(job)) == -signal.SIGKILL
    time.sleep(0.11)  # the lease of the killed one
    return address


@pytest.fixture
def effects(place, tmp_path, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command of the group on the ledger, which the environment names; in this process, since there are many."""
    monkeypatch.setenv("PERDURE_LEDGER", place)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        status = app.run(["effects", *arguments])
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


def test_ls_lists_what_is_not_done(effects):
    done = effects("ls")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["key", "killed-1", "raised-1"]
    assert all("in doubt" in line for line in lines[1:])
    assert "raised ZeroDivisionError" in lines[2]
    assert "w\\x1b[31m/2" in lines[1]
    assert "\x1b" not in done.stdout
    assert "2 listed, 1 done not listed" in done.stderr
    assert effects("ls", "--quiet").stderr == ""


def test_ls_for_programs(effects):
    document = json.loads(effects("ls", "--all", "--json").stdout)
    assert {step["key"]: step["state"] for step in document["steps"]} == {"done-1": "done", "killed-1": "in_doubt", "raised-1": "in_doubt"}
    assert {step["recorded_state"] for step in document["steps"]} == {"done", "running", "in_doubt"}
    assert [step["key"] for step in json.loads(effects("ls", "--state", "done", "--json").stdout)["steps"]] == ["done-1"]
    assert effects("ls", "--check").returncode == 4


def test_show(effects):
    text = effects("show", "done-1").stdout
    assert '{"receipt":"\\u00e9\\u001b[2J"}' in text
    assert "\x1b" not in text
    assert json.loads(effects("show", "done-1", "--json").stdout)["epoch"] == 2
    unknown = effects("show", "nothing")
    assert unknown.returncode == 2
    assert "there is no step nothing" in unknown.stderr


def test_resolve(effects, place):
    assert effects("resolve", "killed-1", "--done", "--result", '{"id":7}').returncode == 0
    assert effects("resolve", "raised-1", "--not-done").returncode == 0
    with Ledger(place) as ledger:
        assert ledger.once("killed-1", lambda: "again") == {"id": 7}
        assert ledger.once("raised-1", lambda: "again") == "again"
    assert effects("ls", "--check").returncode == 0
    assert effects("resolve", "killed-1", "--not-done").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what happened"),
        (("--done", "--not-done"), "say what happened"),
        (("--not-done", "--result", "1"), "has no result"),
        (("--done", "--result", "{"), "not JSON"),
    ],
)
def test_resolve_asks_for_one_clear_answer(effects, arguments, message):
    done = effects("resolve", "raised-1", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert json.loads(effects("show", "raised-1", "--json").stdout)["state"] == "in_doubt"


def test_resolve_leaves_a_living_holder_alone(effects, place):
    with Ledger(place) as ledger:
        refused = ledger.once("alive", lambda: effects("resolve", "alive", "--done").returncode)
    assert refused == 75


def test_prune_keeps_what_is_in_doubt(effects):
    assert json.loads(effects("prune", "--older-than", "0", "--dry-run", "--json").stdout) == {"pruned": 0, "would_prune": 1}
    assert effects("prune", "--older-than", "1d").stderr == "0 forgotten\n"
    assert effects("prune", "--older-than", "0").stderr == "1 forgotten\n"
    assert len(json.loads(effects("ls", "--all", "--json").stdout)["steps"]) == 2
    assert effects("prune", "--older-than", "90").returncode == 2


def test_export(effects, tmp_path):
    lines = [json.loads(line) for line in effects("export").stdout.splitlines()]
    assert [line["key"] for line in lines] == ["done-1", "killed-1", "raised-1"]
    assert json.loads(lines[0]["result"]) == {"receipt": "é\x1b[2J"}
    assert json.loads(effects("export", "--json").stdout) == lines
    assert effects("export", "-o", "out.jsonl").returncode == 0
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == lines
    assert (tmp_path / "out.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_absent_ledger_is_told_and_not_made(perdure, tmp_path):
    for command in (("ls",), ("export", "-o", "x"), ("resolve", "k", "--done")):
        done = perdure("effects", *command, "--ledger", "absent.db")
        assert done.returncode == 10
        assert "there is no ledger" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_the_address_is_not_shown(perdure):
    done = perdure("effects", "ls", "--ledger", "postgresql://u:hunter2@127.0.0.1:1/x")
    assert done.returncode == 75
    assert "hunter2" not in done.stderr
