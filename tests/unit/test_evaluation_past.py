"""What the accounting history says of an evaluation's nodes, beside the baseline that was measured."""

from __future__ import annotations

import evaluations
import factories
import pytest
import reported

from perdure.evaluation import lock, page, past
from perdure.evaluation.folder import Folder
from perdure.model.attempt import Outcome

ROWS = [
    factories.row(0, 10, node_list="n1"),
    factories.row(10, 4, node_list="n1", outcome=Outcome.INFRASTRUCTURE.value),
    factories.row(14, 2, node_list="n2", outcome=Outcome.PREEMPTED.value),
    factories.row(16, 1, node_list="n2", outcome=Outcome.USER_FAILURE.value),
    factories.row(20, 50, node_list="n3", outcome=Outcome.INFRASTRUCTURE.value),
    factories.row(0, 0, node_list=None, start=None, end=None, elapsed_s=0, outcome=Outcome.NEVER_STARTED.value),
]


def test_attempts_on_the_nodes_are_summed(tmp_path):
    found = past.summarise(factories.parquet(tmp_path / "a.parquet", ROWS), ["n1", "n2"], is_of_gpus=True)
    assert (found.attempts, found.unit, found.nodes) == (4, "GPU-hours", ("n1", "n2"))
    assert found.hours == pytest.approx(8 * 17)
    assert found.interruptions == {"infrastructure": 1, "preemption": 1}
    assert found.destroyed_at_most == pytest.approx(8 * 6)
    assert found.begun_unix_s is not None
    assert found.ended_unix_s is not None
    assert found.ended_unix_s - found.begun_unix_s == 17 * 3600
    assert "4 attempts on n1, n2, 136 GPU-hours; interruptions: 1 × infrastructure, 1 × preemption, one in 68 GPU-hours" in found.describe()


def test_nodes_that_it_does_not_name_leave_all(tmp_path):
    found = past.summarise(factories.parquet(tmp_path / "a.parquet", ROWS), ["elsewhere"], is_of_gpus=False)
    assert (found.attempts, found.unit, found.nodes) == (5, "node-hours", ())
    assert found.hours == pytest.approx(67)
    assert "on all nodes (it names none of the evaluation's)" in found.describe()


def begin(place, rows=ROWS) -> Folder:
    there = evaluations.begin(place, repetitions='repetitions = 2\nhistory = "attempts.parquet"')
    there.plan.write_text(there.plan.read_text().replace('history = "attempts.parquet"\n[site.window]', "[site.window]"))
    factories.parquet(place / "attempts.parquet", rows)
    evaluations.measure_baseline(there)
    return there


def test_the_report_shows_it_and_a_file_that_was_changed(tmp_path):
    there = begin(tmp_path)
    lock.fix(there, signed=reported.SIGNED)
    told = reported.read(there)
    assert told.past is not None
    assert (told.past.attempts, told.past.is_as_locked) == (5, True)
    assert "5 attempts on all nodes" in page.render(told)
    factories.parquet(tmp_path / "attempts.parquet", ROWS[:2])
    changed = reported.read(there).past
    assert changed is not None
    assert changed.is_as_locked is False
    assert changed.describe().endswith("; the file is not the one that was locked")


def test_what_cannot_be_read_is_said(tmp_path):
    there = begin(tmp_path)
    (tmp_path / "attempts.parquet").write_bytes(b"PAR1")
    told = reported.read(there).past
    assert told is not None
    assert "not a readable Parquet file" in told.describe()
    (tmp_path / "attempts.parquet").unlink()
    gone = reported.read(there).past
    assert gone is not None
    assert "cannot read" in gone.describe()


def test_without_a_history_there_is_nothing(tmp_path):
    (tmp_path / "trial").mkdir()
    assert reported.read(evaluations.begin(tmp_path / "trial")).past is None
