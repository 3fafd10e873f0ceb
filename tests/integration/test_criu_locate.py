"""Which CRIU is used, and why: proofs, what is remembered of them, and who may have put it there."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

import criu_tree
import msgspec
import pytest

from perdure import errors
from perdure.checkpoint.criu import locate, probe, report, run
from perdure.model.finding import Severity


@pytest.fixture
def where(tmp_path) -> locate.Places:
    return msgspec.structs.replace(criu_tree.places(), cache=str(tmp_path / "cache"))


def _children() -> set[str]:
    return {word for task in Path("/proc/self/task").iterdir() for word in (task / "children").read_text().split()}


def _stub(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


@pytest.mark.criu
def test_the_proof_is_remembered_and_asked_again_when_it_cannot_be_read(where):
    found = locate.find(where)
    memory = Path(where.cache) / "criu-proofs.json"
    assert memory.stat().st_mode & 0o777 == 0o600
    proved = memory.stat().st_ino
    assert locate.find(where) == found
    assert memory.stat().st_ino == proved, "the proof was made again though it was remembered"
    memory.write_text("{broken")
    assert locate.find(where) == found
    assert memory.stat().st_ino != proved


@pytest.mark.criu
def test_a_memory_that_others_can_write_is_not_believed(where):
    found = locate.find(where)
    memory = Path(where.cache) / "criu-proofs.json"
    forged = memory.read_bytes().replace(found.version.encode(), b"9.9.9")
    memory.write_bytes(forged)
    assert locate.find(where).version == "9.9.9", "this memory is read"
    memory.chmod(0o666)
    assert locate.find(where).version == found.version


@pytest.mark.criu
@pytest.mark.parametrize(
    ("body", "step"),
    [
        ("exit 1", "version"),
        ("[ $1 = --version ] && { echo Version: 9.9; exit 0; }; exit 1", "dump"),
        ("[ $1 = --version ] && { echo Version: 9.9; exit 0; }; exit 0", "dump"),
    ],
)
def test_a_criu_that_only_says_that_it_works_is_found_out_and_nothing_is_left(where, tmp_path, body, step, monkeypatch):
    monkeypatch.setattr(probe, "_STEP_S", 120.0)  # nothing is waited for in vain
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))  # others probe in the system's at the same time
    stub = _stub(tmp_path / "criu", body)
    before = _children()
    outcome = probe.probe(run.Criu(argv=(str(stub),), version="", origin="test"), locate.find_init(where).path)
    assert (outcome.passed, outcome.step) == (False, step)
    assert outcome.explanation is not None
    assert outcome.explanation.message
    assert _children() <= before
    assert not list(temporary.iterdir())


@pytest.mark.criu
@pytest.mark.parametrize(("answer", "step"), [("exit 1", "restore"), ("exit 0", "socket")])
def test_a_criu_that_dumps_and_cannot_restore_is_found_out(where, tmp_path, answer, step, monkeypatch):
    waits = probe._Trial._await

    def wait(trial: probe._Trial, at: str, **options) -> None:
        monkeypatch.setattr(probe, "_STEP_S", 2.0 if at == "socket" else 120.0)  # only what was not restored is waited for in vain
        waits(trial, at, **options)

    monkeypatch.setattr(probe, "_STEP_S", 120.0)
    monkeypatch.setattr(probe._Trial, "_await", wait)
    real = " ".join(locate.find(where).argv)
    stub = _stub(tmp_path / "criu", f'[ "$1" = restore ] && {answer}; exec {real} "$@"')
    before = _children()
    outcome = probe.probe(run.Criu(argv=(str(stub),), version="", origin="test"), locate.find_init(where).path)
    assert (outcome.passed, outcome.step) == (False, step)
    assert _children() <= before


@pytest.mark.criu
def test_the_first_that_works_is_used_and_the_others_are_told_of(where, tmp_path):
    bad = tmp_path / "bin"
    bad.mkdir()
    stub = _stub(bad / "criu", "[ $1 = --version ] && { echo Version: 3.0; exit 0; }; exit 1")
    told = report.make(msgspec.structs.replace(where, search_path=f"{bad}:{where.search_path}"))
    assert told.criu is not None
    rejected = [finding for finding in told.findings if finding.path == str(stub)]
    assert [finding.severity for finding in rejected] == [Severity.INFO]
    assert "not used" in rejected[0].message
    assert "criu 3.0" in rejected[0].subject


@pytest.mark.criu
def test_one_that_was_named_is_the_only_one(where, tmp_path):
    stub = _stub(tmp_path / "criu", "exit 1")
    named = msgspec.structs.replace(where, named=str(stub), named_by="$PERDURE_CRIU")
    with pytest.raises(errors.EnvironmentUnfit, match="does not tell its version"):
        locate.find(named)
    with pytest.raises(errors.EnvironmentUnfit, match="neither a CRIU nor a prefix"):
        locate.find(msgspec.structs.replace(named, named=str(tmp_path / "nothing")))


@pytest.mark.criu
@pytest.mark.parametrize("mode", [0o757, 0o775])
def test_a_program_that_others_can_change_is_not_started(where, tmp_path, mode):
    ran = tmp_path / "ran"
    stub = _stub(tmp_path / "criu", f"touch {ran}; exit 0")
    stub.chmod(mode)
    with pytest.raises(errors.EnvironmentUnfit, match="changed by somebody else"):
        locate.find(msgspec.structs.replace(where, named=str(stub)))
    assert not ran.exists()


@pytest.mark.criu
def test_a_program_below_a_folder_that_others_can_change_is_not_started(where, tmp_path):
    shared = tmp_path / "shared"
    folder = shared / "mine"
    folder.mkdir(parents=True)
    stub = _stub(folder / "criu", "exit 1")
    shared.chmod(0o777)
    named = msgspec.structs.replace(where, named=str(stub))
    with pytest.raises(errors.EnvironmentUnfit, match="changed by somebody else"):
        locate.find(named)
    shared.chmod(0o1777)  # sticky: nobody can replace another's folder
    with pytest.raises(errors.EnvironmentUnfit, match="does not tell its version"):
        locate.find(named)


def test_an_init_is_static_or_not_taken(where, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy("/bin/true", folder / "tini-static")
    alone = msgspec.structs.replace(where, search_path=str(folder), prefixes=())
    with pytest.raises(errors.EnvironmentUnfit, match="no static minimal init"):
        locate.find_init(alone)


@pytest.mark.criu
def test_the_init_of_a_prefix_is_static(where):
    init = locate.find_init(where)
    assert os.stat(init.path).st_mode & stat.S_IXUSR
    folder = Path(init.path).parent
    assert locate.find_init(msgspec.structs.replace(where, search_path=str(folder), prefixes=())).path == init.path
