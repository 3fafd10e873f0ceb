"""State, locks, folders and errors between processes."""

from __future__ import annotations

import os
import sqlite3
import stat

import pytest
from children import exit_status, in_child

from perdure import errors
from perdure.model.finding import Finding, Severity
from perdure.supervisor import folders, lock, state, wire
from perdure.supervisor.record import Operation, Options, State, Workload


def workload(name: str = "a", **changes) -> Workload:
    fields = {
        "name": name,
        "command": ("x", "\udcff"),
        "working_directory": "/w",
        "options": Options(),
        "store": "/s",
        "created_ns": 1,
        "changed_ns": 2,
        "state": State.RUNNING,
    }
    return Workload(**{**fields, **changes})


def test_what_is_remembered_is_there_for_the_next_process(tmp_path):
    path = tmp_path / "state.db"
    with state.opened(path) as database:
        database.put(workload("b"))
        database.put(workload())
        begun = database.begin(Operation(number=0, workload="a", kind="checkpoint", began_ns=5))
        database.amend(Operation(number=begun.number, workload="a", kind="checkpoint", began_ns=5, staging="/tmp/x"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with state.opened(path) as database:
        assert [one.name for one in database.workloads()] == ["a", "b"]
        assert database.get("a") == workload()
        (operation,) = database.unfinished("a")
        assert operation.staging == "/tmp/x"
        database.end(operation)
        assert database.unfinished("a") == ()
        database.forget("a")
        assert database.get("a") is None
        with pytest.raises(errors.WorkloadMissing):
            database.require("a")


def test_a_newer_file_is_refused_by_name(tmp_path):
    path = tmp_path / "state.db"
    with state.opened(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(errors.Unsupported, match="newer"), state.opened(path):
        pass


def test_something_else_is_refused(tmp_path):
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(errors.OutputError), state.opened(path):
        pass


def test_only_one_holds_the_lock_and_looking_does_not_disturb(tmp_path):
    path = tmp_path / "lock"
    assert not lock.is_held(path)
    with lock.held(path, "a"):
        assert exit_status(in_child(lambda: _must_be_refused(path))) == 0
        assert exit_status(in_child(lambda: lock.is_held(path) or os._exit(9))) == 0
    assert not lock.is_held(path)
    with lock.held(path, "a"):
        pass


def _must_be_refused(path):
    with pytest.raises(errors.WorkloadBusy, match="a is running already"), lock.held(path, "a"):
        pass


def test_a_lock_dies_with_its_holder(tmp_path):
    path = tmp_path / "lock"

    def die():
        with lock.held(path, "a"):
            os.kill(os.getpid(), 9)

    assert exit_status(in_child(die)) == -9
    assert not lock.is_held(path)


def test_folders_are_private_and_those_of_others_refused(tmp_path):
    found = folders.choose(state=str(tmp_path / "s"), run=str(tmp_path / "r"), environ={}, uid=0)
    os.umask(os.umask(0o077))
    found.make("a")
    assert stat.S_IMODE(found.workload("a").stat().st_mode) == 0o700
    assert stat.S_IMODE(found.live("a").stat().st_mode) == 0o711
    found.workload("a").chmod(0o777)
    with pytest.raises(errors.OutputError, match="changed by others"):
        found.make("a")
    found.workload("a").rmdir()
    found.workload("a").symlink_to(tmp_path)
    with pytest.raises(errors.OutputError, match="is a link"):
        found.make("a")


def test_where_folders_are_without_settings():
    assert str(folders.choose(state=None, run=None, environ={}, uid=0).run) == "/run/perdure"
    user = folders.choose(state=None, run=None, environ={"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/7"}, uid=7)
    assert (str(user.state), str(user.run)) == ("/home/u/.local/state/perdure", "/run/user/7/perdure")


def test_errors_cross_processes_as_what_they_are():
    finding = Finding(code="process-io-uring", severity=Severity.PROBLEM, subject="x", message="y", pid=3)
    for error in (
        errors.StoreCorrupt("bad", hint="verify", object_key="packs/00/11"),
        errors.CheckpointRefused("no", findings=(finding,)),
        errors.StoreFull("full"),
        errors.WorkloadBusy("busy", hint="wait"),
    ):
        back = wire.error(wire.document(error))
        assert (type(back), str(back), back.hint, vars(back)) == (type(error), str(error), error.hint, vars(error))
    assert type(wire.error(wire.ErrorDocument("of-the-future", "m"))) is errors.PerdureError
