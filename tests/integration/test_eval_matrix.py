"""`perdure eval matrix` with a real CRIU: what works, what is refused beforehand and goes on unharmed, what fails, what is not run."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import evaluations
import pytest

from perdure import errors
from perdure.evaluation import folder, outcome

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.criu

# An io_uring lives in the kernel: no CRIU can save it. The ring is made by its system call, so that no library is needed.
# Under Perdure, both programs take their time: a busy machine needs some to save them.
RING = """
import ctypes, os, sys, time
ring = ctypes.CDLL(None, use_errno=True).syscall(425, 4, ctypes.create_string_buffer(120))
assert ring >= 0, ctypes.get_errno()
for step in range(100):
    print("step", step, flush=True)
    time.sleep(0.15 if "PERDURE_STATE" in os.environ else 0.01)
"""
CHANCE = """
import os, random, time
for step in range(150):
    print("step", step, random.random(), flush=True)
    time.sleep(0.1 if "PERDURE_STATE" in os.environ else 0.01)
"""


def recipe(name: str, command: list[str], **more: object) -> str:
    lines = {"name": name, "command": command, **more}
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()) + "checkpoint_after = { lines = 10 }\n"


def test_the_shipped_recipes_work(perdure, tmp_path):
    # With twice as much to do: on a busy machine they might be done before they are saved.
    recipes = shutil.copytree(ROOT / "docs" / "examples" / "matrix", tmp_path / "recipes")
    for path in recipes.glob("*.toml"):
        text = path.read_text()
        assert text.count('"150"]') == 1
        path.write_text(text.replace('"150"]', '"300"]'))
    done = perdure("eval", "matrix", recipes, "--json", timeout=550)
    assert done.returncode == 0, done.stderr + done.stdout
    found = {one["recipe"]: one for one in json.loads(done.stdout)["outcomes"]}
    assert set(found) == {"shell-pipeline", "python-threads", "sqlite-wal"}
    for one in found.values():
        assert one["result"] == "works"
        assert one["logical_bytes"] > 0
        assert one["restore_s"] > 0
        assert one["checkpoint"].startswith("w@1.")


def test_where_nothing_can_be_saved_no_recipe_is_blamed(perdure, tmp_path):
    done = perdure("eval", "matrix", ROOT / "docs" / "examples" / "matrix", env={"PERDURE_CRIU": "/bin/false", "TMPDIR": str(tmp_path)})
    assert done.returncode == errors.EnvironmentUnfit.exit_status, done.stderr
    assert "no CRIU works here" in done.stderr
    assert (done.stdout, list(tmp_path.iterdir())) == ("", [])


def test_what_is_refused_what_fails_and_what_is_not_run(perdure, tmp_path):
    recipes = tmp_path / "recipes"
    recipes.mkdir()
    (recipes / "ring.toml").write_text(recipe("ring", [sys.executable, "-c", RING]))
    (recipes / "chance.toml").write_text(recipe("chance", [sys.executable, "-c", CHANCE]))
    (recipes / "absent.toml").write_text(recipe("absent", ["no-such-program"], needs=["no-such-program"]))
    (recipes / "short.toml").write_text(recipe("short", ["sh", "-c", "echo only one line"]))
    place = tmp_path / "trial"
    place.mkdir()
    there = evaluations.begin(place)

    done = perdure("eval", "matrix", recipes, "--dir", place, "--json", env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 4, done.stderr
    assert "2 of 4 failed: chance, short" in done.stderr
    document = json.loads(done.stdout)
    found = {one["recipe"]: one for one in document["outcomes"]}

    assert found["ring"]["result"] == "refused", found["ring"]
    assert "file-io-uring" in found["ring"]["codes"]
    assert found["chance"]["result"] == "failed"
    assert found["chance"]["step"] == "compare"
    assert "but so do two undisturbed runs" in found["chance"]["detail"]
    assert found["absent"] == found["absent"] | {"result": "not-run", "step": "needs", "detail": "not on this machine: no-such-program"}
    assert found["short"]["step"] == "start"
    assert "ended with 0 before it was to be saved" in found["short"]["detail"]

    # What failed is kept, for whoever wants to know why; nothing runs on.
    kept = Path(document["kept"])
    assert sorted(path.name for path in kept.iterdir()) == ["chance", "short"]
    runs = folder.read_runs(there).runs
    assert [run.purpose for run in runs] == ["matrix"] * 4
    assert {one.recipe: one.result for one in outcome.of_runs(runs)} == {name: one["result"] for name, one in found.items()}


def test_a_recipe_that_says_nothing_clear_is_refused(perdure, tmp_path):
    (tmp_path / "bad.toml").write_text('name = "x"\ncommand = ["true"]\ncheckpoint_after = { line = 3 }\n')
    done = perdure("eval", "matrix", tmp_path)
    assert done.returncode == 2
    assert "did you mean lines?" in done.stderr
