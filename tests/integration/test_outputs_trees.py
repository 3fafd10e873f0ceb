"""Files and trees that were asked for: stored and put back as they were."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from perdure import errors
from perdure.checkpoint.outputs import listing, trees
from perdure.checkpoint.outputs.record import record
from perdure.model.finding import Severity

EPOCH = 4


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub/deep").mkdir(parents=True)
    (root / "sub").chmod(0o750)
    (root / "plain").write_bytes(b"plain")
    (root / "sub/\udcff\n").write_bytes(b"hostile name")
    (root / "sub/deep/empty").touch(0o400)
    (root / "link").symlink_to("plain")
    (root / "outside").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo")
    with open(root / "sparse", "wb") as handle:
        handle.truncate(1 << 32)
    for path in root.rglob("*"):
        os.utime(path, ns=(5, 1_000_000_007), follow_symlinks=False)
    return root


def picture(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() and there.st_size < 1 << 20 else None
        found[str(path.relative_to(folder))] = (content, oct(there.st_mode), there.st_uid, there.st_size if path.is_file() else 0)
    return found


def test_a_tree_comes_back_as_it_was(tree: Path, staging: Path):
    before = picture(tree)
    included = trees.include([str(tree) + "/"], staging)
    assert [(each.code, each.path) for each in included.findings] == [("file-include-special", str(tree / "fifo"))]
    assert (staging / included.stored[str(tree / "sparse")]).stat().st_blocks == 0
    del before["fifo"]
    shutil.rmtree(tree)
    assert trees.put_back(staging, epoch=EPOCH) == ()
    assert picture(tree) == before
    assert (tree / "sparse").stat().st_blocks == 0
    assert (tree / "plain").stat().st_mtime_ns == (tree / "sub/deep").stat().st_mtime_ns == 1_000_000_007
    assert trees.put_back(staging, epoch=EPOCH) == ()


def test_what_was_changed_is_kept_aside_and_what_came_later_stays(tree: Path, staging: Path):
    before = picture(tree)
    trees.include([str(tree)], staging)
    (tree / "plain").write_bytes(b"changed")
    (tree / "later").write_bytes(b"later")
    (tree / "latest").write_bytes(b"latest")
    shutil.rmtree(tree / "sub")
    (tree / "sub").write_bytes(b"no folder")
    (tree / "link").unlink()
    (tree / "link").symlink_to("elsewhere")
    found = trees.put_back(staging, epoch=EPOCH)
    (later,) = (each for each in found if each.severity is not Severity.INFO)
    assert (later.code, later.severity, later.path) == ("restore-output-later", Severity.WARNING, str(tree / "later"))
    assert "as 1 more do" in later.message  # what was kept aside is not counted
    now = picture(tree)
    assert {name: now[name] for name in before} == before
    assert (tree / "later").read_bytes() == b"later"
    assert (tree / "plain.perdure-tail-4").read_bytes() == b"changed"
    assert (tree / "sub.perdure-tail-4").read_bytes() == b"no folder"
    assert os.readlink(tree / "link.perdure-tail-4") == "elsewhere"


def test_extended_attributes_come_back(tree: Path, staging: Path):
    try:
        os.setxattr(tree / "plain", "user.note", b"\x00\xff")
    except OSError:
        pytest.skip("this file system has no user attributes")
    trees.include([str(tree)], staging)
    (tree / "plain").unlink()
    trees.put_back(staging, epoch=EPOCH)
    assert os.getxattr(tree / "plain", "user.note") == b"\x00\xff"


def test_a_single_file_and_what_is_missing(tree: Path, staging: Path):
    included = trees.include([str(tree / "plain"), str(tree / "absent"), str(tree / "no/where")], staging)
    assert list(included.stored) == [str(tree / "plain")]
    assert [each.code for each in included.findings] == ["file-include-missing"] * 2


def test_what_is_included_counts_as_stored_for_the_record(tree: Path, staging: Path):
    included = trees.include([str(tree)], staging)
    with open(tree / "plain", "ab"):
        (found,) = (each for each in record([os.getpid()], staging, stored=included.stored).outputs() if each.path == str(tree / "plain"))
    assert found.stored_as == included.stored[str(tree / "plain")]


def test_links_are_not_followed_on_the_way_in(tree: Path, staging: Path, tmp_path: Path):
    (tmp_path / "alias").symlink_to(tree)
    with pytest.raises(errors.CheckpointFailed):
        trees.include([str(tmp_path / "alias/plain")], staging)
    included = trees.include([str(tree)], tmp_path / "staging")
    assert not any("passwd" in path for path in included.stored)


def test_links_are_not_followed_on_the_way_out(tree: Path, staging: Path, tmp_path: Path):
    trees.include([str(tree)], staging)
    (tmp_path / "system").mkdir()
    shutil.rmtree(tree / "sub")
    (tree / "sub").symlink_to(tmp_path / "system")
    found = trees.put_back(staging, epoch=EPOCH)
    # The link is set aside, since a folder was there; nothing was written where it led.
    assert os.listdir(tmp_path / "system") == []
    assert (tree / "sub/deep/empty").exists()
    assert not (tree / "sub").is_symlink()
    assert {each.severity.value for each in found} <= {"info"}
    shutil.rmtree(tree)
    tree.symlink_to(tmp_path / "system")
    trees.put_back(staging, epoch=EPOCH)
    assert os.listdir(tmp_path / "system") == []


def test_a_damaged_list_and_a_newer_one_are_refused(staging: Path):
    (staging / "outputs").mkdir()
    assert trees.put_back(staging, epoch=EPOCH) == ()
    (staging / listing.INDEX).write_bytes(b"{")
    with pytest.raises(errors.InputFormat):
        trees.put_back(staging, epoch=EPOCH)
    (staging / listing.INDEX).write_bytes(b'{"version":2,"roots":[],"entries":[]}')
    with pytest.raises(errors.InputFormat, match="newer"):
        trees.put_back(staging, epoch=EPOCH)
