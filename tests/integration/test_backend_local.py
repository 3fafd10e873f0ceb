"""The directory store on real file systems: killed writers, full and read-only disks, file systems without links, planted links, umasks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import syscalls
from stores import spoil

from perdure import errors
from perdure.store import layout
from perdure.store.backends import leftovers
from perdure.store.backends.local import LocalBackend

TESTS = Path(__file__).resolve().parents[1]
_PATH = f"{TESTS.parent / 'src'}:{TESTS}"
UNSHARE = ["unshare", "--mount", "--propagation=private"]


def _run(script: str, *arguments: object, before: tuple[str, ...] = (), **options) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": _PATH, "PYTHONWARNINGS": "error"}
    command = [*before, sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, **options)
    assert done.returncode == 0, done.stderr
    return done


def _temporaries(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("+*") if path.name != "+lock")


# The interpreter may lie where no other user may go, so a child turns into another user once it has imported all it needs.
_BECOME = """
def become(uid):
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
"""

_RACE = """
import os, sys, threading, syscalls
from pathlib import Path
from perdure import errors
from perdure.store.backends.local import LocalBackend

store, refused = sys.argv[1], sys.argv[2:]
LocalBackend(store).create()
syscalls.refuse(*refused)
gate_read, gate_write = os.pipe()
children = []
for child in range(6):
    pid = os.fork()
    if pid == 0:
        os.close(gate_write)
        os.read(gate_read, 1)  # ends when the parent opens the gate
        backend, won = LocalBackend(store), []
        for number in range(25):
            try:
                backend.put_if_absent(f"race/{number}", b"%d" % child * 3000)
            except errors.ObjectExists:
                continue
            won.append(number)
        Path(store, f"+won-{child}").write_text(" ".join(map(str, won)))
        os._exit(0)
    children.append(pid)
os.close(gate_write)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
winners = {}
for child in range(6):
    for number in Path(store, f"+won-{child}").read_text().split():
        assert number not in winners, f"two processes wrote {number}"
        winners[number] = child
assert len(winners) == 25, winners
for number, child in winners.items():
    assert LocalBackend(store).get(f"race/{number}") == b"%d" % child * 3000
print(len(set(winners.values())), "processes won")
"""


@pytest.mark.parametrize("refused", [(), ("renameat2",), ("renameat2", "linkat")], ids=["rename", "link", "lock"])
def test_of_many_processes_one_writes_whatever_the_file_system_can_do(tmp_path, refused):
    if refused and not syscalls.SUPPORTED:
        pytest.skip("system calls are refused by number here, for x86-64 only")
    _run(_RACE, tmp_path / "store", *refused)
    assert not [path for path in _temporaries(tmp_path / "store") if path.suffix == ".tmp"]


@pytest.mark.skipif(not syscalls.SUPPORTED, reason="system calls are refused by number here, for x86-64 only")
def test_where_only_locks_are_left_a_writer_looks_while_it_holds_one(tmp_path):
    script = """
import sys, syscalls
from perdure import errors
from perdure.store.backends.local import LocalBackend
syscalls.refuse("renameat2", "linkat")
try:
    LocalBackend(sys.argv[1]).put_if_absent("a/b", b"late")
except errors.ObjectExists:
    print("exists")
"""
    store = tmp_path / "store"
    LocalBackend(store).create()
    LocalBackend(store).put("a/other", b"")
    lock = os.open(store / "a" / "+lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = [sys.executable, "-c", script, str(store)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"], "PYTHONPATH": _PATH})
    try:
        until_s = time.monotonic() + 120
        while not any(f"-> FLOCK  ADVISORY  WRITE {writer.pid} " in line for line in Path("/proc/locks").read_text().splitlines()):
            assert writer.poll() is None, "it did not wait for the lock"
            assert time.monotonic() < until_s
            time.sleep(0.01)
        LocalBackend(store).put("a/b", b"first")
        os.close(lock)
        assert writer.communicate(timeout=120)[0] == "exists\n"
    finally:
        writer.kill()
        writer.wait()
    assert LocalBackend(store).get("a/b") == b"first"


@pytest.mark.skipif(not syscalls.SUPPORTED, reason="system calls are refused by number here, for x86-64 only")
def test_a_file_system_without_any_way_is_refused(tmp_path):
    script = """
