"""The gate between a ledger's transactions and a freeze: one file, two rooms that do not know each other."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from children import exit_status, in_child

from perdure.effects import Ledger
from perdure.effects import gate as theirs
from perdure.supervisor import gate as ours


@pytest.fixture
def epoch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "epoch"
    path.write_text("1\na\n")
    monkeypatch.setenv("PERDURE_EPOCH_FILE", str(path))
    ours.make(path)
    return path


def test_both_sides_mean_the_same_file(epoch_file: Path):
    assert (ours.GATE, ours.TURNSTILE) == (theirs.GATE, theirs.TURNSTILE)
    assert {ours.beside(epoch_file, suffix).stat().st_mode & 0o777 for suffix in (ours.GATE, ours.TURNSTILE)} == {0o644}


def test_a_transaction_waits_while_the_gate_is_shut(epoch_file: Path, tmp_path: Path):
    done = threading.Event()

    def work() -> None:
        with Ledger(tmp_path / "effects.db") as ledger:
            ledger.once("a", lambda: 1)
        done.set()

    with ours.shut(epoch_file) as is_shut:
        assert is_shut
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.3)
    assert done.wait(120)
    thread.join()


def test_a_step_is_within_until_it_is_recorded(epoch_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ours, "_LONGEST_S", 0.1)

    def is_shut() -> bool:
        with ours.shut(epoch_file) as shut:
            return shut

    def fail() -> None:
        raise RuntimeError

    with Ledger(tmp_path / "effects.db") as ledger:
        assert is_shut()
        assert ledger.once("a", is_shut) is False
        assert is_shut()
        assert ledger.once("a", is_shut) is False, "a replay"
        with pytest.raises(RuntimeError):
            ledger.once("b", fail)
        assert is_shut()
        with ledger.effect("c") as effect:
            assert not is_shut()
            # A step begins its transactions while it is within, whoever waits at the turnstile.
            with ours.shut(epoch_file):
                effect.done()
        assert is_shut()


def test_a_forked_child_holds_nothing_of_its_parents(epoch_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ours, "_LONGEST_S", 0.1)
    theirs.enter("step")
    woken, wake = os.pipe()
    begun, begin = os.pipe()
    # It lets go of what it has of its parent as it begins, which may be a while after the fork.
    child = in_child(lambda: (os.write(begin, b"x"), os.read(woken, 1)))
    os.close(begin)
    assert os.read(begun, 1) == b"x"
    theirs.leave("step")
    try:
        with ours.shut(epoch_file) as is_shut:
            assert is_shut
    finally:
        os.write(wake, b"x")
        assert exit_status(child) == 0
    for descriptor in (woken, wake, begun):
        os.close(descriptor)


def test_the_gate_waits_for_a_transaction_and_in_the_end_does_not(epoch_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ours, "_LONGEST_S", 0.1)
    with theirs.passed(), ours.shut(epoch_file) as is_shut:
        assert not is_shut
    with ours.shut(epoch_file) as is_shut:
        assert is_shut


def test_without_a_gate_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PERDURE_EPOCH_FILE", str(tmp_path / "epoch"))
    with theirs.passed():
        pass
    with ours.shut(tmp_path / "epoch") as is_shut:
        assert not is_shut


def test_a_link_is_no_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    target = tmp_path / "elsewhere"
    target.touch()
    os.symlink(target, tmp_path / "epoch.gate")
    os.symlink(target, tmp_path / "epoch.turnstile")
    with ours.shut(tmp_path / "epoch") as is_shut:
        assert not is_shut
