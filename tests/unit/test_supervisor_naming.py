"""What a workload is called when nobody says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.model.checkpoint import NAME
from perdure.supervisor import naming


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (["python", "train.py", "--lr", "3"], "train"),
        (["/usr/bin/python3.11", "-u", "src/train model.py"], "python3"),
        (["./solver"], "solver"),
        (["bash", "-c", "echo a; sleep 1"], "bash"),
        (["python3", "-m", "torch.distributed.run"], "torch.distributed"),
        (["/"], "workload"),
    ],
)
def test_a_name_shows_what_runs(command, stem):
    assert naming.derive(command, "/work").rpartition("-")[0] == stem


def test_it_is_the_same_for_the_same_command_at_the_same_place_only():
    assert naming.derive(["a", "b"], "/x") == naming.derive(["a", "b"], "/x")
    assert len({naming.derive(command, where) for command, where in ((["a", "b"], "/x"), (["a b"], "/x"), (["a", "b"], "/y"))}) == 3


@given(st.lists(st.text(min_size=1).filter(lambda text: "\0" not in text), min_size=1, max_size=4))
def test_whatever_runs_the_name_is_one(command):
    assert NAME.fullmatch(naming.derive(command, "/w"))


def test_a_name_keeps_its_command():
    naming.require_same("a", ("x",), "/w", ("x",), "/w")
    for command, where in ((("y",), "/w"), (("x",), "/v")):
        with pytest.raises(errors.UsageError, match="a is"):
            naming.require_same("a", ("x",), "/w", command, where)
