"""Output files of real processes, as they are recorded and copied."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from writing import holding, lasting_folder

from perdure.base import text
from perdure.checkpoint.outputs import rules
from perdure.checkpoint.outputs.record import record
from perdure.checkpoint.outputs.rules import Limits
from perdure.checkpoint.preflight import files, reading
from perdure.checkpoint.preflight.plan import Plan


@pytest.fixture
def data() -> Iterator[Path]:
    with lasting_folder() as folder:
        yield folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir(mode=0o700)
    return folder


def test_files_are_recorded_with_their_holders_and_only_those_written_in_place_are_copied(data: Path, staging: Path):
    log, table, book = data / "log", data / "table", data / "read only"
    log.write_bytes(b"x" * 100_000)
    table.write_bytes(b"y" * 5000)
    book.write_bytes(b"z")
    table.chmod(0o640)
    os.utime(table, ns=(1, 1_234_567_890_123_456_789))
    opened = [
        (str(log), os.O_WRONLY | os.O_APPEND, 0, 0),
        (str(table), os.O_RDWR, 17, 0),
        (str(table), os.O_RDONLY, 0, 0),
        (str(book), os.O_RDONLY, 0, 0),
    ]
    with holding(*opened) as pid:
        recording = record([pid], staging)
        grown, written = recording.outputs()
    assert recording.findings == []
    there = log.stat()
    assert (grown.path, grown.size_bytes, grown.device, grown.inode) == (str(log), 100_000, there.st_dev, there.st_ino)
    assert grown.stored_as is None
    assert grown.head_digest == rules.digest(b"x" * rules.TAIL_BYTES)
    assert rules.is_append_only(grown)
    assert (written.path, written.mode, written.mtime_ns) == (str(table), 0o640, 1_234_567_890_123_456_789)
    (holder,) = written.holders
    assert (holder.pid, holder.offset, holder.flags & os.O_ACCMODE) == (pid, 17, os.O_RDWR)
    assert (staging / written.stored_as).read_bytes() == table.read_bytes()
    assert (staging / written.stored_as).stat().st_mode & 0o777 == 0o600
    assert recording.copied_bytes + recording.shared_bytes == 5000


def test_a_shared_writable_mapping_is_an_output_and_a_private_or_read_only_one_is_not(data: Path, staging: Path):
    for name in ("shared", "both"):
        (data / name).write_bytes(b"m" * 4096)
    opened = [(str(data / "shared"), os.O_RDWR, 0, 4096), (str(data / "both"), os.O_RDWR, 0, 4096), (str(data / "both"), os.O_RDWR, 0, 0)]
    with holding(*opened) as pid:
        found = {os.path.basename(each.path): each for each in record([pid], staging).outputs()}
    assert set(found) == {"shared", "both"}
    assert found["shared"].mapped
    assert found["shared"].holders == ()
    assert found["both"].mapped
    assert len(found["both"].holders) == 1
    assert all((staging / each.stored_as).read_bytes() == b"m" * 4096 for each in found.values())


def test_deleted_files_are_left_to_criu_and_named(data: Path, staging: Path):
    path = data / "gone"
    path.write_bytes(b"1")
    with holding((str(path), os.O_RDWR, 0, 0), (str(path), os.O_RDWR, 0, 1)) as pid:
        path.unlink()
        recording = record([pid], staging)
    assert recording.outputs() == ()
    assert [(each.code, each.path) for each in recording.findings] == [("file-output-deleted", str(path))] * 2


def test_what_is_too_large_is_recorded_only_and_warned_of(data: Path, staging: Path):
    path = data / "large"
    path.write_bytes(b"1" * 10_000)
    with holding((str(path), os.O_RDWR, 0, 0)) as pid:
        (found,) = record([pid], staging, limits=Limits(file_bytes=5000)).outputs()
    assert found.stored_as is None
    assert found.head_digest == rules.digest(b"1" * 10_000)
    assert [each.code for each in rules.unprotected([found])] == ["file-overwrite-unsaved"]


def test_holes_are_not_filled(data: Path, staging: Path):
    path = data / "sparse"
    with open(path, "wb") as handle:
        handle.truncate(1 << 34)
        handle.seek(1 << 33)
        handle.write(b"middle")
    with holding((str(path), os.O_RDWR, 0, 0)) as pid:
        (found,) = record([pid], staging).outputs()
    copy = staging / found.stored_as
    assert copy.stat().st_size == 1 << 34
    assert copy.stat().st_blocks * 512 <= 64 << 10
    with open(copy, "rb") as handle:
        handle.seek(1 << 33)
        assert handle.read(6) == b"middle"


def test_a_file_in_a_folder_that_may_be_emptied_goes_along_even_if_it_only_grows(staging: Path, tmp_path: Path):
    if not rules.is_volatile(f"{tmp_path}/"):
        pytest.skip("temporary files lie in an unusual folder")
    path = tmp_path / "log"
    path.write_bytes(b"line\n")
    with holding((str(path), os.O_WRONLY | os.O_APPEND, 0, 0)) as pid:
        (found,) = record([pid], staging).outputs()
        assert record([pid], staging, besides=[str(path)]).outputs() == ()
    assert (staging / found.stored_as).read_bytes() == b"line\n"


@pytest.mark.parametrize("mode", ["wal", "delete", "persist"])
def test_a_database_goes_along_with_all_that_belongs_to_it(data: Path, staging: Path, mode: str):
    path = data / "base.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"pragma journal_mode={mode}")
        connection.execute("create table t (a)")
        connection.commit()
        connection.execute("insert into t values (1)")
        if mode != "delete":
            connection.commit()
        found = {os.path.basename(each.path): each for each in record([os.getpid()], staging).outputs() if str(data) in each.path}
    connection.close()
    beside = {"wal": {"base.db-wal", "base.db-shm"}, "delete": {"base.db-journal"}, "persist": {"base.db-journal"}}[mode]
    assert set(found) == {"base.db"} | beside
    assert all(each.stored_as for each in found.values())
    absent = {"base.db-wal", "base.db-shm", "base.db-journal"} - beside
    assert {os.path.basename(each) for each in found["base.db"].without} == absent


@pytest.mark.parametrize("name", ["line\nend", "\udcff", "x (deleted)", "back\\012slash"])
def test_hostile_names_are_recorded_as_they_are(data: Path, staging: Path, name: str):
    path = data / name
    path.write_bytes(b"1")
    with open(path, "r+b"):
        found = [each for each in record([os.getpid()], staging).outputs() if str(data) in each.path]
    assert [text.original(each.path) for each in found] == [str(path)]
    found[0].path.encode("utf-8")


def test_a_path_that_leads_elsewhere_by_now_is_named_and_not_recorded(data: Path, staging: Path):
    (data / "folder").mkdir()
    path = data / "folder/x"
    path.write_bytes(b"1")
    with holding((str(path), os.O_RDWR, 0, 0)) as pid:
        (data / "folder").rename(data / "moved")
        # The kernel shows the new place: that is where it is.
        assert [each.path for each in record([pid], staging).outputs()] == [str(data / "moved/x")]
    with holding((str(data / "moved/x"), os.O_RDWR, 0, 0)) as pid:
        os.link(data / "moved/x", data / "other")
        (data / "moved/x").unlink()
        (data / "moved/x").symlink_to(data / "other")
        recording = record([pid], staging)
        assert recording.outputs() == ()
        assert [each.code for each in recording.findings] == ["file-output-deleted"]


def test_pipes_sockets_devices_and_ended_processes_are_no_outputs(data: Path, staging: Path):
    os.mkfifo(data / "fifo")
    number = os.open(data / "fifo", os.O_RDWR)
    memory = os.memfd_create("x")
    try:
        with socket.socket(socket.AF_UNIX), open("/dev/null", "r+b"):
            found = record([os.getpid()], staging)
    finally:
        os.close(number)
        os.close(memory)
    assert not [each for each in found.outputs() if str(data) in each.path or "/dev/" in each.path or "memfd" in each.path]
    with holding() as pid:
        pass
    assert record([pid], staging).outputs() == ()


def test_what_the_kernel_shows_as_files_is_none(data: Path, staging: Path):
    with holding(("/proc/self/comm", os.O_RDWR, 0, 0), (str(data / "x"), os.O_RDWR | os.O_CREAT, 0, 0)) as pid:
        recording = record([pid], staging)
    assert [each.path for each in recording.outputs()] == [str(data / "x")]
    assert recording.findings == []


def test_the_check_before_names_what_the_checkpoint_then_has_no_content_of(data: Path, staging: Path):
    for name in ("array", "both", "stream", "log"):
        with open(data / name, "wb") as handle:
            handle.writelines(bytes(1 << 20) for _ in range(65))
    with open(data / "sparse", "wb") as handle:
        handle.truncate(1 << 30)
    opened = [
        (str(data / "array"), os.O_RDWR, 0, 4096),
        (str(data / "both"), os.O_RDWR, 0, 4096),
        (str(data / "both"), os.O_RDWR, 0, 0),
        (str(data / "stream"), os.O_WRONLY, 0, 0),
        (str(data / "log"), os.O_WRONLY | os.O_APPEND, 0, 0),
        (str(data / "sparse"), os.O_RDWR, 0, 0),
    ]
    with holding(*opened) as pid:
        left = rules.unprotected(record([pid], staging).outputs())
        named = [each for each in files.check(reading.read(pid), Plan()) if each.code == "file-overwrite-unsaved"]
    assert {each.path for each in left} == {str(data / name) for name in ("array", "both", "stream")}
    assert sorted(each.path for each in named) == sorted(each.path for each in left)
