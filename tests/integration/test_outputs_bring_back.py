"""Output files brought back: they are as at the checkpoint or are named, and nothing that was written is lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.base import linkless
from perdure.checkpoint.outputs import aside, rules
from perdure.checkpoint.outputs.bring_back import bring_back
from perdure.model.checkpoint import Holder, OutputFile
from perdure.model.finding import Finding, Severity

APPEND = os.O_WRONLY | os.O_APPEND
EPOCH = 7


def recorded(path: Path, *, flags: int = APPEND, contents: Path | None = None, name: str = "0", **changes) -> OutputFile:
    """What `record` says of the file as it is now, its content copied to `contents` when that is given."""
    content, there = path.read_bytes(), path.stat()
    if contents is not None:
        (contents / "outputs").mkdir(parents=True, exist_ok=True)
        (contents / "outputs" / name).write_bytes(content)
    output = OutputFile(
        path=str(path),
        size_bytes=len(content),
        device=there.st_dev,
        inode=there.st_ino,
        mtime_ns=there.st_mtime_ns,
        mode=there.st_mode & 0o7777,
        uid=there.st_uid,
        gid=there.st_gid,
        holders=(Holder(pid=1, fd=3, offset=len(content), flags=flags),),
        stored_as=f"outputs/{name}" if contents is not None else None,
        head_digest=rules.digest(content[rules.tail_begin(len(content)) :]) if contents is None else None,
    )
    return msgspec.structs.replace(output, **changes)


def codes(findings: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(each.code, each.severity.value) for each in findings]


def tails(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if ".perdure-" in path.name and path.is_file()}


def test_an_unchanged_file_is_not_touched(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    output = recorded(path)
    before = path.stat()
    assert bring_back([output], epoch=EPOCH, contents=None) == ()
    assert path.stat() == before
    assert os.listdir(tmp_path) == ["log"]


@pytest.mark.parametrize("size", [0, 5, rules.TAIL_BYTES, rules.TAIL_BYTES + 1, 200_000])
def test_what_was_added_is_cut_off_and_kept(tmp_path: Path, size: int):
    path = tmp_path / "log"
    path.write_bytes(b"x" * size)
    path.chmod(0o640)
    os.utime(path, ns=(5, 1_000_000_007))
    output = recorded(path)
    with open(path, "ab") as handle:
        handle.write(b"later\n")
    path.chmod(0o600)
    found = bring_back([output], epoch=EPOCH, contents=None)
    assert codes(found) == [("restore-output-cut", "info")]
    assert "log.perdure-tail-7" in found[0].message
    assert path.read_bytes() == b"x" * size
    assert path.stat().st_mtime_ns == 1_000_000_007
    assert path.stat().st_mode & 0o7777 == 0o640
    assert tails(tmp_path) == {"log.perdure-tail-7": b"later\n"}
    assert (tmp_path / "log.perdure-tail-7").stat().st_mode & 0o7777 == 0o600
    assert bring_back([output], epoch=EPOCH, contents=None) == ()


def test_what_others_append_while_a_tail_is_kept_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "log"
    path.write_bytes(b"then\n")
    output = recorded(path)
    path.write_bytes(b"then\nlater\n")
    more = [b"of another\n", b"and more\n"]
    keep_range = aside.keep_range

    def meanwhile(*arguments):
        kept = keep_range(*arguments)
        if more:
            with open(path, "ab") as another:
                another.write(more.pop(0))
        return kept

    monkeypatch.setattr(aside, "keep_range", meanwhile)
    (found,) = bring_back([output], epoch=EPOCH, contents=None)
    assert (found.code, path.read_bytes()) == ("restore-output-cut", b"then\n")
    assert "the 26 bytes after them are in log.perdure-tail-7 and log.perdure-tail-7.1 and log.perdure-tail-7.2" in found.message
    assert b"".join(content for _, content in sorted(tails(tmp_path).items())) == b"later\nof another\nand more\n"


def test_what_is_cut_off_an_event_file_is_not_read_by_tensorboard(tmp_path: Path):
    # It takes every file that has this word in its name.
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(b"12345")
    output = recorded(path)
    with open(path, "ab") as out:
        out.write(b"later")
    (found,) = bring_back([output], epoch=EPOCH, contents=None)
    assert [name.name for name in tmp_path.iterdir() if "tfevents" in name.name] == [path.name]
    assert tails(tmp_path) == {"events.out.tf-events.1.host.perdure-tail-7": b"later"}
    assert "tf-events" in found.message


def test_a_tail_never_replaces_anything(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"1")
    output = recorded(path)
    path.write_bytes(b"12")
    (tmp_path / "log.perdure-tail-7").write_bytes(b"mine")
    (tmp_path / "log.perdure-tail-7.1").symlink_to("/etc/passwd")
    (tmp_path / "log.perdure-tail-7.2").mkdir()
    bring_back([output], epoch=EPOCH, contents=None)
    assert (tmp_path / "log.perdure-tail-7").read_bytes() == b"mine"
    assert (tmp_path / "log.perdure-tail-7.3").read_bytes() == b"2"
    assert path.read_bytes() == b"1"


def test_a_tail_belongs_to_the_files_owner(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root to give files away")
    path = tmp_path / "log"
    path.write_bytes(b"1")
    os.chown(path, 1234, 2345)
    output = recorded(path)
    path.write_bytes(b"12")
    bring_back([output], epoch=EPOCH, contents=None)
    there = (tmp_path / "log.perdure-tail-7").stat()
    assert (there.st_uid, there.st_gid) == (1234, 2345)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_a_long_name_is_cut_for_its_tail(tmp_path: Path):
    path = tmp_path / ("ü" * 127)
    path.write_bytes(b"1")
    output = recorded(path)
    path.write_bytes(b"12")
    assert codes(bring_back([output], epoch=EPOCH, contents=None)) == [("restore-output-cut", "info")]
    assert sorted(tails(tmp_path).values()) == [b"2"]


def test_a_sparse_tail_stays_sparse(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"1")
    output = recorded(path)
    with open(path, "r+b") as handle:
        handle.truncate(1 << 33)
    bring_back([output], epoch=EPOCH, contents=None)
    tail = (tmp_path / "log.perdure-tail-7").stat()
    assert tail.st_size == (1 << 33) - 1
    assert tail.st_blocks * 512 < 1 << 20


# What CRIU would refuse is a problem, what it would not see is a warning.
@pytest.mark.parametrize(
    ("change", "flags", "expected"),
    [
        ("unlink", APPEND, [("restore-output-missing", "problem")]),
        ("shorten", APPEND, [("restore-output-shorter", "warning")]),
        ("shorten", os.O_RDWR, [("restore-output-shorter", "problem")]),
        ("overwrite", APPEND, [("restore-output-overwritten", "warning")]),
        ("overwrite", os.O_RDWR, [("restore-output-overwritten", "warning")]),
        ("replace", APPEND, [("restore-output-replaced", "warning")]),
        ("replace", os.O_RDWR, [("restore-output-replaced", "warning")]),
        ("replace longer", os.O_RDWR, [("restore-output-replaced", "problem")]),
        ("folder", APPEND, [("restore-output-missing", "problem")]),
    ],
)
def test_what_is_lost_without_a_copy_is_named_and_not_touched(tmp_path: Path, change, flags, expected):
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "log"
    path.write_bytes(b"12345")
    output = recorded(path, flags=flags)
    if change == "unlink":
        path.unlink()
    elif change == "shorten":
        os.truncate(path, 3)
    elif change == "overwrite":
        path.write_bytes(b"abcde")
    elif change.startswith("replace"):
        (folder / "new").write_bytes(b"vwxyz" + b"!" * change.count("longer"))
        (folder / "new").rename(path)
    else:
        shutil.rmtree(folder)
    before = path.read_bytes() if path.exists() else None
    found = bring_back([output], epoch=EPOCH, contents=None)
    assert codes(found) == expected
    assert found[0].path == str(path)
    assert "5" in found[0].message
    assert found[0].remedy
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_copy_of_the_file_on_another_machine_is_known_by_its_end(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"12345")
    output = recorded(path, inode=path.stat().st_ino + 1)
    path.write_bytes(b"12345more")
    assert codes(bring_back([output], epoch=EPOCH, contents=None)) == [("restore-output-cut", "info")]
    assert path.read_bytes() == b"12345"


def test_an_overwritten_file_that_must_have_its_size_is_cut_and_named(tmp_path: Path):
    path = tmp_path / "array"
    path.write_bytes(b"12345")
    output = recorded(path, flags=os.O_RDWR)
    path.write_bytes(b"abcdefg")
    found = bring_back([output], epoch=EPOCH, contents=None)
    assert codes(found) == [("restore-output-overwritten", "warning"), ("restore-output-cut", "info")]
    assert path.read_bytes() == b"abcde"
    assert tails(tmp_path) == {"array.perdure-tail-7": b"fg"}


@pytest.mark.parametrize("magic", [b"SQLite format 3\0", b"\x89HDF\r\n\x1a\n"])
def test_a_database_that_grew_is_not_cut(tmp_path: Path, magic: bytes):
    """Its tables are in front, and speak of the end: neither what it was nor what it is would be left."""
    path = tmp_path / "study.db"
    path.write_bytes(magic + b"one table" + b"x" * rules.TAIL_BYTES)
    output = recorded(path, flags=os.O_RDWR)
    later = magic + b"two table" + b"x" * rules.TAIL_BYTES + b"more"
    path.write_bytes(later)
    found = bring_back([output], epoch=EPOCH, contents=None)
    assert codes(found) == [("restore-output-overwritten", "problem")]
    assert "--outputs" in (found[0].remedy or "")
    assert path.read_bytes() == later


@pytest.mark.parametrize(("flags", "mapped"), [(os.O_RDWR, False), (os.O_WRONLY, True)])
def test_what_may_have_been_overwritten_before_its_end_is_named(tmp_path: Path, flags: int, mapped: bool):
    path = tmp_path / "array"
    path.write_bytes(b"a" * 10 + b"x" * rules.TAIL_BYTES)
    output = recorded(path, flags=flags, mapped=mapped)
    path.write_bytes(b"b" * 10 + b"x" * rules.TAIL_BYTES)
    os.utime(path, ns=(5, output.mtime_ns + 1))
    found = bring_back([output], epoch=EPOCH, contents=None)
    assert codes(found) == [("restore-output-overwritten", "warning")]
    # A log that is only written goes forward.
    log = msgspec.structs.replace(output, mapped=False, holders=recorded(path, flags=os.O_WRONLY).holders)
    os.utime(path, ns=(5, output.mtime_ns + 1))
    assert bring_back([log], epoch=EPOCH, contents=None) == ()


@pytest.mark.parametrize(
    "change", ["nothing", "append", "overwrite", "shorten", "replace", "unlink", "folder", "symlink", "fifo", "directory"]
)
def test_with_a_copy_the_file_is_what_it_was_in_every_case(tmp_path: Path, change: str):
    contents, folder = tmp_path / "contents", tmp_path / "data"
    folder.mkdir()
    path = folder / "table"
    path.write_bytes(b"12345")
    path.chmod(0o640)
    os.utime(path, ns=(5, 1_000_000_007))
    output = recorded(path, flags=os.O_RDWR, contents=contents)
    written = {"append": b"12345xy", "overwrite": b"1234!", "shorten": b"12", "replace": b"other"}
    if change in written:
        if change == "replace":
            path.unlink()
        path.write_bytes(written[change])
    elif change != "nothing":
        path.unlink()
        if change == "folder":
            folder.rmdir()
        elif change == "symlink":
            (tmp_path / "target").write_bytes(b"target")
            path.symlink_to(tmp_path / "target")
        elif change == "fifo":
            os.mkfifo(path)
        elif change == "directory":
            path.mkdir()
            (path / "inside").write_bytes(b"kept")
    for _ in range(2):
        found = bring_back([output], epoch=EPOCH, contents=contents)
        assert all(each.severity is Severity.INFO for each in found)
        there = path.lstat()
        assert path.read_bytes() == b"12345"
        assert (there.st_mode & 0o170000, there.st_mode & 0o7777, there.st_mtime_ns) == (0o100000, 0o640, 1_000_000_007)
    assert found == ()
    kept = {"append": b"xy", "overwrite": b"1234!", "shorten": b"12", "replace": b"other"}
    if change in kept:
        assert tails(folder) == {"table.perdure-tail-7": kept[change]}
    if change == "symlink":
        assert os.readlink(folder / "table.perdure-tail-7") == str(tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == b"target"
    if change == "directory":
        assert (folder / "table.perdure-tail-7/inside").read_bytes() == b"kept"


@pytest.mark.parametrize("later", [b"", b"1", b"54321", b"overwritten", b"1234"])
def test_a_file_that_is_still_there_stays_the_very_same(tmp_path: Path, later: bytes):
    # SQLite, for one, remembers the inode and refuses to write to another (SQLITE_READONLY_DBMOVED).
    contents = tmp_path / "contents"
    path = tmp_path / "base.db"
    path.write_bytes(b"12345")
    output = recorded(path, flags=os.O_RDWR, contents=contents)
    path.write_bytes(later)
    bring_back([output], epoch=EPOCH, contents=contents)
    assert path.read_bytes() == b"12345"
    assert path.stat().st_ino == output.inode
    assert tails(tmp_path) == {"base.db.perdure-tail-7": later}


def test_a_database_that_had_to_become_another_file_is_warned_of(tmp_path: Path):
    contents = tmp_path / "contents"
    path = tmp_path / "base.db"
    path.write_bytes(rules.SQLITE_MAGIC + b"pages")
    output = recorded(path, flags=os.O_RDWR, contents=contents)
    path.unlink()
    found = bring_back([output], epoch=EPOCH, contents=contents)
    assert codes(found) == [("restore-output-put-back", "info"), ("restore-output-new-file", "warning")]


def test_a_journal_of_a_later_time_is_set_aside(tmp_path: Path):
    contents = tmp_path / "contents"
    path = tmp_path / "base.db"
    path.write_bytes(b"database")
    output = recorded(path, flags=os.O_RDWR, contents=contents, without=(f"{path}-journal", f"{path}-wal"))
    (tmp_path / "base.db-journal").write_bytes(b"later")
    found = bring_back([output], epoch=EPOCH, contents=contents)
    assert codes(found) == [("restore-output-aside", "info")]
    assert not (tmp_path / "base.db-journal").exists()
    assert tails(tmp_path) == {"base.db-journal.perdure-tail-7": b"later"}
    assert bring_back([output], epoch=EPOCH, contents=contents) == ()


def test_a_copy_that_is_not_whole_is_not_used(tmp_path: Path):
    contents = tmp_path / "contents"
    path = tmp_path / "table"
    path.write_bytes(b"12345")
    output = recorded(path, flags=os.O_RDWR, contents=contents)
    (contents / "outputs/0").write_bytes(b"123")
    path.write_bytes(b"later")
    assert codes(bring_back([output], epoch=EPOCH, contents=contents)) == [("restore-output-failed", "problem")]
    assert path.read_bytes() == b"later"
    (contents / "outputs/0").unlink()
    assert codes(bring_back([output], epoch=EPOCH, contents=contents)) == [("restore-output-failed", "problem")]


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "outputs/../../secret"])
def test_a_copy_is_only_looked_for_in_the_checkpoint(tmp_path: Path, name: str):
    contents = tmp_path / "contents"
    contents.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    path = tmp_path / "table"
    path.write_bytes(b"secret")
    output = recorded(path, stored_as=name)
    path.write_bytes(b"later!")
    assert codes(bring_back([output], epoch=EPOCH, contents=contents)) == [("restore-output-failed", "problem")]
    assert path.read_bytes() == b"later!"


class TestTraps:
    """The folder belongs to the workload's user, who has prepared it for us; we are root."""

    @pytest.fixture
    def victim(self, tmp_path: Path) -> Path:
        folder = tmp_path / "system"
        folder.mkdir()
        (folder / "shadow").write_bytes(b"root:secret\nmore\n")
        return folder / "shadow"

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_link_in_place_of_the_file(self, tmp_path: Path, victim: Path, stored: bool):
        path = tmp_path / "log"
        path.write_bytes(b"root:")
        output = recorded(path, contents=tmp_path / "contents" if stored else None)
        path.unlink()
        path.symlink_to(victim)
        found = bring_back([output], epoch=EPOCH, contents=tmp_path / "contents")
        assert victim.read_bytes() == b"root:secret\nmore\n"
        if stored:
            assert path.read_bytes() == b"root:"
            assert not path.is_symlink()
        else:
            assert codes(found) == [("restore-output-link", "problem")]

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_link_in_place_of_a_folder(self, tmp_path: Path, victim: Path, stored: bool):
        (tmp_path / "data").mkdir()
        path = tmp_path / "data/shadow"
        path.write_bytes(b"root:")
        output = recorded(path, contents=tmp_path / "contents" if stored else None)
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "data").symlink_to(victim.parent)
        found = bring_back([output], epoch=EPOCH, contents=tmp_path / "contents")
        assert codes(found) == [("restore-output-link", "problem")]
        assert victim.read_bytes() == b"root:secret\nmore\n"
        assert os.listdir(victim.parent) == ["shadow"]

    @pytest.mark.parametrize("stored", [False, True])
    def test_a_hard_link_to_somebody_elses_file(self, tmp_path: Path, victim: Path, stored: bool):
        if os.geteuid() != 0:
            pytest.skip("needs root to give files away")
        path = tmp_path / "log"
        path.write_bytes(b"root:")
        os.chown(path, 1234, 1234)
        output = recorded(path, contents=tmp_path / "contents" if stored else None)
        path.unlink()
        os.link(victim, path)
        found = bring_back([output], epoch=EPOCH, contents=tmp_path / "contents")
        assert victim.read_bytes() == b"root:secret\nmore\n"
        assert victim.stat().st_uid == 0
        if stored:
            assert path.read_bytes() == b"root:"
            assert path.stat().st_uid == 1234
        else:
            # CRIU would open it for the workload: that must stop the restore.
            assert codes(found) == [("restore-output-replaced", "problem")]

    def test_a_hard_link_to_another_file_of_the_same_user(self, tmp_path: Path, victim: Path):
        path = tmp_path / "log"
        path.write_bytes(b"root:")
        output = recorded(path, flags=os.O_RDWR)
        path.unlink()
        os.link(victim, path)
        assert codes(bring_back([output], epoch=EPOCH, contents=None)) == [("restore-output-replaced", "problem")]
        assert victim.read_bytes() == b"root:secret\nmore\n"

    @pytest.mark.parametrize("kind", ["fifo", "socket", "directory", "device"])
    def test_no_file_at_all(self, tmp_path: Path, kind: str):
        path = tmp_path / "log"
        path.write_bytes(b"root:")
        output = recorded(path)
        path.unlink()
        with contextlib.ExitStack() as stack:
            if kind == "fifo":
                os.mkfifo(path)
            elif kind == "directory":
                path.mkdir()
            elif kind == "device":
                if os.geteuid() != 0:
                    pytest.skip("needs root to make a device")
                os.mknod(path, 0o020600, os.makedev(1, 5))
            else:
                server = stack.enter_context(socket.socket(socket.AF_UNIX))
                with contextlib.chdir(tmp_path):
                    server.bind("log")
            assert codes(bring_back([output], epoch=EPOCH, contents=None)) == [("restore-output-link", "problem")]

    def test_a_folder_that_is_exchanged_on_the_way(self, tmp_path: Path, victim: Path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data/shadow").write_bytes(b"mine")
        with linkless.parent(str(tmp_path / "data/shadow")) as (folder, name):
            (tmp_path / "data").rename(tmp_path / "away")
            (tmp_path / "data").symlink_to(victim.parent)
            source = linkless.open_regular(folder, name)
            try:
                assert os.read(source, 9) == b"mine"
                aside.keep_range(folder, name, source, 0, EPOCH)
            finally:
                os.close(source)
        assert os.listdir(victim.parent) == ["shadow"]
        assert (tmp_path / "away/shadow.perdure-tail-7").read_bytes() == b"mine"

    @pytest.mark.parametrize("path", ["relative", "/tmp/../etc/passwd", "/", "/tmp/", "", "/tmp/.."])
    def test_a_path_that_is_none(self, path: str, tmp_path: Path):
        (tmp_path / "x").write_bytes(b"")
        output = msgspec.structs.replace(recorded(tmp_path / "x"), path=path)
        assert codes(bring_back([output], epoch=EPOCH, contents=None)) == [("restore-output-link", "problem")]


# What a workload and its user may do to a file after the checkpoint. Bytes written are all different, so that each can be looked for.
steps = st.lists(
    st.tuples(st.sampled_from(["append", "overwrite", "truncate", "replace", "unlink", "copytruncate"]), st.integers(0, 30)), max_size=6
)


@settings(max_examples=150, deadline=None)
@given(start=st.integers(0, 40), changes=steps, flags=st.sampled_from([APPEND, os.O_RDWR]), stored=st.booleans())
def test_nothing_is_lost_and_nothing_is_wrong_in_silence(start, changes, flags, stored):
    with tempfile.TemporaryDirectory() as name:
        folder, contents = Path(name, "data"), Path(name, "contents")
        folder.mkdir()
        path = folder / "file"
        marks = iter(range(1 << 20))

        def fresh(count: int) -> bytes:
            return b"".join(b"%06d;" % next(marks) for _ in range(count))

        path.write_bytes(before := fresh(start))
        output = recorded(path, flags=flags, contents=contents if stored else None)
        for step, size in changes:
            if step == "append":
                with open(path, "ab") as handle:
                    handle.write(fresh(size))
            elif step == "unlink":
                path.unlink(missing_ok=True)
            elif step == "replace":
                (folder / "new").write_bytes(fresh(size))
                (folder / "new").rename(path)
            elif path.exists() and step == "overwrite":
                with open(path, "r+b") as handle:
                    handle.seek(min(size, start) * 7)
                    handle.write(fresh(3))
            elif path.exists():
                os.truncate(path, 0 if step == "copytruncate" else min(size * 7, path.stat().st_size))
        after = path.read_bytes() if path.exists() else b""
        findings = bring_back([output], epoch=EPOCH, contents=contents if stored else None)
        now = path.read_bytes() if path.exists() else None
        said = {each.code for each in findings if each.severity is not Severity.INFO}
        assert now == before or said, (now, before)
        assert not (stored and said)
        kept = b"".join(tails(folder).values()) + (now or b"")
        for at in range(0, len(after) - 6, 7):
            assert after[at : at + 7] in kept
        again = bring_back([output], epoch=EPOCH, contents=contents if stored else None)
        assert {each.code for each in again if each.severity is not Severity.INFO} == said
        assert (path.read_bytes() if path.exists() else None) == now
        assert b"".join(tails(folder).values()) + (now or b"") == kept


def written(path: Path, flags: int = os.O_WRONLY) -> OutputFile:
    """What is recorded of a file that a program is in the middle of, which then goes on and gives it another name."""
    path.write_bytes(b"begun" * 20_000)
    path.chmod(0o640)
    output = recorded(path, flags=flags)
    with open(path, "ab") as handle:
        handle.write(b"ended")
    path.rename(path.with_suffix(".pt"))
    return output


@pytest.mark.parametrize("again", [None, b"next", b"nexts" * 30_000])
@pytest.mark.parametrize("flags", [os.O_WRONLY, APPEND])
def test_a_renamed_file_is_under_its_name_of_then_again_and_keeps_its_new_one(tmp_path: Path, flags: int, again: bytes | None):
    path = tmp_path / "model.tmp"
    output = written(path, flags)
    if again is not None:
        path.write_bytes(again)
    finished = (tmp_path / "model.pt").stat()
    found = bring_back([output], epoch=EPOCH, contents=None)
    assert codes(found)[-1] == ("restore-output-put-back", "info")
    assert "model.pt" in found[-1].message
    assert path.read_bytes() == b"begun" * 20_000
    there = path.stat()
    assert (there.st_mode & 0o7777, there.st_mtime_ns, there.st_ino != finished.st_ino) == (0o640, output.mtime_ns, True)
    assert (tmp_path / "model.pt").read_bytes() == b"begun" * 20_000 + b"ended"
    assert (tmp_path / "model.pt").stat().st_mtime_ns == finished.st_mtime_ns
    assert tails(tmp_path) == ({} if again is None else {"model.tmp.perdure-tail-7": again})
    assert bring_back([output], epoch=EPOCH, contents=None) == ()


@pytest.mark.parametrize(
    "change", ["read-write", "mapped", "in the middle", "overwritten", "shorter", "older", "reused", "owner", "elsewhere"]
)
def test_a_renamed_file_that_need_not_begin_as_then_is_not_taken(tmp_path: Path, change: str):
    path, finished = tmp_path / "model.tmp", tmp_path / "model.pt"
    output = written(path, os.O_RDWR if change == "read-write" else os.O_WRONLY)
    if change == "mapped":
        output = msgspec.structs.replace(output, mapped=True)
    elif change == "in the middle":
        output = msgspec.structs.replace(output, holders=(Holder(pid=1, fd=3, offset=5, flags=os.O_WRONLY),))
    elif change == "overwritten":
        finished.write_bytes(b"other" * 20_001)
    elif change == "shorter":
        os.truncate(finished, 5)
    elif change == "older":
        os.utime(finished, ns=(5, output.mtime_ns - 1))
    elif change == "reused":
        output = msgspec.structs.replace(output, inode=output.inode + 1)
    elif change == "owner":
        output = msgspec.structs.replace(output, uid=output.uid + 1)
    else:
        (tmp_path / "done").mkdir()
        finished.rename(tmp_path / "done/model.pt")
    before = sorted(os.listdir(tmp_path))
    assert codes(bring_back([output], epoch=EPOCH, contents=None)) == [("restore-output-missing", "problem")]
    assert sorted(os.listdir(tmp_path)) == before


def test_what_makes_a_checkpoint_useless_for_good():
    def found(code: str, severity: Severity = Severity.PROBLEM) -> Finding:
        return rules.finding(code, severity, "/data/file", "is not what it was")

    missing, taken = found("restore-output-missing"), found("restore-port-taken")
    assert rules.are_lasting((missing, found("restore-connection", Severity.WARNING)))
    assert not rules.are_lasting(())
    assert not rules.are_lasting((found("restore-output-missing", Severity.WARNING),))
    # The port will be free, and the file there once its file system is.
    assert not rules.are_lasting((missing, taken))
    assert not rules.are_lasting((missing, found("restore-mount", Severity.WARNING)))
    assert not rules.are_lasting((found("restore-output-failed"),))
    assert not rules.are_lasting((found("restore-folder-missing"),))
