"""The log of privileged actions: one line each whatever they are called, never through a link, never without a bound."""

from __future__ import annotations

import json
import os

import pytest

from perdure.agent import audit
from perdure.agent.audit import Audit


def test_a_line_says_who_what_and_how_and_none_is_left_out(tmp_path):
    log = tmp_path / "log"
    Audit(str(log)).note("run", uid=7, pid=8, result="begun", workload="train", checkpoint=None)
    found = json.loads(log.read_text())
    assert (found["what"], found["uid"], found["pid"], found["by"], found["result"]) == ("run", 7, 8, os.getpid(), "begun")
    assert found["workload"] == "train"
    assert "checkpoint" not in found
    assert found["time"].endswith("Z")
    assert log.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("word", ['a\n{"what":"forged"}', "\x1b[2J\u202e", "\udcff\udc80", "x" * 100_000, '"}', "\0"])
def test_no_word_breaks_a_line_moves_a_cursor_or_fills_a_disk(tmp_path, word):
    log = tmp_path / "log"
    Audit(str(log)).note("run", uid=7, result=word, workload=word)
    content = log.read_bytes()
    assert content.count(b"\n") == 1
    assert content.isascii()
    assert all(byte >= 0x20 for byte in content[:-1])
    assert len(content) < 8000
    assert json.loads(content)["workload"] == word[:512]


def test_a_link_is_not_followed_and_another_file_is_not_written(tmp_path):
    target = tmp_path / "target"
    target.write_text("kept")
    (tmp_path / "log").symlink_to(target)
    Audit(str(tmp_path / "log")).note("run", uid=7, result="done")
    (tmp_path / "folder").symlink_to(tmp_path)
    Audit(str(tmp_path / "folder" / "target")).note("run", uid=7, result="done")
    os.mkfifo(tmp_path / "fifo")
    Audit(str(tmp_path / "fifo")).note("run", uid=7, result="done")
    assert target.read_text() == "kept"


def test_a_file_that_is_full_makes_room_for_the_next(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_bytes(b"")
    os.truncate(log, audit.__dict__["_MOST_BYTES"])
    Audit(str(log)).note("run", uid=7, result="done")
    assert (tmp_path / "log.1").stat().st_size == audit.__dict__["_MOST_BYTES"]
    assert json.loads(log.read_text())["result"] == "done"


def test_stderr_is_the_descriptor_that_was_named(tmp_path):
    ours, theirs = os.pipe()
    Audit(audit.STDERR, stderr=theirs).note("run", uid=7, result="done")
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        assert json.loads(pipe.read())["what"] == "run"
    Audit(audit.STDERR).note("run", uid=7, result="done")
