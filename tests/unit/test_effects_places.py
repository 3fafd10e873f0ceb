"""Where a ledger lies, which life this is, who is alive: everything that a ledger reads from the machine."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from children import exit_status, in_child

from perdure import errors
from perdure.effects import Ledger, epoch
from perdure.effects.identity import Linux, Process
from perdure.effects.watch import Stopwatch

# -- the file -----------------------------------------------------------------------------------------------------------------


def use(path: Path | str) -> None:
    with Ledger(path, patience_s=0) as ledger:
        ledger.once("a", lambda: 1)


def test_the_file_is_private_whatever_the_umask_is(tmp_path):
    before = os.umask(0)
    try:
        use(tmp_path / "effects.db")
    finally:
        os.umask(before)
    assert (tmp_path / "effects.db").stat().st_mode & 0o777 == 0o600


def test_links_are_followed_only_where_nobody_else_could_have_put_them(tmp_path):
    mine, shared = tmp_path / "mine", tmp_path / "shared"
    mine.mkdir()
    shared.mkdir()
    shared.chmod(0o1777)
    (mine / "link").symlink_to(mine / "effects.db")
    use(mine / "effects.db")
    use(mine / "link")
    for name, target in (("file", mine / "effects.db"), ("folder", mine)):
        (shared / name).symlink_to(target)
    for path in (shared / "file", shared / "folder" / "effects.db"):
        with pytest.raises(errors.LedgerUnsafe, match="link"):
            use(path)


def test_a_file_that_others_may_change_or_replace_is_refused(tmp_path):
    use(tmp_path / "effects.db")
    (tmp_path / "effects.db").chmod(0o602)
    with pytest.raises(errors.LedgerUnsafe, match="everybody"):
        use(tmp_path / "effects.db")
    (tmp_path / "effects.db").chmod(0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(errors.LedgerUnsafe, match="replace"):
        use(tmp_path / "effects.db")
    tmp_path.chmod(0o1777)
    use(tmp_path / "effects.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_that_somebody_else_put_into_a_shared_folder_is_refused(tmp_path):
    (tmp_path / "effects.db").touch(mode=0o600)
    os.chown(tmp_path / "effects.db", 12345, 12345)
    tmp_path.chmod(0o1777)
    with pytest.raises(errors.LedgerUnsafe, match="belongs"):
        use(tmp_path / "effects.db")


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_not_a_file_is_refused(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(errors.LedgerError, match="not a file"):
        use(tmp_path / "x")


def test_a_folder_that_is_absent_is_told(tmp_path):
    with pytest.raises(errors.LedgerError, match="No such file"):
        use(tmp_path / "absent" / "effects.db")


def test_what_is_not_a_ledger_is_left_alone(tmp_path):
    text, other = tmp_path / "text", tmp_path / "other.db"
    text.write_text("not a database" * 100)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = other.read_bytes()
    for path in (text, other):
        with pytest.raises(errors.LedgerCorrupt) as caught:
            use(path)
        assert caught.value.exit_status == 13
    assert other.read_bytes() == before


def test_a_newer_schema_is_refused_by_name_and_an_older_one_brought_up_to_date(tmp_path):
    path = tmp_path / "effects.db"
    use(path)

    def change(*statements: str) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    change("DROP TABLE outbox", "PRAGMA user_version=1")
    use(path)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()
    change("PRAGMA user_version=99")
    with pytest.raises(errors.LedgerSchema, match="schema 99") as caught:
        use(path)
    assert caught.value.exit_status == 22


def test_a_damaged_file_is_told(tmp_path):
    path = tmp_path / "effects.db"
    with Ledger(path) as ledger:
        for number in range(50):
            ledger.once(f"k{number}", lambda: "x" * 500)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(errors.LedgerCorrupt):
        use(path)


def test_a_working_directory_that_changes_does_not_move_the_ledger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Ledger("effects.db") as ledger:
        ledger.once("a", lambda: 1)
        monkeypatch.chdir("/")
        assert ledger.once("a", lambda: 2) == 1
    assert "effects.db" in repr(ledger)


def test_a_step_that_finds_the_file_locked_waits_and_is_told_in_the_end(tmp_path):
    path = tmp_path / "effects.db"
    use(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with Ledger(path, patience_s=0) as ledger:
        with pytest.raises(errors.LedgerLocked) as caught:
            ledger.counts()
        assert caught.value.retryable
    holder.close()
    use(path)


@pytest.mark.parametrize("address", ["mysql://root:hunter2@h/d", "", "sqlite:///x"])
def test_other_addresses_are_refused_without_showing_them(address):
    with pytest.raises(errors.UsageError) as caught:
        Ledger(address)
    assert "hunter2" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("lease_s", [0, -1, float("nan"), float("inf")])
def test_a_lease_is_a_length_of_time(tmp_path, lease_s):
    with pytest.raises(errors.UsageError):
        Ledger(tmp_path / "x", lease_s=lease_s)


# -- lives --------------------------------------------------------------------------------------------------------------------


def read(source=None, workload=None, **environ):
    return epoch.reader(source, workload, environ)()


def test_where_the_epoch_is_read_from(tmp_path):
    file = tmp_path / "epoch"
    file.write_text("7\njob-1\n")
    assert read() is None
    assert read(3, "w") == epoch.Life("w", 3)
    assert read(lambda: 4, "w") == epoch.Life("w", 4)
    assert read(file) == read(str(file)) == epoch.Life("job-1", 7)
    assert read(file, "mine") == epoch.Life("mine", 7)
    slurm = {"SLURM_JOB_ID": "12", "SLURM_CLUSTER_NAME": "c"}
    assert read(**slurm) == epoch.Life("c:12", 0)
    assert read(**slurm, SLURM_RESTART_COUNT="2") == epoch.Life("c:12", 2)
    assert read(**slurm, SLURM_ARRAY_JOB_ID="10", SLURM_ARRAY_TASK_ID="3") == epoch.Life("c:10_3", 0)
    assert read(**slurm, PERDURE_EPOCH_FILE=str(file)) == epoch.Life("job-1", 7)
    assert read(5, "w", **slurm, PERDURE_EPOCH_FILE=str(file)) == epoch.Life("w", 5)


@pytest.mark.parametrize("content", ["", "x\nw\n", "-1\nw\n", "1.5\nw\n", "1\n", "٣\nw\n", f"{2**63}\nw\n"])
def test_a_file_without_an_epoch_is_refused(tmp_path, content):
    file = tmp_path / "epoch"
    file.write_text(content)
    with pytest.raises(errors.UsageError):
        read(file)
    with pytest.raises(errors.InputMissing):
        read(tmp_path / "absent")


def test_an_epoch_needs_a_workload():
    with pytest.raises(errors.UsageError, match="workload"):
        epoch.reader(3, None)


# -- processes and clocks -----------------------------------------------------------------------------------------------------


def test_a_process_is_told_from_a_later_one_with_its_number():
    linux = Linux()
    here = linux.process()
    assert Process.load(here.dump()) == here
    assert here.pid == os.getpid()
    assert linux.is_alive(here) is True
    assert linux.is_alive(dataclasses.replace(here, started=here.started - 1)) is False
    assert linux.is_alive(dataclasses.replace(here, boot="other")) is None
    assert linux.is_alive(dataclasses.replace(here, pid_namespace="other")) is None


def test_a_zombie_and_a_vanished_process_are_dead():
    linux = Linux()
    reader, writer = os.pipe()
    child = in_child(lambda: os.read(reader, 1))
    with open(f"/proc/{child}/stat", "rb") as handle:
        started = int(handle.read().rpartition(b")")[2].split()[19])
    there = dataclasses.replace(linux.process(), pid=child, started=started)
    assert linux.is_alive(there) is True
    os.write(writer, b"!")
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert linux.is_alive(there) is False
    assert exit_status(child) == 0
    assert linux.is_alive(there) is False
    os.close(reader)
    os.close(writer)


def test_a_stopwatch_does_not_believe_a_jump():
    class Jumping(Linux):
        now_s = 100.0

        def boot_s(self) -> float:
            return self.now_s

    surroundings = Jumping()
    stopwatch = Stopwatch(surroundings)
    for now_s, elapsed_s in ((101.0, 1.0), (50.0, 1.0), (51.0, 2.0), (1e9, 62.0)):
        surroundings.now_s = now_s
        assert stopwatch.elapsed_s() == elapsed_s


def test_the_thread_of_signs_of_life_ends_with_the_ledger(tmp_path):
    others = set(threading.enumerate())  # of ledgers that other tests left, if any

    def beats() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - others if thread.name == "perdure-effects-beats"]

    with Ledger(tmp_path / "effects.db") as ledger:
        ledger.once("a", lambda: 1)
        assert beats()
    assert not beats()


def test_the_room_loads_quickly_and_without_any_library():
    code = (
        "import sys; before = set(sys.modules); import perdure.effects\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "heavy = {'asyncio', 'sqlite3', 'ssl', 'logging', 'concurrent', 'subprocess'};"
        "print(sorted(new - set(sys.stdlib_module_names) | new & heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env={"PYTHONPATH": "src"}, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.stderr == ""
    assert done.stdout == "['perdure']\n"
