"""Copies at the freeze where the file system can share content: nothing is copied, whatever the size."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from writing import holding

from perdure.checkpoint.outputs import trees
from perdure.checkpoint.outputs.bring_back import bring_back
from perdure.checkpoint.outputs.record import record
from perdure.checkpoint.outputs.rules import Limits


@pytest.fixture(params=["xfs", "btrfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    make = shutil.which(f"mkfs.{request.param}", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if make is None or os.geteuid() != 0:
        pytest.skip(f"needs root and mkfs.{request.param}")
    with open(tmp_path / "image", "wb") as handle:
        handle.truncate(512 << 20)
    subprocess.run([make, tmp_path / "image"], check=True, capture_output=True)
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-o", "loop", tmp_path / "image", folder], capture_output=True).returncode:
        pytest.skip(f"may not mount {request.param} here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_an_open_file_is_shared_not_copied(disk: Path):
    (disk / "staging").mkdir(mode=0o700)
    path = disk / "table"
    path.write_bytes(os.urandom(1 << 20) * 60)
    before = path.read_bytes()
    with holding((str(path), os.O_RDWR, 0, 0)) as pid:
        recording = record([pid], disk / "staging", limits=Limits())
    (output,) = recording.outputs()
    assert (recording.copied_bytes, recording.shared_bytes) == (0, len(before))
    # The two are apart all the same.
    path.write_bytes(b"later")
    found = bring_back([output], epoch=2, contents=disk / "staging")
    assert {each.severity.value for each in found} == {"info"}
    assert path.read_bytes() == before


def test_an_included_tree_is_shared_not_copied(disk: Path):
    (disk / "staging").mkdir(mode=0o700)
    (disk / "tree").mkdir()
    (disk / "tree/large").write_bytes(b"x" * (30 << 20))
    included = trees.include([str(disk / "tree")], disk / "staging")
    assert (included.copied_bytes, included.shared_bytes) == (0, 30 << 20)
    shutil.rmtree(disk / "tree")
    assert trees.put_back(disk / "staging", epoch=2) == ()
    assert (disk / "tree/large").stat().st_size == 30 << 20
