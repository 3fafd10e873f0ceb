"""Real programs under a real CRIU: dumped while they write, gone on, killed, brought back, and at the end as if nothing had happened."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from frozen import Frozen, wait_for
from writing import lasting_folder

from perdure.base.proc import process
from perdure.checkpoint import carried
from perdure.checkpoint.outputs.bring_back import bring_back
from perdure.checkpoint.outputs.record import Recording, record
from perdure.model.finding import Severity

pytestmark = pytest.mark.criu
EPOCH = 2


class Saved:
    """A checkpoint by hand: the tree is stopped, its files are recorded, CRIU dumps it, it goes on."""

    def __init__(self, running: Frozen, staging: Path) -> None:
        staging.mkdir(mode=0o700)
        self.staging = staging
        tree = running.tree()
        for pid in tree:
            os.kill(pid, signal.SIGSTOP)
        # One that is in the middle of writing stops when it has written.
        wait_for(lambda: all(process.thread_stat(pid, thread).is_stopped for pid in tree for thread in process.threads(pid)))
        self.collected = carried.collect(tree, staging)
        recording: Recording = record(tree, staging, besides=self.collected.paths)
        # Dumped stopped and restored stopped: what was recorded is what CRIU sees.
        running.dump("--leave-running")
        self.outputs = recording.outputs()
        for pid in tree:
            os.kill(pid, signal.SIGCONT)

    def bring_back(self) -> list:
        found = [*carried.put_back(self.collected.carried, self.staging, epoch=EPOCH)]
        return [*found, *bring_back(self.outputs, epoch=EPOCH, contents=self.staging)]


@pytest.fixture
def folder():
    with lasting_folder() as name:
        yield name


@pytest.fixture
def start(folder: Path):
    started: list[Frozen] = []

    def begin(script: str) -> Frozen:
        one = Frozen(folder, script)
        started.append(one)
        one.start()
        return one

    yield begin
    for one in started:
        one.kill()


def go_on_and_restore(running: Frozen, saved: Saved, reached) -> list:
    """Let the first life write until `reached`, kill it, bring everything back and start the second, which may come to its end.

    Programs wait for the files `on` and `end` on their way: none is further when it is saved, or has ended when it is killed.
    """
    running.tell("on")
    wait_for(reached)
    running.kill()
    findings = saved.bring_back()
    running.restore()
    running.tell("end")
    os.kill(running.pid, signal.SIGCONT)
    return findings


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_log_reads_as_that_of_an_undisturbed_run(start, folder: Path, tmp_path: Path):
    running = start("""
        appended, written = open("appended", "a"), open("written", "w")
        for number in range(150):
            for each in (appended, written): each.write(f"line {number}\\n"); each.flush()
            time.sleep(0.01)
            if number in (90, 130): wait("on" if number == 90 else "end")
        say("done")
    """)
    wait_for(lambda: lines(folder / "appended") > 20)
    saved = Saved(running, tmp_path / "staging")
    at = lines(folder / "appended")
    findings = go_on_and_restore(running, saved, lambda: lines(folder / "appended") > at + 20)
    assert {each.severity for each in findings} == {Severity.INFO}
    running.reached("done")
    expected = "".join(f"line {number}\n" for number in range(150))
    assert (folder / "appended").read_text() == expected
    assert (folder / "written").read_text() == expected
    assert (folder / "appended.perdure-tail-2").read_text() in expected


@pytest.mark.parametrize("mode", ["delete", "wal", "truncate", "persist"])
def test_a_database_is_whole_and_has_each_row_once(start, folder: Path, tmp_path: Path, mode: str):
    running = start(f"""
        import sqlite3
        base = sqlite3.connect("base.db", isolation_level=None)
        base.execute("pragma journal_mode={mode}"); base.execute("create table t (number integer primary key, pad text)")
        for number in range(200):
            base.execute("begin immediate")
            base.execute("insert into t values (?, ?)", (number, "x" * 2000))
            if number % 2: base.execute("update t set pad = ? where number = ?", ("y" * 3000, number // 2))
            base.execute("commit"); say("at", number)
            if number in (100, 160): wait("on" if number == 100 else "end")
        base.close(); say("done")
    """)
    wait_for(lambda: int(running.said("at") or 0) > 30)
    saved = Saved(running, tmp_path / "staging")
    at = int(running.said("at"))
    findings = go_on_and_restore(running, saved, lambda: int(running.said("at")) > at + 30)
    assert not [each for each in findings if each.severity is not Severity.INFO], findings
    running.reached("done")
    with sqlite3.connect(folder / "base.db") as base:
        assert base.execute("pragma integrity_check").fetchall() == [("ok",)]
        assert base.execute("select count(*), sum(number) from t").fetchone() == (200, 199 * 100)
    base.close()


def test_a_mapped_array_and_shared_memory_are_what_they_were(start, folder: Path, tmp_path: Path):
    segment = f"perdure-test-{os.getpid()}"
    running = start(f"""
        import mmap, struct
        from multiprocessing import shared_memory
        with open("array", "wb") as file: file.truncate(8192)
        file = open("array", "r+b"); array = mmap.mmap(file.fileno(), 8192); file.close()
        shared = shared_memory.SharedMemory({segment!r}, create=True, size=4096)
        for number in range(150):
            # Each step needs the one before: going on from a later state would be seen.
            for place in (array, shared.buf):
                (before,) = struct.unpack_from("q", place)
                assert before == number, (before, number)
                struct.pack_into("q", place, 0, number + 1)
            say("at", number); time.sleep(0.01)
            if number in (90, 130): wait("on" if number == 90 else "end")
        say("done"); wait("never")
    """)
    try:
        wait_for(lambda: int(running.said("at") or 0) > 20)
        saved = Saved(running, tmp_path / "staging")
        assert f"/dev/shm/{segment}" in saved.collected.paths
        at = int(running.said("at"))
        go_on_and_restore(running, saved, lambda: int(running.said("at")) > at + 20)
        running.reached("done")
        assert (folder / "array").read_bytes()[:8] == (150).to_bytes(8, sys.byteorder)
        running.kill()
        # And as after a reboot: nothing is left in memory.
        Path("/dev/shm", segment).unlink()
        (folder / "done").unlink()
        saved.bring_back()
        running.restore()
        os.kill(running.pid, signal.SIGCONT)
        running.reached("done")
    finally:
        running.kill()
        Path("/dev/shm", segment).unlink(missing_ok=True)


def test_what_criu_would_refuse_is_a_problem_beforehand(start, folder: Path, tmp_path: Path):
    running = start("""
        files = [open("plain", "w"), open("log", "a")]
        for each in files: each.write("12345"); each.flush()
        say("up"); wait("never")
    """)
    running.reached("up")
    saved = Saved(running, tmp_path / "staging")
    running.kill()
    (plain,) = (each for each in saved.outputs if each.path.endswith("/plain"))
    (folder / "plain").write_bytes(b"123")
    for path in (folder / "log", folder / "plain"):
        os.truncate(path, 3)
    (found,) = bring_back([plain], epoch=EPOCH, contents=None)
    assert (found.code, found.severity) == ("restore-output-shorter", Severity.PROBLEM)
    with pytest.raises(AssertionError, match="bad size 3"):
        running.restore()
    assert {each.severity for each in saved.bring_back()} == {Severity.INFO, Severity.WARNING}
    running.restore()
