"""Files that go along: in /dev/shm and the folders for temporary files."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from writing import holding, lasting_folder

from perdure import errors
from perdure.checkpoint import carried
from perdure.checkpoint.carried import collect, put_back
from perdure.checkpoint.outputs import rules

EPOCH = 5


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    folder = tmp_path / "staging"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def segment() -> Iterator[Path]:
    """A file of our own in /dev/shm."""
    path = Path("/dev/shm", f"perdure-test-{uuid.uuid4().hex}")
    path.write_bytes(b"s" * 8192)
    path.chmod(0o600)
    yield path
    for each in path.parent.glob(path.name + "*"):
        each.unlink()


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    if not rules.is_volatile(f"{tmp_path}/"):
        pytest.skip("temporary files lie in an unusual folder")
    return tmp_path


def codes(findings) -> list[tuple[str, str]]:
    return [(each.code, each.severity.value) for each in findings]


def test_shared_memory_goes_along_open_or_mapped(segment: Path, staging: Path):
    with holding((str(segment), os.O_RDWR, 0, 8192)) as pid:
        (mapped,) = collect([pid], staging).carried
    assert (mapped.path, mapped.size_bytes, mapped.mode, mapped.uid) == (str(segment), 8192, 0o600, os.getuid())
    assert (staging / mapped.stored_as).read_bytes() == b"s" * 8192
    (staging / mapped.stored_as).unlink()
    with holding((str(segment), os.O_RDONLY, 0, 0)) as pid:
        found = collect([pid], staging)
    assert found.paths == {str(segment)}
    assert found.copied_bytes == 8192


def test_temporary_files_go_along_unless_they_are_written_by_descriptor(temporary: Path, staging: Path):
    for name in ("read", "mapped", "written"):
        (temporary / name).write_bytes(b"x" * 4096)
    opened = [
        (str(temporary / "read"), os.O_RDONLY, 0, 0),
        (str(temporary / "mapped"), os.O_RDWR, 0, 4096),
        (str(temporary / "written"), os.O_RDWR, 0, 0),
    ]
    with lasting_folder() as folder:
        (folder / "input").write_bytes(b"i")
        with holding(*opened, (str(folder / "input"), os.O_RDONLY, 0, 0)) as pid:
            assert collect([pid], staging).paths == {str(temporary / "read"), str(temporary / "mapped")}


def test_what_is_too_large_for_a_temporary_file_is_left_and_named_but_shared_memory_is_not(segment: Path, temporary: Path, staging: Path):
    large = temporary / "data set"
    for path in (large, segment):
        with open(path, "wb") as handle:
            handle.writelines(b"x" * (1 << 20) for _ in range(65))
    (temporary / "small").write_bytes(b"s")
    opened = [(str(path), os.O_RDONLY, 0, 0) for path in (large, segment, temporary / "small")]
    with holding(*opened) as pid:
        found = collect([pid], staging)
    assert found.paths == {str(segment), str(temporary / "small")}
    assert [(each.code, each.path) for each in found.findings] == [("file-temporary-left", str(large))]


def test_all_temporary_files_together_have_a_limit_and_mapped_ones_come_first(temporary: Path, staging: Path, segment: Path):
    for number in range(6):
        with open(temporary / f"{number}", "wb") as handle:
            handle.write(b"x" * (50 << 20))
    opened = [(str(temporary / f"{number}"), os.O_RDONLY, 0, 0) for number in range(5)]
    with holding(*opened, (str(temporary / "5"), os.O_RDWR, 0, 50 << 20)) as pid:
        found = collect([pid], staging)
    assert str(temporary / "5") in found.paths
    assert (len(found.carried), len(found.findings)) == (5, 1)


def test_explicit_files_go_along_and_links_to_them_do_not(tmp_path: Path, staging: Path):
    program = tmp_path / "init"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    (found,) = collect([], staging, explicit=[str(program)]).carried
    assert (found.path, found.mode) == (str(program), 0o755)
    (tmp_path / "alias").symlink_to(program)
    with pytest.raises(errors.CheckpointFailed):
        collect([], tmp_path / "staging", explicit=[str(tmp_path / "alias")])
    with pytest.raises(errors.CheckpointFailed):
        collect([], tmp_path / "staging", explicit=[str(tmp_path / "absent")])


def test_deleted_files_and_ended_processes_bring_nothing(segment: Path, staging: Path):
    with holding((str(segment), os.O_RDWR, 0, 8192), (str(segment), os.O_RDWR, 0, 0)) as pid:
        segment.unlink()
        assert collect([pid], staging).carried == ()
    assert collect([pid], staging).carried == ()


def test_what_is_missing_comes_back_and_what_is_there_stays(segment: Path, staging: Path):
    os.utime(segment, ns=(5, 1_000_000_007))
    found = collect([], staging, explicit=[str(segment)]).carried
    before = segment.stat()
    assert put_back(found, staging, epoch=EPOCH) == ()
    assert segment.stat() == before
    segment.unlink()
    assert put_back(found, staging, epoch=EPOCH) == ()
    after = segment.stat()
    assert segment.read_bytes() == b"s" * 8192
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)


def test_what_another_life_left_in_shared_memory_is_replaced(segment: Path, staging: Path):
    found = collect([], staging, explicit=[str(segment)]).carried
    segment.write_bytes(b"left over")
    assert put_back(found, staging, epoch=EPOCH) == ()
    assert segment.read_bytes() == b"s" * 8192
    assert list(segment.parent.glob(segment.name + "*")) == [segment]


def test_the_same_size_with_other_content_is_different(segment: Path, staging: Path):
    found = collect([], staging, explicit=[str(segment)]).carried
    there = segment.stat()
    segment.write_bytes(b"t" * 8192)
    os.utime(segment, ns=(there.st_atime_ns, there.st_mtime_ns))
    put_back(found, staging, epoch=EPOCH)
    assert segment.read_bytes() == b"s" * 8192


def test_a_differing_temporary_file_is_kept_aside(temporary: Path, staging: Path):
    path = temporary / "data"
    path.write_bytes(b"then")
    found = collect([], staging, explicit=[str(path)]).carried
    path.write_bytes(b"now")
    assert codes(put_back(found, staging, epoch=EPOCH)) == [("restore-carried-aside", "info")]
    assert path.read_bytes() == b"then"
    assert (temporary / "data.perdure-tail-5").read_bytes() == b"now"


@pytest.mark.parametrize("size", [0, 8192])
def test_what_a_living_process_has_open_is_not_replaced(segment: Path, staging: Path, size: int):
    found = collect([], staging, explicit=[str(segment)]).carried
    with holding((str(segment), os.O_RDWR, 0, size)) as pid:
        segment.chmod(0o644)
        (finding,) = put_back(found, staging, epoch=EPOCH)
        assert (finding.code, finding.severity.value, finding.pid) == ("restore-carried-busy", "problem", pid)
        assert segment.stat().st_mode & 0o777 == 0o644
    assert put_back(found, staging, epoch=EPOCH) == ()
    assert segment.stat().st_mode & 0o777 == 0o600


def test_what_another_restore_or_a_backup_just_reads_is_waited_for(segment: Path, staging: Path, monkeypatch):
    found = collect([], staging, explicit=[str(segment)]).carried
    segment.write_bytes(b"n" * 8192)
    pauses = []

    def end_it(pause_s: float) -> None:
        pauses.append(pause_s)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(time, "sleep", end_it)
    with holding((str(segment), os.O_RDONLY, 0, 0)) as pid:
        assert put_back(found, staging, epoch=EPOCH) == ()
    assert len(pauses) == 1
    assert segment.read_bytes() == b"s" * 8192


def test_what_is_replaced_while_it_is_kept_aside_is_kept_as_it_is_then(temporary: Path, staging: Path, monkeypatch):
    path = temporary / "data"
    path.write_bytes(b"then")
    found = collect([], staging, explicit=[str(path)]).carried
    path.write_bytes(b"now")
    linked, gone = os.link, [FileNotFoundError(2, "No such file or directory")]

    def link(source, target, **more):
        # What the kernel says of a file whose last name was taken between the look-up and the link.
        if source == "data" and gone:
            raise gone.pop()
        linked(source, target, **more)

    monkeypatch.setattr(os, "link", link)
    assert codes(put_back(found, staging, epoch=EPOCH)) == [("restore-carried-aside", "info")]
    assert (path.read_bytes(), (temporary / "data.perdure-tail-5").read_bytes(), gone) == (b"then", b"now", [])


def test_what_several_workloads_share_is_left_alone_whatever_its_time(temporary: Path, staging: Path):
    path = temporary / "init"
    path.write_bytes(b"program")
    found = collect([], staging, explicit=[str(path)]).carried
    os.utime(path, ns=(1, 1))
    there = path.stat()
    assert put_back(found, staging, epoch=EPOCH, shared=True) == ()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (there.st_ino, 1)
    path.write_bytes(b"another")
    assert codes(put_back(found, staging, epoch=EPOCH, shared=True)) == [("restore-carried-aside", "info")]
    assert path.read_bytes() == b"program"


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("before", [None, b"now"], ids=["absent", "differs"])
def test_workloads_that_bring_the_same_file_at_once_all_succeed(temporary: Path, staging: Path, before: bytes | None, shared: bool):
    path = temporary / "data"
    path.write_bytes(b"then" * 4096)
    found = collect([], staging, explicit=[str(path)]).carried
    for _round in range(40):
        path.unlink()
        if before is not None:
            path.write_bytes(before)
        start, children = temporary / "start", []
        for _each in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    while not start.exists():
                        pass
                    status = any(each.severity.value == "problem" for each in put_back(found, staging, epoch=EPOCH, shared=shared))
                finally:
                    os._exit(status)
            children.append(child)
        start.write_bytes(b"")
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        start.unlink()
        assert path.read_bytes() == b"then" * 4096
    assert not list(temporary.glob("data.perdure-new-*"))


def test_what_a_living_process_has_open_and_differs_by_its_time_alone_is_what_it_was(segment: Path, staging: Path):
    found = collect([], staging, explicit=[str(segment)]).carried
    os.utime(segment, ns=(1, 1))
    with holding((str(segment), os.O_RDWR, 0, 0)):
        assert put_back(found, staging, epoch=EPOCH) == ()
    assert segment.stat().st_mtime_ns == 1


@pytest.mark.parametrize("trap", ["link", "hard link", "fifo", "folder", "link to folder"])
def test_traps_at_the_path_lead_nowhere(temporary: Path, staging: Path, trap: str):
    (temporary / "data").mkdir()
    (temporary / "system").mkdir()
    path, victim = temporary / "data/file", temporary / "system/file"
    path.write_bytes(b"then")
    victim.write_bytes(b"secret")
    found = collect([], staging, explicit=[str(path)]).carried
    path.unlink()
    if trap == "link":
        path.symlink_to(victim)
    elif trap == "hard link":
        os.link(victim, path)
    elif trap == "fifo":
        os.mkfifo(path)
    elif trap == "folder":
        path.mkdir()
    else:
        (temporary / "data").rmdir()
        (temporary / "data").symlink_to(temporary / "system")
    said = codes(put_back(found, staging, epoch=EPOCH))
    assert victim.read_bytes() == b"secret"
    assert os.listdir(temporary / "system") == ["file"]
    if trap == "link to folder":
        assert said == [("restore-carried-failed", "problem")]
    else:
        assert said == [("restore-carried-aside", "info")]
        assert path.read_bytes() == b"then"
        assert not path.is_symlink()


def test_missing_folders_are_made_for_their_owner(temporary: Path, staging: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    folder = temporary / "hsperfdata_user"
    folder.mkdir()
    (folder / "17").write_bytes(b"perf")
    os.chown(folder / "17", 1234, 1234)
    found = collect([], staging, explicit=[str(folder / "17")]).carried
    (folder / "17").unlink()
    folder.rmdir()
    assert put_back(found, staging, epoch=EPOCH) == ()
    assert folder.stat().st_uid == (folder / "17").stat().st_uid == 1234


def test_a_copy_that_is_not_whole_or_lies_elsewhere_is_not_used(segment: Path, staging: Path):
    import msgspec

    (found,) = collect([], staging, explicit=[str(segment)]).carried
    segment.write_bytes(b"now")
    for bad in (msgspec.structs.replace(found, size_bytes=1), msgspec.structs.replace(found, stored_as="../../etc/passwd")):
        assert codes(put_back([bad], staging, epoch=EPOCH)) == [("restore-carried-failed", "problem")]
    assert segment.read_bytes() == b"now"


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_no_room_is_said_before_anything_is_filled(segment: Path, staging: Path):
    with small_disk(staging, "64m"):
        with pytest.raises(errors.CheckpointFailed, match="no room"):
            collect([], staging, explicit=[str(segment)])
        assert os.listdir(staging / carried.FOLDER) == []


def test_files_that_are_written_are_outputs_but_in_shared_memory():
    assert carried.is_carried("/dev/shm/x", written=True)
    assert not carried.is_carried("/tmp/x", written=True)
    assert carried.is_carried("/tmp/x", written=False)
    assert not carried.is_carried("/tmpx", written=False)
