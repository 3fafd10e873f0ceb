"""Paths that others can change, walked without following a link."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from perdure import errors
from perdure.base import linkless


def test_a_plain_path_is_opened(tmp_path: Path):
    (tmp_path / "x").write_bytes(b"content")
    with linkless.parent(f"{tmp_path}//./x") as (folder, name):
        descriptor = linkless.open_regular(folder, name)
        assert os.read(descriptor, 9) == b"content"
        os.close(descriptor)
        assert linkless.status(folder, "absent") is None
        with pytest.raises(errors.InputMissing):
            linkless.open_regular(folder, "absent")


def test_no_descriptor_is_left_open(tmp_path: Path):
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "fifo")
    gc.collect()  # what others left to be collected is not closed in between
    before = os.listdir("/proc/self/fd")
    for path in (f"{tmp_path}/x", f"{tmp_path}/link/passwd", f"{tmp_path}/absent/x", f"{tmp_path}/fifo/x"):
        try:
            with linkless.parent(path) as (folder, _), pytest.raises(errors.LinkInPath):
                linkless.open_regular(folder, "fifo")
        except errors.InputError:
            continue
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("path", ["x", "/", "/a/..", "/a/../b", "/a/", "", "/a\0b", "//"])
def test_what_is_no_path_of_a_file_is_refused(path: str):
    with pytest.raises(errors.InputFormat), linkless.parent(path):
        pass


def test_links_and_files_on_the_way_are_refused(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file").touch()
    for part in ("link", "file"):
        with pytest.raises(errors.LinkInPath, match=part), linkless.parent(f"{tmp_path}/{part}/x"):
            pass
        with pytest.raises(errors.LinkInPath), linkless.parent(f"{tmp_path}/{part}/x", make=(0, 0)):
            pass
    with pytest.raises(errors.InputMissing), linkless.parent(f"{tmp_path}/absent/x"):
        pass


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_only_regular_files_are_opened_and_nothing_waits(tmp_path: Path, kind: str, flags: int):
    path = tmp_path / "x"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd" if kind == "link" else "nowhere")
    with linkless.parent(str(path)) as (folder, name), pytest.raises(errors.LinkInPath):
        linkless.open_regular(folder, name, flags)


def test_missing_folders_are_made_for_somebody(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root to give folders away")
    with linkless.parent(f"{tmp_path}/a/b/x", make=(1234, 2345)) as (folder, _):
        os.mkdir("made", dir_fd=folder)
    there = (tmp_path / "a/b").stat()
    assert (there.st_uid, there.st_gid, there.st_mode & 0o7777) == (1234, 2345, 0o755)
    assert (tmp_path / "a/b/made").is_dir()


def test_what_may_not_be_entered_is_denied(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    (tmp_path / "private").mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(errors.InputDenied), linkless.parent(f"{tmp_path}/private/deep/x"):
            pass
    finally:
        os.seteuid(0)
