"""Dumps and restores that go wrong: the tree runs on as before, nothing is left standing still, nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from engine import WAIT_S, Workload, alone_with_links, forbid_mounts, working_criu
from supervised import COUNT_FOR_ANOTHER, wait_for

from perdure import errors
from perdure.base.proc import process
from perdure.base.proc.exits import Exits
from perdure.checkpoint import aftermath, dump, launch, links, tree
from perdure.checkpoint.criu import netlock, run
from perdure.checkpoint.criu.calls import Action, Result

pytestmark = pytest.mark.criu

BEATS = """
import os, sys, threading, time
if os.fork() == 0:
    while True:
        time.sleep(0.001)
threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
memory = bytearray(os.urandom(1 << 20) * 48)
number = 0
while True:
    number += 1
    memory[number * 4096 % len(memory)] = number % 256
    print("beat", number, flush=True)
    time.sleep(0.002)
"""


def assert_runs_on(workload: Workload) -> None:
    """It writes more, and no task of it is stopped or traced."""
    workload.drain()
    last = int(re.findall(rb"beat (\d+)\b.*\n", workload.output)[-1])
    workload.wait_for(f"beat {last + 20}\n")
    assert [found.pid for found in tree.members(workload.tree) if found.is_stopped or found.tracer] == []


@pytest.fixture(scope="module")
def criu():
    return working_criu()


@pytest.fixture
def without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads see the machine's /proc, so that CRIU mounts theirs on a folder that it makes where the first process works."""
    forbid_mounts(tmp_path, monkeypatch)


@pytest.fixture
def beating(tmp_path: Path, criu):
    with Workload.python(tmp_path, BEATS, criu=criu) as workload:
        workload.wait_for("beat 5\n")
        yield workload


def test_what_goes_wrong_at_the_freeze_ends_the_dump_and_nothing_else(beating: Workload):
    stood_still = []

    def hook() -> None:
        beating.drain()
        first = len(beating.output)
        states = {state for found in tree.members(beating.tree) for state in found.states.values()}
        time.sleep(0.05)
        beating.drain()
        stood_still.append((len(beating.output) == first, states))
        raise errors.OutputError("no room for the log")

    with pytest.raises(errors.OutputError, match="no room for the log"):
        beating.dump(hook)
    assert stood_still == [(True, {"t"})]
    assert_runs_on(beating)
    beating.cycle()
    assert_runs_on(beating)


def test_a_dump_that_fails_when_all_is_told_to_stop_lets_the_tree_run_on(beating: Workload, monkeypatch: pytest.MonkeyPatch):
    stop = tree.stop

    def stop_and_fail(root: tree.Tree) -> None:
        stop(root)
        raise errors.CheckpointFailed("no more")

    monkeypatch.setattr(tree, "stop", stop_and_fail)
    for _ in range(3):
        with pytest.raises(errors.CheckpointFailed, match="no more"):
            beating.dump(leave="stopped")
        assert_runs_on(beating)


def test_a_dump_that_is_cancelled_lets_the_tree_run_on(beating: Workload, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "GRACE_S", WAIT_S)  # to give up takes moments, and more of them on a busy machine
    staging = beating.folder / "cancelled"
    staging.mkdir()

    def let_go_on(criu: int) -> None:
        wait_for(lambda: resource.prlimit(criu, resource.RLIMIT_FSIZE)[0] == 0, WAIT_S, "for it to be cancelled")
        os.kill(criu, signal.SIGCONT)

    def hook() -> None:
        beating.drain()
        # Else CRIU may be done before that is heard of, on a busy machine.
        os.kill(started[0].pid, signal.SIGSTOP)
        started[0].cancel()
        threading.Thread(target=let_go_on, args=(started[0].pid,)).start()

    started: list = []
    with pytest.raises(errors.CheckpointFailed):
        dump.dump(beating.tree, staging, dump.DumpOptions(expected_bytes=1 << 26), hook, beating.criu, begun=started.append)
    assert_runs_on(beating)


def test_a_full_disk_is_told_and_the_tree_runs_on(beating: Workload):
    small = beating.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "perdure-test", str(small)], check=True)
    try:
        log = beating.folder / "kept.log"
        with pytest.raises(errors.CheckpointFailed, match="room") as caught:
            dump.dump(beating.tree, small, dump.DumpOptions(expected_bytes=1 << 26, log_to=log), beating.drain, beating.criu)
        assert str(log) in caught.value.hint
        assert log.stat().st_mode & 0o777 == 0o600
        assert_runs_on(beating)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_criu_that_is_killed_leaves_no_task_standing_still(tmp_path: Path, criu):
    """At instants all over the dump. Where CRIU's own code stood in a task, the workload is told to be lost, and never in silence."""
    outcomes = []
    for round_ in range(12):
        folder = tmp_path / str(round_)
        folder.mkdir()
        with Workload.python(folder, BEATS, criu=criu) as workload:
            workload.wait_for("beat 5\n")
            outcomes.append(_kill_criu_after(workload, round_ * 0.008))
    assert outcomes.count("goes on") >= 6, outcomes


