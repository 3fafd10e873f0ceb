"""Strangers who write to the files that a restore brings back: found before anything is changed, and told from those who do no harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from writing import holding

from perdure.base.proc import holders
from perdure.checkpoint.outputs import trees
from perdure.checkpoint.outputs.record import record
from perdure.checkpoint.outputs.rules import Limits
from perdure.checkpoint.preflight import writers
from perdure.model.checkpoint import OutputFile

APPEND = os.O_WRONLY | os.O_APPEND
IN_USE, SHARED = "restore-output-in-use", "restore-output-shared"
THEN = b"as it was then\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(THEN)
    return file


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir()
    return folder


def outputs(path: Path, staging: Path, flags: int, *, is_stored: bool) -> tuple[OutputFile, ...]:
    """What a checkpoint has of `path`, which a workload has open with `flags`."""
    with holding((str(path), flags, 0, 0)) as pid:
        found = record([pid], staging, limits=Limits() if is_stored else Limits(file_bytes=0)).outputs()
    assert [each.stored_as is not None for each in found] == [is_stored]
    return found


def changed(path: Path, how: str) -> None:
    """What has become of the file since."""
    if how == "added to":
        with open(path, "ab") as file:
            file.write(b"later\n")
    elif how == "written anew":
        path.write_bytes(b"something else, and more of it\n")


@pytest.mark.parametrize(
    ("how", "opened", "expected"),
    [
        ("added to", APPEND, [SHARED]),
        ("added to", os.O_WRONLY, [IN_USE]),
        ("added to", os.O_RDWR, [IN_USE]),
        ("added to", os.O_RDWR | os.O_APPEND, [SHARED]),
        ("added to", os.O_RDONLY, []),
        ("left as it was", os.O_RDWR, []),
        ("written anew", APPEND, [IN_USE]),
        ("written anew", os.O_WRONLY, [IN_USE]),
        ("written anew", os.O_RDONLY, []),
    ],
)
@pytest.mark.parametrize("is_stored", [True, False])
def test_who_writes_where_something_would_change(path, staging, how, opened, expected, is_stored):
    found = outputs(path, staging, APPEND, is_stored=is_stored)
    changed(path, how)
    if how == "written anew" and not is_stored:
        expected = []  # it is only named: there is nothing to put in its place
    with holding((str(path), opened, 0, 0)) as pid:
        told = writers.check(found, staging, None)
    assert [each.code for each in told] == expected
    assert all((each.pid, each.path) == (pid, str(path)) for each in told)
    assert writers.check(found, staging, None) == ()


def test_one_that_has_it_mapped_writes_and_one_that_has_it_by_another_name_too(path, staging):
    found = outputs(path, staging, os.O_RDWR, is_stored=True)
    changed(path, "written anew")
    with holding((str(path), os.O_RDWR, 0, 10)) as pid:
        assert [(each.code, each.pid) for each in writers.check(found, staging, None)] == [(IN_USE, pid)]
    os.link(path, path.with_name("other"))
    with holding((str(path.with_name("other")), os.O_WRONLY, 0, 0)) as pid:
        assert [(each.code, each.pid) for each in writers.check(found, staging, None)] == [(IN_USE, pid)]


def test_of_several_one_that_does_harm_is_named(path, staging):
    found = outputs(path, staging, APPEND, is_stored=True)
    changed(path, "added to")
    with holding((str(path), APPEND, 0, 0)), holding((str(path), os.O_WRONLY, 0, 0)) as harmful, holding((str(path), APPEND, 0, 0)):
        (told,) = writers.check(found, staging, None)
    assert (told.code, told.pid) == (IN_USE, harmful)
    assert "and 2 more have" in told.message


def test_we_and_those_around_us_and_our_own_output_are_no_strangers(path, staging, capfd):
    found = outputs(path, staging, os.O_RDWR, is_stored=True)
    changed(path, "written anew")
    with open(path, "r+b") as ours, holding((str(path), os.O_WRONLY, 0, 0)) as pid:
        assert [each.pid for each in writers.check(found, staging, None)] == [pid]
        before = os.dup(2)
        os.dup2(ours.fileno(), 2)
        try:
            told = writers.check(found, staging, None)
        finally:
            os.dup2(before, 2)
            os.close(before)
        assert told == ()


def test_files_of_included_trees_and_what_came_beside_a_database_count(path, staging):
    stored = trees.include([str(path.parent / "file")], staging).stored
    found = outputs(path, staging, os.O_RDWR, is_stored=True)
    with holding((str(path), os.O_RDWR, 0, 0)):
        assert writers.check((), staging, None) == ()
    changed(path, "added to")
    with holding((str(path), APPEND, 0, 0)) as pid:
        assert [(each.code, each.pid) for each in writers.check(found, staging, None)] == [(IN_USE, pid)]
    assert list(stored) == [str(path)]


def test_writers_are_told_from_readers_and_by_how_they_write(path):
    there = path.stat()
    file = (there.st_dev, there.st_ino)
    with (
        holding((str(path), os.O_RDONLY, 0, 0)),
        holding((str(path), APPEND, 0, 0)) as appender,
        holding((str(path), APPEND, 0, 0), (str(path), os.O_RDWR, 0, 0)) as both,
    ):
        found = holders.writers({file}, besides=())
        assert {each.pid: each.is_append for each in found[file]} == {appender: True, both: False}
        assert holders.writers({file}, besides=(appender, both)) == {}
    assert holders.writers((), besides=()) == {}
