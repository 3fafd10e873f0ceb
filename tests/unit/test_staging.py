"""Where images wait: by room, never through links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from perdure import errors
from perdure.checkpoint import staging
from perdure.checkpoint.staging import Place


def test_a_small_image_goes_to_memory_and_the_folder_is_private(tmp_path: Path):
    place = staging.choose(1 << 20, setting=None, disks=(tmp_path,))
    if place.kind == "disk":
        pytest.skip(f"this machine has no room in memory: {place.limit}")
    folder = staging.make(place)
    try:
        assert folder.parent == staging.MEMORY
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        staging.remove(folder)
    assert not folder.exists()
    staging.remove(folder)


def test_a_folder_that_was_asked_for_is_the_only_one_looked_at(tmp_path: Path):
    place = staging.choose(1 << 20, setting=str(tmp_path), disks=())
    assert (place.folder, place.kind) == (tmp_path, "disk")


def test_what_fits_nowhere_is_refused_with_numbers(tmp_path: Path):
    with pytest.raises(
        errors.CheckpointRefused, match=rf"no room for .* PiB of images: {staging.MEMORY} has room for .*; {tmp_path} has"
    ) as caught:
        staging.choose(1 << 60, setting=None, disks=(tmp_path,))
    assert "PERDURE_STAGING" in caught.value.hint


def test_a_folder_that_is_not_there_has_no_room(tmp_path: Path):
    with pytest.raises(errors.CheckpointRefused, match="No such file"):
        staging.choose(1, setting=str(tmp_path / "nothing"), disks=())


def test_a_tenth_is_left_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _path: there)  # others write to this disk meanwhile, and remove what they wrote
    place = staging.choose(1, setting=str(tmp_path), disks=())
    assert place.room_bytes <= (there.f_bavail - there.f_blocks * 0.1 + 1) * there.f_frsize


def test_removing_does_not_follow_links(tmp_path: Path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    folder = staging.make(Place(tmp_path, "disk", 0, ""))
    (folder / "link").symlink_to(kept)
    staging.remove(folder)
    assert (kept / "file").read_text() == "x"
    link = tmp_path / "perdure-link"
    link.symlink_to(kept)
    with pytest.raises(OSError, match=r"symbolic link|perdure-link"):  # by the version of Python
        staging.remove(link)
    assert link.is_symlink()
    assert (kept / "file").read_text() == "x"


def test_only_what_was_made_for_images_is_removed(tmp_path: Path):
    with pytest.raises(AssertionError):
        staging.remove(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    with pytest.raises(errors.OutputError, match="cannot make a folder"):
        staging.make(Place(tmp_path / "nothing", "disk", 0, ""))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"inactive_file 10\nactive_file 3\ntotal_inactive_file 25\n", 25),
        (b"anon 5\ninactive_file 12\nactive_file 3\n", 12),
        (b"anon 5\n", 0),
        (b"", 0),
    ],
)
def test_what_can_be_dropped_is_read_from_both_kinds_of_cgroup(text: bytes, expected: int):
    assert staging.droppable_bytes(text) == expected