import sys, syscalls
from perdure import errors
from perdure.store.backends.local import LocalBackend
backend = LocalBackend(sys.argv[1])
backend.create()
syscalls.refuse("renameat2", "linkat", "flock")
backend.put("a", b"replacing works everywhere")
try:
    backend.put_if_absent("b", b"x")
except errors.StoreError as error:
    print(error, error.hint, error.retryable)
print([info.key for info in backend.list("")])
"""
    said = _run(script, tmp_path / "store").stdout
    assert "two writers could overwrite each other" in said
    assert "--store s3://" in said
    assert said.endswith("False\n['a']\n")
    assert _temporaries(tmp_path / "store") == []


@pytest.mark.skipif(not syscalls.SUPPORTED, reason="system calls are refused by number here, for x86-64 only")
def test_a_link_whose_answer_was_lost_is_ours(tmp_path):
    """An NFS client that asks again is told "exists" of the link that its first request made."""
    script = """
import os, sys, syscalls
from perdure.store.backends import exclusive
folder = os.open(sys.argv[1], os.O_RDONLY)
for name in ("mine.tmp", "other.tmp", "other"):
    open(os.path.join(sys.argv[1], name), "w").close()
os.link("mine.tmp", "mine", src_dir_fd=folder, dst_dir_fd=folder)
syscalls.refuse("renameat2")
exclusive.rename_if_absent(folder, "mine.tmp", "mine")
try:
    exclusive.rename_if_absent(folder, "other.tmp", "other")
except FileExistsError:
    print(*sorted(os.listdir(folder)))
"""
    assert _run(script, tmp_path).stdout == "mine other other.tmp\n"


_KILLED = """
import hashlib, os, random, select, signal, sys, time
from perdure import errors
from perdure.store.backends.local import LocalBackend

store, instants = sys.argv[1], 100
LocalBackend(store).create()
chance = random.Random(11)

def content(number):
    body = random.Random(number).randbytes(1 + number * 7919 % 300_000)
    return hashlib.sha256(body).digest() + body

def write(told):
    backend, number = LocalBackend(store), 0
    while True:
        number += 1
        backend.put(f"same/{number % 3}", content(os.getpid() + number))
        name = f"new/{os.getpid()}/{number}"
        backend.put_if_absent(name, content(number))
        os.write(told, b"%d\\n" % number)
        if number % 4 == 0:
            backend.delete(name)

finished = 0
for instant in range(instants):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        write(writer)
    os.close(writer)
    began_s = time.monotonic()
    os.read(reader, 1)  # it is in its loop
    longest_s = max(0.04, min(4 * (time.monotonic() - began_s), 1.0))  # a few writes' time, however slow the disk is
    time.sleep(chance.random() * longest_s)  # the instant is what is tried, nothing is waited for
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told = b""
    while piece := os.read(reader, 65536):
        told += piece
    os.close(reader)
    backend = LocalBackend(store)
    keys = {info.key for info in backend.list("")}
    for key in keys:
        got = backend.get(key)
        assert hashlib.sha256(got[32:]).digest() == got[:32], key
    # All that was said to be written, and not deleted after, is there.
    last = int((b"1" + told).split()[-1]) if told.split() else 1
    for number in range(1, last):
        assert number % 4 == 0 or f"new/{pid}/{number}" in keys, (pid, number)
    finished += last
    for key in keys:
        if key.startswith("new/"):
            backend.delete(key)
print(finished)
"""


def test_a_writer_killed_at_any_instant_leaves_no_half_object(tmp_path):
    store = tmp_path / "store"
    done = _run(_KILLED, store)
    assert int(done.stdout) > 100, "the writers did not get to write"
    left = _temporaries(store)
    assert left, "no writer was killed in the middle of a write: the trial tells nothing"
    backend = LocalBackend(store)
    backend.create()
    assert _temporaries(store) == left, "a young file may belong to a writer elsewhere"
    for path in left:
        os.utime(path, (time.time() - 2 * leftovers.QUIET_S,) * 2)
    backend.create()
    assert _temporaries(store) == []
    assert [info.key for info in backend.list("")] == ["same/0", "same/1", "same/2"]


def test_what_a_living_writer_has_open_is_not_swept(tmp_path):
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    backend.put("a/b", b"x")
    folder = tmp_path / "store" / "a"
    names = [leftovers.temporary_name(f"{number:016x}") for number in range(3)]
    for name in names:
        (folder / name).touch()
    held = os.open(folder / names[0], os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    (folder / "+lock").touch()
    (folder / "+0.tmp").touch()
    for path in folder.glob("+*"):
        if path.name != names[2]:
            os.utime(path, (0, 0))
    backend.create()
    assert {path.name for path in folder.iterdir()} == {"b", names[0], names[2], "+lock", "+0.tmp"}
    os.close(held)
    backend.create()
    assert {path.name for path in folder.iterdir()} == {"b", names[2], "+lock", "+0.tmp"}


_FULL = """
import os, sys
from perdure import errors
from perdure.store.backends.local import LocalBackend
store = sys.argv[1]
backend = LocalBackend(store)
backend.create()
block, number = os.urandom(100_000), 0
try:
    while True:
        backend.put_if_absent(f"p/{number}", block)
        number += 1