def _kill_criu_after(workload: Workload, delay_s: float) -> str:
    def begun(running) -> None:
        threading.Timer(delay_s, _kill, [running.pid]).start()

    staging = workload.folder / "killed"
    staging.mkdir()
    try:
        dump.dump(workload.tree, staging, dump.DumpOptions(expected_bytes=1 << 26), workload.drain, workload.criu, begun=begun)
    except errors.WorkloadLost:
        return "lost"
    except errors.CheckpointFailed:
        assert_runs_on(workload)
        workload.dump()
        return "goes on"
    assert_runs_on(workload)
    return "done"


def test_how_the_first_process_ended_is_waited_for():
    """A PID namespace's init that a killed CRIU has broken ends when all others have: until then it is only on its way."""
    program = "import os, resource, time; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); time.sleep(0.3); os.kill(os.getpid(), 5)"
    with subprocess.Popen([sys.executable, "-c", program]) as breaking:
        root = tree.Tree(breaking.pid, process.stat(breaking.pid).start_ticks)
        before = tree.members(root)
        result = Result(action=Action.DUMP, returncode=-signal.SIGKILL, wall_s=0.1, log_path="", tree_ended=True)
        with Exits([breaking.pid]) as exits, pytest.raises(errors.WorkloadLost, match="SIGTRAP"):
            aftermath.settle(root, before, result, exits)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_tree_left_stopped_stands_still_until_it_is_let_go(beating: Workload):
    dumped = beating.dump(leave="stopped")
    assert {state for found in tree.members(beating.tree) for state in found.states.values()} == {"T"}
    beating.drain()
    before = len(beating.output)
    time.sleep(0.1)
    beating.drain()
    assert len(beating.output) == before
    dump.let_go_on(beating.tree, dumped.run_id)
    assert_runs_on(beating)
    # A user's own stopped process stays so through it all.
    child = next(found.pid for found in tree.members(beating.tree) if found.parent == beating_main(beating))
    beating.stop(child)
    dumped = beating.dump()
    assert [fact.host_pid for fact in dumped.processes if fact.stopped] == [child]
    wait_for(lambda: tree.look(child).is_stopped, WAIT_S, "for it to stand still again")
    os.kill(child, signal.SIGCONT)
    assert_runs_on(beating)


def beating_main(workload: Workload) -> int:
    return next(found.pid for found in tree.members(workload.tree) if found.parent == workload.tree.pid)


def test_kept_connections_are_locked_while_stopped_and_go_on_afterwards(tmp_path: Path, criu):
    server = socket.create_server(("127.0.0.1", 0))
    script = """
    import socket, sys, time
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    number = 0
    while True:
        number += 1
        peer.sendall(b"%08d" % number)
        assert peer.recv(8, socket.MSG_WAITALL) == b"%08d" % number
        print("beat", number, flush=True)
        time.sleep(0.005)
    """

    def echo() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            while content := connection.recv(100):
                connection.sendall(content)

    threading.Thread(target=echo, daemon=True).start()
    with server, Workload.python(tmp_path, script, str(server.getsockname()[1]), criu=criu) as workload:
        workload.wait_for("beat 5\n")
        dumped = workload.dump(leave="stopped", tcp="keep")
        assert {state for found in tree.members(workload.tree) for state in found.states.values()} == {"T"}
        dump.let_go_on(workload.tree, dumped.run_id)
        assert_runs_on(workload)
        assert not [name for name in netlock.tables() if dumped.run_id.startswith(name.removeprefix(netlock.NAME))]


@pytest.mark.slow
def test_a_dump_waits_for_another_one_in_the_same_folder(without_proc: None, beating: Workload):
    taken = beating.folder / "proc.crtools"
    taken.mkdir()
    threading.Timer(0.5, taken.rmdir).start()
    beating.dump()
    assert_runs_on(beating)


def test_a_folder_that_a_killed_dump_left_is_named(without_proc: None, beating: Workload, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dump, "_PATIENCE_S", 0.5)
    (beating.folder / "proc.crtools").mkdir()
    with pytest.raises(errors.CheckpointFailed, match=r"holds the folder proc\.crtools"):
        beating.dump()
    assert_runs_on(beating)


