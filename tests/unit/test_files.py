"""Results appear whole or not at all."""

from __future__ import annotations

import os

import pytest

from perdure import errors
from perdure.base import files


def test_a_result_is_private_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "result"
    target.write_text("old")
    files.write_text(target, "new")
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["result"]


def test_a_failure_midway_leaves_the_old_result_and_no_litter(tmp_path):
    target = tmp_path / "result"
    target.write_text("old")
    with pytest.raises(RuntimeError), files.replacing(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["result"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "result"
    link.symlink_to(victim)
    files.write_text(link, "new")
    assert victim.read_text() == "precious"
    assert not link.is_symlink()


def test_a_missing_folder_and_a_directory_are_explained(tmp_path):
    with pytest.raises(errors.OutputError) as caught:
        files.write_text(tmp_path / "none" / "result", "x")
    assert "mkdir" in caught.value.hint
    with pytest.raises(errors.OutputError, match="is a directory"):
        files.write_text(tmp_path, "x")


def test_a_full_disk_is_explained_and_leaves_nothing(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with pytest.raises(errors.OutputError) as caught, files.replacing(tmp_path / "result"), open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    assert "space" in caught.value.hint
    assert os.listdir(tmp_path) == []
