"""Bringing files back, ended at every step and run again: the end is the same as of one undisturbed run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from dying import crashes, without_unnamed_files

from perdure.checkpoint import carried
from perdure.checkpoint.outputs import listing, rules, trees
from perdure.checkpoint.outputs.bring_back import bring_back
from perdure.model.checkpoint import Carried, Holder, OutputFile

EPOCH = 3


def picture(folder: Path) -> dict[str, object]:
    """What lies in `folder`: content, permissions and time of each file."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        is_kept = ".perdure-" in path.name
        found[str(path.relative_to(folder))] = (content, oct(there.st_mode), None if path.is_dir() or is_kept else there.st_mtime_ns)
    return found


def output(path: Path, content: bytes, stored_as: str | None) -> OutputFile:
    return OutputFile(
        path=str(path), size_bytes=len(content), device=0, inode=0, mtime_ns=1_000_000_007, mode=0o640, uid=os.getuid(), gid=os.getgid(),
        holders=(Holder(1, 3, 0, os.O_RDWR if stored_as else os.O_WRONLY),), stored_as=stored_as, head_digest=rules.digest(content),
    )  # fmt: skip


@pytest.mark.parametrize("case", ["cut", "replace", "in place", "put", "aside", "carried", "tree"])
def test_every_step_may_be_the_last(tmp_path: Path, case: str):
    data, contents = tmp_path / "data", tmp_path / "contents"
    (contents / "outputs").mkdir(parents=True)
    (contents / "outputs/0").write_bytes(b"12345")
    one = output(data / "file", b"12345", None if case == "cut" else "outputs/0")
    later = {
        "cut": b"12345later",
        "replace": b"later!",
        "in place": b"1later",
        "aside": b"12345",
        "carried": b"later",
        "tree": b"later",
    }.get(case)
    if case == "tree":
        entry = listing.Entry(str(data / "sub"), "folder", 0o750, os.getuid(), os.getgid(), 5)
        link = listing.Entry(str(data / "link"), "link", 0o777, os.getuid(), os.getgid(), 5, target="file")
        file = listing.Entry(str(data / "file"), "file", 0o640, os.getuid(), os.getgid(), 1_000_000_007, 5, stored_as="outputs/0")
        listing.write(contents, (str(data),), (entry, link, file))

    def prepare() -> None:
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        if later is not None:
            (data / "file").write_bytes(later)
            (data / "file").chmod(0o640)
            os.utime(data / "file", ns=(1, 2_000_000_000))
        if case == "aside":
            (data / "file-journal").write_bytes(b"journal")
        if case == "tree":
            (data / "link").write_bytes(b"no link")

    def work() -> None:
        if case == "carried":
            each = Carried(str(data / "file"), "outputs/0", 5, 0o640, os.getuid(), os.getgid(), 1_000_000_007)
            found = carried.put_back([each], contents, epoch=EPOCH)
        elif case == "tree":
            found = trees.put_back(contents, epoch=EPOCH)
        else:
            without = (str(data / "file-journal"),) if case == "aside" else ()
            there = os.stat(data / "file") if case == "in place" else None
            same = {"device": there.st_dev, "inode": there.st_ino} if there else {}
            found = bring_back([msgspec.structs.replace(one, without=without, **same)], epoch=EPOCH, contents=contents)
        assert not [each for each in found if each.severity.value == "problem"], found

    prepare()
    work()
    expected = picture(data)
    assert expected["file"][0] == b"12345"
    prepare()
    without_unnamed_files(work)
    assert picture(data) == expected
    count = 0
    for count in crashes(work, prepare):
        kept = b"".join(content for content, *_ in picture(data).values() if isinstance(content, bytes))
        if later is not None:
            # At no instant is what was written to be found nowhere.
            assert later in kept or (later[:5] == b"12345" and later[5:] in kept)
        work()
        assert picture(data) == expected, f"after a crash at step {count}"
    assert count >= 5, "there was nothing to interrupt"