except errors.StoreFull as error:
    assert error.retryable
    print(error)
    print(error.hint)
for call in (backend.put, backend.put_if_absent):
    for key in ("x", "new/folder/x"):
        try:
            call(key, block)
            raise SystemExit("there was room")
        except errors.StoreFull:
            pass
try:
    backend.put("p/0", block + block)
    raise SystemExit("there was room")
except errors.StoreFull:
    pass
assert number > 5
assert [info.key for info in backend.list("")] == sorted(f"p/{n}" for n in range(number)), list(backend.list(""))
assert all(backend.get(f"p/{n}") == block for n in range(number))
assert not [name for _, _, names in os.walk(store) for name in names if name.startswith("+")]
for n in range(3):
    backend.delete(f"p/{n}")
backend.put_if_absent("p/0", block)
print("room again")
"""

_READ_ONLY = """
import os, subprocess, sys
from perdure import errors
from perdure.store.backends.local import LocalBackend
store = sys.argv[1]
backend = LocalBackend(store)
backend.create()
backend.put("a/b", b"kept")
subprocess.run(["mount", "-o", "remount,ro", os.path.dirname(store)], check=True)
for call in (lambda: backend.put("a/b", b"y"), lambda: backend.put_if_absent("c/d", b"y"), lambda: backend.delete("a/b")):
    try:
        call()
        raise SystemExit("it was written")
    except errors.StoreError as error:
        assert not error.retryable
        print(error, "|", error.hint)
assert backend.exists()
assert backend.get("a/b") == b"kept"
assert [info.key for info in backend.list("")] == ["a/b"]
"""


def _mounted(tmp_path: Path, size: str, script: str) -> str:
    if os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root and mount namespaces")
    mount = 'mount -t tmpfs -o size="$1" tmpfs "$0" && shift && exec "$@"'
    return _run(script, tmp_path / "store", before=(*UNSHARE, "sh", "-c", mount, str(tmp_path), size)).stdout


def test_a_full_disk_is_said_and_leaves_nothing_half_written(tmp_path):
    said = _mounted(tmp_path, "1m", _FULL).splitlines()
    assert "No space left on device" in said[0]
    assert "store gc" in said[1]
    assert said[2] == "room again"


def test_a_read_only_disk_can_be_read(tmp_path):
    said = _mounted(tmp_path, "1m", _READ_ONLY).splitlines()
    assert len(said) == 3
    assert all("Read-only file system" in line and "mount it writable" in line for line in said)


def test_links_in_the_store_lead_nowhere(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store = tmp_path / "store"
    backend = LocalBackend(store)
    backend.create()
    backend.put("good/a", b"good")
    (store / "folder").symlink_to(outside)
    (store / "good" / "file").symlink_to(outside / "secret")
    (store / "good" / "nowhere").symlink_to(tmp_path / "made-by-us")
    os.mkfifo(store / "good" / "fifo")
    for key in ("folder/secret", "folder/new", "good/file", "good/nowhere", "good/fifo"):
        for call in (backend.get, lambda key: backend.put_if_absent(key, b"evil"), backend.size):
            with pytest.raises(errors.StoreError) as caught:
                call(key)
            assert not isinstance(caught.value, errors.ObjectMissing | errors.ObjectExists | errors.StoreUnavailable), key
    for call in (lambda: backend.put("folder/new", b"evil"), lambda: backend.delete("folder/secret")):
        with pytest.raises(errors.StoreError):
            call()
    for prefix in ("", "good/", "folder/"):
        with pytest.raises(errors.StoreError, match="special file"):
            list(backend.list(prefix))
    # A name is replaced or removed itself, never what it points to.
    backend.put("good/file", b"ours")
    backend.delete("good/nowhere")
    backend.delete("good/fifo")
    assert backend.get("good/file") == b"ours"
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    assert not (tmp_path / "made-by-us").exists()
    assert [info.key for info in backend.list("good/")] == ["good/a", "good/file"]


def test_a_sweep_does_not_follow_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    old = outside / leftovers.temporary_name("0" * 16)
    old.touch()
    os.utime(old, (0, 0))
    store = tmp_path / "store"
    LocalBackend(store).create()
    (store / "folder").symlink_to(outside)
    (store / leftovers.temporary_name("1" * 16)).symlink_to(old)
    LocalBackend(store).create()
    assert old.exists()


def test_the_users_own_path_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    backend.put("a", b"x")
    assert (tmp_path / "disk" / "a").read_bytes() == b"x"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
@pytest.mark.parametrize("uid", [0, 65534])
def test_modes_do_not_depend_on_the_umask(umask, uid):
    if os.geteuid() != 0:
        pytest.skip("running as two users needs root")
    script = f"""