def test_a_large_deleted_file_is_saved_by_a_second_try(tmp_path: Path, criu):
    script = """
    import os, sys, time
    ghost = open(sys.argv[1], "w+b")
    os.unlink(sys.argv[1])
    os.posix_fallocate(ghost.fileno(), 0, 1100 << 20)
    ghost.seek(1 << 30)
    ghost.write(b"still here")
    ghost.flush()
    number = 0
    while True:
        number += 1
        ghost.seek(1 << 30)
        print("beat", number, ghost.read(10).decode(), flush=True)
        time.sleep(0.01)
    """
    with Workload.python(tmp_path, script, str(tmp_path / "ghost"), criu=criu) as workload:
        workload.wait_for("beat 3 still here\n")
        dumped = workload.dump()
        assert dumped.second_try == "--ghost-limit=1024G"
        workload.end()
        workload.output = b""
        workload.restore(dumped)
        workload.wait_for("still here\n")


def test_a_stale_link_of_a_killed_dump_is_swept_and_others_are_not(tmp_path: Path, criu):
    script = """
    import os, sys, time
    file = open(sys.argv[1], "w+b")
    file.write(b"content")
    file.flush()
    os.link(sys.argv[1], sys.argv[1] + ".other")
    os.unlink(sys.argv[1])
    number = 0
    while True:
        number += 1
        print("beat", number, flush=True)
        time.sleep(0.01)
    """
    with Workload.python(tmp_path, script, str(tmp_path / "file"), criu=criu) as workload:
        workload.wait_for("beat 3\n")
        # What CRIU leaves when it is killed: its next link would have the same name.
        os.link(tmp_path / "file.other", tmp_path / "link_remap.1")
        (tmp_path / "link_remap.2").write_text("a user's own")
        workload.dump()
        assert not (tmp_path / "link_remap.1").exists()
        assert (tmp_path / "link_remap.2").read_text() == "a user's own"
        assert (tmp_path / "file.other").read_text() == "content"


SEMAPHORES = f"""{COUNT_FOR_ANOTHER}
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    lock, queue = context.Lock(), context.Queue()
    context.Process(target=count, args=(lock, queue), daemon=True).start()
    while True:
        with lock:
            pass
        os.write(1, b"beat %d\\n" % queue.get())  # at once: the first line of the next life is a whole one
"""


def _last_beat(workload: Workload) -> int:
    """Return the number of the last whole line so far."""
    return int(workload.output.decode().rpartition("\n")[0].splitlines()[-1].split()[1])


@pytest.mark.parametrize("rebooted", [False, True])
def test_semaphores_with_two_names_are_one_again(tmp_path: Path, criu, rebooted: bool):
    """One process maps them under a name that is gone, the other under one that lives; CRIU rests on a link that it removes itself."""
    semaphores: list[Path] = []
    with alone_with_links(), Workload.python(tmp_path, SEMAPHORES, criu=criu) as workload:
        try:
            workload.wait_for("beat 5\n")
            for _ in range(2):
                dumped = workload.dump()
                listed = msgspec.json.decode((dumped.images / links.FILE).read_bytes(), type=tuple[links.Link, ...])
                semaphores = [Path(link.path).parent / name for link in listed for name in link.names]
                assert len(listed) >= 4
                assert all(link.names for link in listed)
                workload.wait_for(f"beat {_last_beat(workload) + 20}\n")
                workload.end()
                if rebooted:
                    for path in semaphores:
                        path.unlink()
                workload.output = b""
                workload.restore(dumped)
                workload.wait_for("\n")
                workload.wait_for(f"beat {_last_beat(workload) + 20}\n")
                numbers = [int(line.split()[1]) for line in workload.lines()[:-1]]  # the last one may be written in part
                assert numbers == list(range(numbers[0], numbers[-1] + 1))
                assert not [link.path for link in listed if os.path.exists(link.path)]
        finally:
            for path in semaphores:
                path.unlink(missing_ok=True)


