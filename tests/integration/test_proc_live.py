"""/proc of real processes: names that lie, descriptors that close, processes that end."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perdure import errors
from perdure.base.proc import descriptors, holders, machine, mappings, mounts, network, process, reading

HOSTILE = ["plain", "with blank", "line\nend", "back\\slash", "back\\012slash", "x (deleted)", "\udcff bytes", "tab\tand\r"]


@pytest.fixture
def child():
    """A process that waits for its input to end."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        yield running


def test_a_process_that_was_killed_is_known_to_end_before_it_has():
    for _ in range(50):
        with subprocess.Popen(["sleep", "1000"]) as running:
            assert not process.status(running.pid).is_killed
            assert not process.stat(running.pid).is_exiting
            running.kill()
            assert process.status(running.pid).is_killed


def test_this_process_is_described(child):
    me = os.getpid()
    found = process.stat(child.pid)
    assert found.parent == me
    assert found.session == os.getsid(child.pid)
    assert found.threads == 1
    assert not found.is_dead
    status = process.status(me)
    assert status.uids == (*os.getresuid(), os.geteuid())
    assert status.namespace_pids[-1] == me
    assert child.pid in process.children(me)
    assert child.pid in process.descendants(me)
    assert child.pid in process.pids()
    assert process.namespaces(child.pid)["pid"] == os.stat("/proc/self/ns/pid").st_ino
    assert process.command_line(child.pid)[1] == "-c"
    assert process.executable(child.pid) == (os.path.realpath(sys.executable), False)
    assert process.working_directory(child.pid) == (os.getcwd(), False)
    assert process.environment(child.pid).get("PATH") == os.environ["PATH"]
    assert process.limits(me)["Max open files"][0] == os.sysconf("SC_OPEN_MAX")
    assert mappings.usage(me).resident_bytes > 1 << 20


def test_children_of_any_thread_are_found():
    ready, done = threading.Event(), threading.Event()
    started = []

    def start() -> None:
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
        ready.set()
        done.wait()

    thread = threading.Thread(target=start)
    thread.start()
    ready.wait()
    try:
        assert started[0].pid in process.children(os.getpid())
        assert len(process.threads(os.getpid())) >= 2
    finally:
        done.set()
        thread.join()
        started[0].communicate()


def test_a_zombie_is_dead_and_still_answers(child):
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.stat(child.pid).is_dead
    assert process.command_line(child.pid) == ()
    assert list(mappings.of(child.pid)) == []
    assert mappings.usage(child.pid).resident_bytes == 0
    assert list(descriptors.of(child.pid)) == []
    with pytest.raises(errors.ProcessGone):
        process.executable(child.pid)
    process.namespaces(child.pid)


every_look = pytest.mark.parametrize(
    "look",
    [process.stat, process.status, process.threads, process.children, process.namespaces, process.command_line, process.environment,
     process.executable, process.limits, process.cgroups, mappings.usage, mounts.of, network.unix, network.inet, descriptors.numbers,
     lambda pid: list(mappings.of(pid)), lambda pid: list(descriptors.of(pid))],
)  # fmt: skip


@every_look
def test_a_process_that_is_gone_is_said_to_be_gone(look, child):
    child.stdin.close()
    child.wait()
    with pytest.raises(errors.ProcessGone):
        look(child.pid)


@every_look
def test_a_process_that_has_ended_and_was_not_reaped_is_no_other_error(look, child):
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    # Each says what it can, or that it is gone: nobody who looks at a tree has to reckon with more.
    with contextlib.suppress(errors.ProcessGone):
        look(child.pid)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("unlinked", [False, True])