import os, sys
from perdure.store.backends.local import LocalBackend
{_BECOME}
become(int(sys.argv[3]))
os.umask(int(sys.argv[2]))
backend = LocalBackend(sys.argv[1])
backend.create()
backend.put("a/b/c", b"x")
backend.put_if_absent("a/d", b"x")
assert backend.get("a/b/c") == b"x"
"""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folder may not be entered by others
    try:
        folder.chmod(0o777)
        _run(script, folder / "deep" / "store", umask, uid)
        found = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
        assert len(found) == 6
        assert {mode for path, mode in found.items() if (folder / path).is_dir()} == {0o700}
        assert {mode for path, mode in found.items() if (folder / path).is_file()} == {0o600}
    finally:
        shutil.rmtree(folder)


def test_somebody_who_may_not_is_told_so():
    if os.geteuid() != 0:
        pytest.skip("running as two users needs root")
    script = f"""
import os, sys
from perdure import errors
from perdure.store.backends.local import LocalBackend
{_BECOME}
become(65534)
backend = LocalBackend(sys.argv[1])
for call in (backend.exists, backend.create, lambda: backend.put("a", b""), lambda: backend.get("a"), lambda: list(backend.list(""))):
    try:
        call()
    except errors.StoreError as error:
        print(error.code, error.retryable, error, error.hint)
"""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        LocalBackend(folder / "store").create()
        said = _run(script, folder / "store").stdout.splitlines()
        assert len(said) == 5
        assert all(line.startswith("store False") and "Permission denied" in line and "run as the store's owner" in line for line in said)
    finally:
        shutil.rmtree(folder)


def test_a_store_that_is_removed_and_made_again(tmp_path):
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    backend.put("a/b", b"old")
    shutil.rmtree(tmp_path / "store")
    for call in (lambda: backend.put("a/b", b"x"), lambda: backend.get("a/b"), lambda: list(backend.list(""))):
        with pytest.raises(errors.StoreMissing):
            call()
    assert not backend.exists()
    backend.create()
    assert [info.key for info in backend.list("")] == []
    backend.put("a/b", b"new")
    assert (tmp_path / "store" / "a" / "b").read_bytes() == b"new"


def test_a_file_where_the_store_should_be(tmp_path):
    (tmp_path / "store").write_text("mine")
    for call in (LocalBackend(tmp_path / "store").create, LocalBackend(tmp_path / "store").exists):
        with pytest.raises(errors.StoreError, match="Not a directory") as caught:
            call()
        assert not caught.value.retryable
    assert (tmp_path / "store").read_text() == "mine"


def test_names_that_cannot_be_ours_are_passed_over(tmp_path):
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    backend.put("a/b", b"")
    (tmp_path / "store" / "lost+found").mkdir()
    (tmp_path / "store" / "a" / f".nfs{7:024x}").touch()
    (tmp_path / "store" / "a" / "+0123456789abcdef.tmp").touch()
    assert [info.key for info in backend.list("")] == ["a/b"]


def test_what_the_file_system_keeps_for_itself_is_not_swept(tmp_path):
    own = tmp_path / "store" / "lost+found"
    own.mkdir(parents=True)
    found = own / leftovers.temporary_name("0" * 16)
    found.touch()
    os.utime(found, (0, 0))
    LocalBackend(tmp_path / "store").create()
    assert found.exists()


def test_a_store_at_the_root_of_a_file_system_may_be_an_ordinary_users():
    if os.geteuid() != 0:
        pytest.skip("running as two users needs root")
    script = f"""
