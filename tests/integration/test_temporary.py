"""Folders for temporary files, and named pipes: made again as they were, never through a link, and no stranger's taken for one's own."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from owners import OTHER, USER, needs_root

from perdure.checkpoint import temporary
from perdure.model.checkpoint import Folder, NamedPipe
from perdure.model.finding import Finding

pytestmark = needs_root


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder that everybody can write to, as /tmp is."""
    folder = Path("/var/tmp", f"perdure-test-{os.getpid()}-{tmp_path.name}")
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def looks(path: Path) -> tuple[int, int, int]:
    there = path.lstat()
    return stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid


def codes(findings: tuple[Finding, ...]) -> list[tuple[str, str, str | None]]:
    return [(each.code, each.severity.value, each.path) for each in findings]


def test_what_is_missing_is_made_as_it_was(scratch: Path):
    wanted = [Folder(str(scratch / "a"), 0o2751, 17, 18), Folder(str(scratch / "a/b"), 0o700, 0, 0)]
    assert temporary.make(wanted) == ()
    assert looks(scratch / "a") == (0o2751, 17, 18)
    assert looks(scratch / "a/b") == (0o700, 0, 0)
    (scratch / "a").chmod(0o777)
    assert temporary.make(wanted) == ()
    assert looks(scratch / "a") == (0o777, 17, 18)


def test_a_users_are_made_with_the_users_rights(scratch: Path):
    own = Folder(str(scratch / "own"), 0o750, USER.uid, USER.groups[1])
    others = [Folder(str(scratch / "roots"), 0o755, 0, 0), Folder(str(scratch / "roots/own"), 0o700, USER.uid, USER.gid)]
    assert temporary.make([own, *others], USER) == ()
    assert looks(scratch / "own") == (0o750, USER.uid, USER.groups[1])
    assert os.listdir(scratch) == ["own"]
    (scratch / "closed").mkdir(mode=0o755)
    refused = Folder(str(scratch / "closed/own"), 0o700, USER.uid, USER.gid)
    assert codes(temporary.make([refused], USER)) == [("restore-folder-failed", "problem", refused.path)]
    assert os.listdir(scratch / "closed") == []


@pytest.mark.parametrize("owner", [None, USER])
def test_a_strangers_is_not_taken_for_ones_own(scratch: Path, owner):
    uid = owner.uid if owner else 0
    wanted = Folder(str(scratch / "own"), 0o700, uid, 0)
    (scratch / "own").mkdir()
    os.chown(scratch / "own", OTHER.uid, OTHER.gid)
    (found,) = temporary.make([wanted], owner)
    assert codes((found,)) == [("restore-folder-taken", "problem", wanted.path)]
    assert f"user {OTHER.uid}" in found.message
    # What was a stranger's then may be another's now.
    assert temporary.make([Folder(wanted.path, 0o777, 17, 17)], owner) == ()


def test_no_link_is_followed(scratch: Path, tmp_path: Path):
    (scratch / "link").symlink_to(tmp_path)
    (scratch / "file").touch()
    wanted = [Folder(str(scratch / name), 0o700, 0, 0) for name in ("link", "link/below", "file", "file/below")]
    assert [code for code, _, _ in codes(temporary.make(wanted))] == [
        "restore-folder-taken",
        "restore-folder-failed",
        "restore-folder-taken",
        "restore-folder-failed",
    ]
    assert os.listdir(tmp_path) == []


def test_the_folder_for_temporary_files_may_be_a_link_here_and_what_is_there_is_used(scratch: Path, tmp_path: Path, monkeypatch):
    place = tmp_path / "elsewhere"
    place.symlink_to(scratch)
    monkeypatch.setattr(temporary.rules, "VOLATILE", (f"{place}/",))
    wanted = Folder(str(place / "own"), 0o700, 0, 0)
    assert [code for code, _, _ in codes(temporary.make([wanted]))] == ["restore-folder-failed"]
    (scratch / "own").mkdir()
    assert temporary.make([wanted]) == ()


def pipe(path: Path, mode: int = 0o640, uid: int = 0, gid: int = 0) -> NamedPipe:
    return NamedPipe(str(path), mode, uid, gid)


@pytest.mark.parametrize("owner", [None, USER])
def test_a_named_pipe_is_made_with_the_rights_of_whom_it_is_for(scratch: Path, owner):
    own = pipe(scratch / "own", 0o622, owner.uid, owner.groups[1]) if owner else pipe(scratch / "own", 0o622, 17, 18)
    old = os.umask(0o077)
    try:
        assert temporary.make([own, pipe(scratch / "roots")], owner) == ()
    finally:
        os.umask(old)
    assert stat.S_ISFIFO((scratch / "own").lstat().st_mode)
    assert looks(scratch / "own") == (own.mode, own.uid, own.gid)
    assert sorted(os.listdir(scratch)) == (["own"] if owner else ["own", "roots"])
    before = (scratch / "own").lstat()
    assert temporary.make([own], owner) == ()
    assert (scratch / "own").lstat() == before


def test_nothing_else_is_taken_for_a_named_pipe(scratch: Path, tmp_path: Path):
    os.mkfifo(tmp_path / "elsewhere")
    (scratch / "link").symlink_to(tmp_path / "elsewhere")
    (scratch / "broken").symlink_to(tmp_path / "nothing")
    (scratch / "through").symlink_to(tmp_path)
    (scratch / "file").touch()
    os.mkfifo(scratch / "strangers")
    os.chown(scratch / "strangers", OTHER.uid, OTHER.gid)
    names = ("link", "broken", "file", "strangers", "through/elsewhere", "file/below")
    assert [code for code, _, _ in codes(temporary.make([pipe(scratch / name) for name in names]))] == [
        *["restore-pipe-taken"] * 4,
        *["restore-pipe-failed"] * 2,
    ]
    assert os.listdir(tmp_path) == ["elsewhere"]