def test_descriptors_and_mappings_give_the_true_name(tmp_path: Path, name: str, unlinked: bool):
    if unlinked is False and os.geteuid() != 0 and "\\" in name:
        pytest.skip("the ambiguous name needs root")
    path = tmp_path / name
    path.write_bytes(b"x" * 4096)
    with open(path, "r+b") as handle, mmap.mmap(handle.fileno(), 4096) as mapped:
        if unlinked:
            path.unlink()
        found = next(each for each in descriptors.of(os.getpid()) if each.number == handle.fileno())
        assert (found.target, found.deleted) == (str(path), unlinked)
        assert found.is_regular
        assert found.is_writable
        assert found.is_path
        inode = os.fstat(handle.fileno()).st_ino
        (area,) = (each for each in mappings.of(os.getpid()) if each.inode == inode)
        assert (area.path, area.deleted, area.is_shared_writable) == (str(path), unlinked, True)
        assert mappings.file_of(os.getpid(), area).st_ino == inode
        assert mapped[0] == ord("x")


def test_an_unlinked_file_is_not_taken_for_its_replacement(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with open(path, "rb") as handle:
        path.unlink()
        (tmp_path / "x (deleted)").write_bytes(b"bait")
        path.write_bytes(b"new")
        found = descriptors.one(os.getpid(), handle.fileno())
        assert (found.target, found.deleted, found.links) == (str(path), True, 0)


def test_a_file_with_another_name_left_is_deleted_under_the_one_it_was_opened_by(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"")
    os.link(path, tmp_path / "y")
    with open(path, "rb") as handle:
        path.unlink()
        found = descriptors.one(os.getpid(), handle.fileno())
        assert (found.target, found.deleted, found.links) == (str(path), True, 1)


def test_pipes_sockets_and_memory_files_are_no_paths():
    import socket

    reader, writer = os.pipe()
    memory = os.memfd_create("name")
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        try:
            tcp.bind(("127.0.0.1", 0))
            tcp.listen()
            unix.bind(f"\0perdure-test-{os.getpid()}")
            found = {each.number: each for each in descriptors.of(os.getpid())}
            assert found[reader].target == f"pipe:[{found[reader].inode}]"
            assert not found[reader].is_writable
            assert found[writer].is_writable
            assert found[memory].is_regular
            assert not any(found[number].is_path for number in (reader, writer, memory, tcp.fileno(), unix.fileno()))
            (listening,) = (each for each in network.inet(os.getpid()) if each.inode == found[tcp.fileno()].inode)
            assert (listening.state, listening.local) == ("listen", tcp.getsockname())
            assert network.unix(os.getpid())[found[unix.fileno()].inode].path == f"@perdure-test-{os.getpid()}"
        finally:
            os.close(reader)
            os.close(writer)
            os.close(memory)


def test_a_closed_descriptor_is_none():
    number = os.open("/dev/null", os.O_RDONLY)
    os.close(number)
    assert descriptors.one(os.getpid(), number) is None


def test_the_mount_of_this_file_is_found():
    there = os.path.realpath(__file__)
    table = mounts.of(os.getpid())
    covering = mounts.covering(there, table)
    number = os.open(there, os.O_RDONLY)
    try:
        assert descriptors.one(os.getpid(), number).info.mount == covering.id
    finally:
        os.close(number)


def test_the_machine_is_described():
    assert machine.processor().model
    assert machine.processor().flags
    memory = machine.memory()
    assert memory.total_bytes > memory.available_bytes > 0
    assert len(machine.boot_id()) == 36
    assert machine.pid_max() > 1000
    with pytest.raises(errors.EnvironmentUnfit):
        reading.system("sys/kernel/nothing")


def test_another_users_process_is_out_of_reach_without_root(child):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    os.seteuid(65534)
    try:
        with pytest.raises(errors.InputDenied):
            list(descriptors.of(child.pid))
    finally:
        os.seteuid(0)


def test_who_has_a_file_open_or_mapped_is_found(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"x" * 4096)
    there = path.stat()
    assert holders.of(there) is None
    with open(path, "rb"):
        assert holders.of(there) == os.getpid()
    with open(path, "rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 4096, prot=mmap.PROT_READ)
    with mapped:
        assert holders.of(there) == os.getpid()
    assert holders.of(there) is None