import os, sys
from perdure.store.backends.local import LocalBackend
{_BECOME}
become(65534)
LocalBackend(sys.argv[1]).create()
"""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        (folder / "store" / "lost+found").mkdir(0o700, parents=True)
        os.chown(folder / "store", 65534, 65534)
        _run(script, folder / "store")
    finally:
        shutil.rmtree(folder)


def test_an_object_larger_than_any_of_ours_is_not_read(tmp_path):
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    with open(tmp_path / "store" / "huge", "wb") as handle:
        handle.truncate(1 << 40)
    with pytest.raises(errors.StoreCorrupt) as caught:
        backend.get("huge")
    assert caught.value.object_key == "huge"
    assert backend.get("huge", start=1 << 39, length=3) == b"\0\0\0"


@pytest.fixture
def backend(tmp_path) -> LocalBackend:
    """A store in a directory, with an object of its own and the one that every store has."""
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    backend.put(layout.CONFIG, b"{}")
    backend.put("a/b", b"content")
    return backend


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EILSEQ])
def test_one_object_that_the_disk_cannot_read_is_told_from_a_disk_that_is_gone(backend, tmp_path, monkeypatch, number):
    spoil(monkeypatch, tmp_path / "store" / "a" / "b", number)
    with pytest.raises(errors.ObjectUnreadable, match=os.strerror(number)) as caught:
        backend.get("a/b")
    assert caught.value.object_key == "a/b"
    assert not caught.value.retryable
    spoil(monkeypatch, tmp_path / "store" / layout.CONFIG, number)
    for key in ("a/b", layout.CONFIG):
        with pytest.raises(errors.StoreUnavailable):
            backend.get(key)


def test_what_the_disk_reads_at_the_second_time_is_read(backend, tmp_path, monkeypatch):
    spoil(monkeypatch, tmp_path / "store" / "a" / "b", errno.EIO, times=1)
    assert backend.get("a/b") == b"content"


def test_what_another_machine_replaces_or_removes_while_it_is_read_is_opened_anew(backend, tmp_path, monkeypatch):
    path, elsewhere = tmp_path / "store" / "a" / "b", LocalBackend(tmp_path / "store")
    spoil(monkeypatch, path, errno.ESTALE, times=1, failing=lambda: elsewhere.put("a/b", b"newer"))
    assert backend.get("a/b") == b"newer"
    spoil(monkeypatch, path, errno.ESTALE, times=1, failing=lambda: elsewhere.delete("a/b"))
    with pytest.raises(errors.ObjectMissing):
        backend.get("a/b")
    assert list(backend.list("a/")) == []


def test_a_file_that_stays_stale_is_a_server_that_does_not_answer(backend, tmp_path, monkeypatch):
    spoil(monkeypatch, tmp_path / "store" / "a" / "b", errno.ESTALE)
    with pytest.raises(errors.StoreUnavailable, match="Stale"):
        backend.get("a/b")


def test_no_descriptor_is_left_open(tmp_path):
    def count() -> int:
        """Those that lead to the store, or where its link leads: others, of tests before this one, may be closed meanwhile."""
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                place = os.readlink(f"/proc/self/fd/{name}")
                found += place == "/etc" or place.startswith(str(tmp_path.resolve()))
        return found

    before = count()
    backend = LocalBackend(tmp_path / "store")
    backend.create()
    (tmp_path / "store" / "link").symlink_to("/etc")
    for number in range(20):
        backend.put(f"a/b/{number}", b"x")
        for call in (
            backend.put_if_absent,
            lambda key, _content: backend.get("q/" + key),
            lambda key, _content: backend.get("link/" + key),
        ):
            with pytest.raises(errors.StoreError):
                call(f"a/b/{number}", b"y")
        next(backend.list("a/")).key  # noqa: B018  # a listing that is not read to its end
    assert count() == before + 1
    backend.close()
    assert count() == before
