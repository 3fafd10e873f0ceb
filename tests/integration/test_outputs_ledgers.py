"""A ledger of effects never goes back with the workload that uses it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from perdure import errors
from perdure.checkpoint.outputs import ledgers, trees
from perdure.checkpoint.outputs.record import record
from perdure.effects import Ledger


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    made.mkdir()
    with Ledger(made / "effects.db") as ledger:
        ledger.once("a", lambda: 1)
    (made / "result.txt").write_text("so far")
    return made


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    made = tmp_path / "staging"
    made.mkdir(mode=0o700)
    return made


def test_a_ledger_in_an_included_tree_stays_as_it_is(folder: Path, staging: Path) -> None:
    (folder / "effects.db-journal").touch()
    included = trees.include([str(folder)], staging)
    assert {Path(path).name for path in included.stored} == {"result.txt"}
    assert [(each.code, Path(each.path or "").name) for each in included.findings] == [
        ("file-ledger-left", "effects.db"),
        ("file-ledger-left", "effects.db-journal"),
    ]
    with Ledger(folder / "effects.db") as ledger:
        ledger.once("b", lambda: 2)
    (folder / "result.txt").write_text("and on")
    trees.put_back(staging, epoch=2)
    assert (folder / "result.txt").read_text() == "so far"
    with Ledger(folder / "effects.db") as ledger:
        assert ledger.once("b", lambda: pytest.fail("it was done")) == 2


def test_no_checkpoint_in_the_middle_of_a_ledgers_transaction(folder: Path) -> None:
    connection = sqlite3.connect(folder / "effects.db", isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(errors.CheckpointLater, match=r"effects\.db"):
        ledgers.refuse([os.getpid()])
    connection.execute("ROLLBACK")
    connection.close()
    ledgers.refuse([os.getpid()])


def test_another_database_is_no_ledger(folder: Path, staging: Path) -> None:
    connection = sqlite3.connect(folder / "other.db", isolation_level=None)
    connection.execute("CREATE TABLE t (x)")
    found = record([os.getpid()], staging).outputs()
    ledgers.refuse([os.getpid()])
    connection.close()
    assert [output.stored_as is not None for output in found if output.path == str(folder / "other.db")] == [True]