def test_two_whose_links_have_one_name_are_saved_and_brought_back_at_the_same_instant(tmp_path: Path, criu):
    with alone_with_links(), contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(Workload.python(folder, SEMAPHORES, criu=criu)) for folder in _folders(tmp_path, "one", "other")
        )
        for workload in (first, second):
            workload.wait_for("beat 5\n")
        options = dump.DumpOptions(expected_bytes=1 << 26)
        is_frozen = threading.Event()

        def stand_still() -> None:
            is_frozen.set()
            time.sleep(1)

        (first.folder / "slow").mkdir()
        (second.folder / "quick").mkdir()
        with ThreadPoolExecutor(1) as pool:
            slow = pool.submit(dump.dump, first.tree, first.folder / "slow", options, stand_still, criu)
            assert is_frozen.wait(WAIT_S)
            quick = dump.dump(second.tree, second.folder / "quick", options, lambda: None, criu)
            assert slow.result(WAIT_S).memory_bytes
        assert_runs_on(first)
        listed = msgspec.json.decode((quick.images / links.FILE).read_bytes(), type=tuple[links.Link, ...])
        try:
            dumped = second.dump()
            second.end()
            taken = Path(listed[0].path)
            taken.write_text("of another that is saved or brought back")
            threading.Timer(0.5, taken.unlink).start()
            second.output = b""
            second.restore(dumped)
            second.wait_for(f"beat {_last_beat_after(second)}\n")
        finally:
            for link in listed:
                for name in link.names:
                    (Path(link.path).parent / name).unlink(missing_ok=True)


def _folders(parent: Path, *names: str) -> list[Path]:
    for name in names:
        (parent / name).mkdir()
    return [parent / name for name in names]


def _last_beat_after(workload: Workload) -> int:
    """Return a beat that is still to come."""
    workload.wait_for("\n")
    return _last_beat(workload) + 20


def test_a_restore_that_fails_says_why_and_leaves_nothing(tmp_path: Path, criu):
    script = """
    import sys, time
    file = open(sys.argv[1])
    number = 0
    while True:
        number += 1
        print("beat", number, flush=True)
        time.sleep(0.01)
    """
    wanted = tmp_path / "wanted"
    wanted.write_text("x")
    with Workload.python(tmp_path, script, str(wanted), criu=criu) as workload:
        workload.wait_for("beat 3\n")
        dumped = workload.dump()
        workload.end()
        wanted.unlink()
        before = set(process.children(os.getpid()))
        with pytest.raises(errors.RestoreFailed, match="wanted") as caught:
            workload.restore(dumped, log_to=tmp_path / "restore.log")
        assert str(tmp_path / "restore.log") in caught.value.hint
        assert set(process.children(os.getpid())) == before
        wanted.write_text("x")
        workload.restore(dumped)
        workload.wait_for("beat 20\n")


SUPERVISOR = """
import os, sys, time
sys.path[:0] = sys.argv[1].split(":")
from pathlib import Path
from engine import Workload, forbid_mounts
workload = Workload(Path(sys.argv[2]), "bash", "-c", "sleep 1000 & setsid sleep 1000 & echo up; wait").__enter__()
workload.wait_for("up")
if sys.argv[3] == "restored":
    workload.cycle()
print(workload.tree.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("life", ["launched", "restored"])
def test_the_tree_ends_with_its_supervisor_in_every_life(tmp_path: Path, life: str):
    path = f"{Path(__file__).parents[2] / 'src'}:{Path(__file__).parents[1]}"
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR, path, str(tmp_path), life], stdout=subprocess.PIPE, text=True)
    with supervisor:
        try:
            root = int(supervisor.stdout.readline())
            found = tree.members(tree.Tree(root, tree.start_ticks_of(root)))
            assert len(found) >= 2
        finally:
            supervisor.kill()
    wait_for(lambda: not any(_lives(each) for each in found), WAIT_S, "for the end of all")


def _lives(one: tree.Process) -> bool:
    try:
        stat = process.stat(one.pid)
    except errors.ProcessGone:
        return False
    return stat.start_ticks == one.start_ticks and not stat.is_dead


def test_a_tree_that_has_ended_is_told_so(tmp_path: Path, criu):
    with Workload(tmp_path, "true", criu=criu) as workload:
        assert workload.status() == 0
        with pytest.raises(errors.ProcessGone):
            workload.dump()


def test_nothing_of_ours_leaks_into_the_workload(tmp_path: Path, criu):
    leak = os.open("/etc/passwd", os.O_RDONLY)
    os.set_inheritable(leak, True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    script = """
    import os, signal
    print(sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1], os.getpid(), os.getsid(0), os.getppid())
    print(sorted(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGPIPE).name, os.getcwd())
    """
    try:
        with Workload.python(tmp_path, script, criu=criu) as workload:
            assert workload.status() == 0
            first, second = workload.lines()
            numbers, pid = first.rsplit("] ", 1)[0] + "]", first.rsplit("] ", 1)[1].split()
            assert numbers == "[0, 1, 2]"
            assert pid == [str(launch.first_pid(tmp_path.name)), "1", "1"]
            assert second == f"['HOME', 'LC_ALL', 'PATH'] set() SIG_IGN {tmp_path}"
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        os.close(leak)
