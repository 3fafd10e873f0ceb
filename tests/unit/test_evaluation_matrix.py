"""Recipes of a matrix: what is read, what is refused, what is compared, what is recorded. With a real CRIU: tests/integration."""

from __future__ import annotations

import evaluations
import msgspec
import pytest
import reported

from perdure import errors
from perdure.evaluation import command_line, comparison, folder, matrix, matrix_record, outcome, recipes
from perdure.model.evaluation import Arm, Event, EventKind

GOOD = 'name = "one"\ncommand = ["true"]\ncheckpoint_after = { seconds = 1.5 }\n'


def write(place, text, name="one.toml"):
    (place / name).write_text(text)


def test_a_recipe_is_read_whole(tmp_path):
    write(tmp_path, GOOD + 'outputs = ["a/b.txt"]\nignore = ["^at "]\nneeds = ["sh"]\nsetup = [["mkdir", "a"]]\n')
    write(tmp_path, GOOD.replace("one", "another"), "another.toml")
    another, one = recipes.load(tmp_path)
    assert (another.recipe.name, one.recipe.name) == ("another", "one")
    assert one.recipe.checkpoint_after == recipes.CheckpointAfter(seconds=1.5)
    assert one.recipe.setup == (("mkdir", "a"),)
    assert one.beside == tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("seconds = 1.5", "seconds = 1.5, lines = 3"), "give lines or seconds"),
        (GOOD.replace("seconds = 1.5", ""), "give lines or seconds"),
        (GOOD.replace("seconds = 1.5", "lines = 0"), "checkpoint_after.lines"),
        (GOOD.replace('["true"]', "[]"), "command"),
        (GOOD.replace('"one"', '"one/two"'), "name"),
        (GOOD + 'outputs = ["../other"]\n', "must lie in the folder"),
        (GOOD + 'files = ["/etc/passwd"]\n', "must lie in the folder"),
        (GOOD + 'ignore = ["("]\n', "no regular expression"),
        (GOOD + "timeout_s = 0\n", "timeout_s"),
        (GOOD + "ouputs = []\n", "unknown key"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_refused(tmp_path, text, words):
    write(tmp_path, text)
    with pytest.raises(errors.InputFormat, match=words):
        recipes.load(tmp_path)


def test_a_folder_without_recipes_is_refused(tmp_path):
    with pytest.raises(errors.InputEmpty):
        recipes.load(tmp_path)
    with pytest.raises(errors.InputMissing):
        recipes.load(tmp_path / "nowhere")
    write(tmp_path, GOOD)
    write(tmp_path, GOOD, "same.toml")
    with pytest.raises(errors.InputFormat, match="two recipes are called one"):
        recipes.load(tmp_path)


def test_lines_to_ignore_are_not_compared():
    assert comparison.of_output(b"a\nat 1\nb\n", b"a\nat 2\nb\n", ["^at "]) is None
    assert comparison.of_output(b"a\nb\n", b"a\nc\n", []) == "its output differs from line 2 on: 'b' instead of 'c'"
    assert "line 3 on: 'b' instead of nothing" in (comparison.of_output(b"a\na\nb", b"a\na", []) or "")


def test_files_are_compared_byte_for_byte(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    assert comparison.of_files(ours, theirs, ["out.bin"]) is None
    (theirs / "out.bin").write_bytes(b"\0\1")
    for content, verdict in ((None, "out.bin differs"), (b"\0", "out.bin differs"), (b"\0\1\2", "out.bin differs"), (b"\0\1", None)):
        if content is not None:
            (ours / "out.bin").write_bytes(content)
        assert comparison.of_files(ours, theirs, ["out.bin"]) == verdict


@pytest.mark.parametrize(
    ("said", "code", "message"),
    [
        (b'{"type":"event"}\n{"error":{"code":"checkpoint-refused","message":"no"}}\n', "checkpoint-refused", "no"),
        (b"Traceback\nValueError: x\n", "", "ValueError: x"),
        (b'{"error": 3}', "", '{"error": 3}'),
        (b'{"error":{"code":"c","message":"m","findings":[3]}}', "", '{"error":{"code":"c","message":"m","findings":[3]}}'),
        (b"", "", ""),
    ],
)
def test_what_a_command_says_when_it_fails_is_read(said, code, message):
    assert command_line.refusal(said) == command_line.Refusal(code, message)


def test_what_cannot_be_run_here_is_not_run_and_a_setup_that_fails_is_said(tmp_path):
    recipe = msgspec.convert({"name": "one", "command": ["true"], "checkpoint_after": {"lines": 1}}, recipes.Recipe)
    for number, (changed, result, step, words) in enumerate(
        (
            ({"needs": ("no-such-program",)}, "not-run", "needs", "not on this machine: no-such-program"),
            ({"setup": (("sh", "-c", "echo why >&2; exit 3"),)}, "failed", "setup", "sh ended with 3: why"),
            ({"files": ("absent.txt",)}, "failed", "setup", "absent.txt cannot be copied: No such file"),
            ({"command": ("no-such-program",)}, "failed", "undisturbed", "no-such-program cannot be started"),
            ({"command": ("sh", "-c", "echo gone; exit 9")}, "failed", "undisturbed", "ended with 9, undisturbed: gone"),
        )
    ):
        found = recipes.Found(msgspec.structs.replace(recipe, **changed), tmp_path)
        made = matrix.Trial(
            found, work=tmp_path / f"{number}", run_dir=tmp_path / "run", given={"PATH": "/usr/bin:/bin"}, clock=lambda: 1.0
        ).put_through()
        assert (made.result, made.step) == (result, step)
        assert words in made.detail


def test_what_became_of_a_recipe_is_a_run_of_the_evaluation(tmp_path):
    there = evaluations.begin(tmp_path)
    recipe = msgspec.convert({"name": "one", "command": ["sh", "x"], "checkpoint_after": {"lines": 1}}, recipes.Recipe)
    recording = matrix_record.Recording(there)
    for result in ("failed", "works"):
        found = outcome.RecipeOutcome(recipe="one", result=result, step="done")
        recording.record(recipe, [Event(1.0, EventKind.ENDED, None, {outcome.KEY: msgspec.to_builtins(found)})], 5.0)
    runs = folder.read_runs(there).runs
    assert [(run.id, run.purpose, run.arm, run.command) for run in runs] == [
        ("matrix-0001-one", "matrix", Arm.MANAGED, ("sh", "x")),
        ("matrix-0002-one", "matrix", Arm.MANAGED, ("sh", "x")),
    ]
    assert [one.result for one in outcome.of_runs(runs)] == ["works"], "the newest counts"
    assert reported.read(there).matrix == outcome.of_runs(runs)
