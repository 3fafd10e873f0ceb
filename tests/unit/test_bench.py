"""`make bench` finds its parts by looking into the folder: each must keep the protocol, or the run ends in a traceback."""

from __future__ import annotations

import importlib
import inspect

import pytest

import bench
from bench.__main__ import main, part_names


@pytest.mark.parametrize("name", part_names())
def test_every_part_reports_and_says_what_it_measures(name):
    part = importlib.import_module(f"bench.{name}")
    assert list(inspect.signature(part.report).parameters) == ["arguments"]
    assert callable(part.main)
    assert part.__doc__.splitlines()[0].endswith((".", "?"))


def test_a_missed_goal_is_printed_and_ends_with_status_1(monkeypatch, capsys):
    part = importlib.import_module("bench.start_up")
    monkeypatch.setattr(part, "report", lambda _arguments: [bench.Figure("slow thing", 4.0, "x", "≤ 3", False, "note")])
    assert main(["start_up"]) == 1
    printed = capsys.readouterr().out
    assert "MISSED" in printed
    assert "≤ 3" in printed


def test_unknown_parts_are_refused(capsys):
    assert main(["nothing"]) == 2
    assert "start_up" in capsys.readouterr().err
