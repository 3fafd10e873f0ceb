"""Trees that are saved, killed and brought back three times over by a real CRIU, and end as if nothing had happened."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import ports
import pytest
from engine import HOLDS_PROC, WAIT_S, Workload, forbid_mounts
from supervised import wait_for

from perdure import errors
from perdure.base.proc import mappings
from perdure.checkpoint import alive, launch, probes, tree, views
from perdure.checkpoint.preflight import save
from perdure.checkpoint.preflight.plan import Plan as SavePlan
from perdure.model.finding import problems

pytestmark = pytest.mark.criu

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
ptrace = ctypes.CDLL(None).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]

COUNTER = """
import hashlib, os, sys, time
memory = bytearray(b"perdure!" * 50_000)
digest = hashlib.sha256()
for number in range(1, int(sys.argv[1]) + 1):
    memory[number * 4099 % len(memory)] = number % 256
    digest.update(memory)
    print(number, digest.hexdigest(), flush=True)
    time.sleep(0.01)
    while number == 100 and not os.path.exists("on"):
        time.sleep(0.01)
sys.exit(3)
"""


def undisturbed(folder: Path, *argv: str) -> list[str]:
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True).stdout.splitlines()


def test_a_counter_goes_on_three_times_and_keeps_its_memory_and_exit_status(tmp_path: Path):
    with Workload.python(tmp_path, COUNTER, "200") as workload:
        for at in (20, 45, 70):
            workload.wait_for(f"\n{at} ")
            dumped = workload.cycle()
            # On a busy machine it may be seen to wait for a while.
            wait_for(lambda seen=dumped: alive.verify(workload.tree, seen.processes, None).progress == "moved", WAIT_S, "for it to move")
        workload.let_end()
        assert workload.status() == 3
        assert workload.lines() == undisturbed(tmp_path, sys.executable, "-u", str(tmp_path / "program.py"), "200")


def test_a_pipeline_loses_and_repeats_nothing_in_its_pipes(tmp_path: Path):
    count = "for i in $(seq 1 150); do echo $i; sleep 0.01; until [ $i != 120 ] || [ -e on ]; do sleep 0.01; done; done"
    script = f"{count} | sed -u y/0123456789/abcdefghij/ | tee /dev/null | sed -u s/^/x/"
    with Workload(tmp_path, "bash", "-c", script) as workload:
        for at in ("xb\n", "xgg\n", "xbaa\n"):
            workload.wait_for(at)
            dumped = workload.cycle()
            assert {fact.command for fact in dumped.processes} >= {"bash", "tee", "sed"}
        workload.let_end()
        assert workload.status() == 0
        assert workload.lines() == ["x" + "".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(1, 151)]


def test_stdout_and_stderr_that_are_two_pipes_stay_two(tmp_path: Path):
    script = """
    import os, sys, time
    for number in range(100):
        print("out", number, flush=True)
        print("err", number, file=sys.stderr, flush=True)
        time.sleep(0.01)
        while number == 60 and not os.path.exists("on"):
            time.sleep(0.01)
    """
    with Workload.python(tmp_path, script, separate=True) as workload:
        workload.wait_for("out 20\n")
        marks = []

        def hook() -> None:
            workload.drain()
            marks.append((len(workload.output), len(workload.error)))

        dumped = workload.dump(hook)
        assert len({stream.external for stream in dumped.streams if stream.external}) == 2
        workload.end()
        workload.let_end()
        workload.output, workload.error = workload.output[: marks[0][0]], workload.error[: marks[0][1]]
        workload.restore(dumped)
        assert workload.status() == 0
        assert workload.output.decode().splitlines() == [f"out {number}" for number in range(100)]
        assert workload.error.decode().splitlines() == [f"err {number}" for number in range(100)]


def test_a_file_as_stdin_is_read_on_from_where_it_was(tmp_path: Path):
    source = tmp_path / "input"
    source.write_text("".join(f"line {number}\n" for number in range(1, 121)))
    script = 'while IFS= read -r line; do echo "$line"; sleep 0.01; until [ "$line" != "line 100" ] || [ -e on ]; do sleep 0.01; done; done'
    with Workload(tmp_path, "bash", "-c", script, stdin=source) as workload:
        for at in (20, 50, 80):
            workload.wait_for(f"line {at}\n")
            dumped = workload.cycle()
            assert (dumped.streams[0].kind, dumped.streams[0].path) == ("file", str(source))
        workload.let_end()
        assert workload.status() == 0
        assert workload.output == source.read_bytes()


def test_system_v_memory_and_semaphores_of_its_own_namespace_come_along(tmp_path: Path):
    script = """
    $| = 1;
    my $memory = shmget(0, 64, 0600 | 01000);
    my $semaphore = semget(0, 1, 0600 | 01000);
    semctl($semaphore, 0, 16, 5);
    shmwrite($memory, sprintf("%08d", 0), 0, 8);
    for my $number (1 .. 100) {
        my $before;
        shmread($memory, $before, 0, 8);
        shmwrite($memory, sprintf("%08d", $before + 1), 0, 8);
        print $before + 1, " ", semctl($semaphore, 0, 12, 0), "\\n";
        do { select(undef, undef, undef, 0.01) } until $number != 70 || -e "on";
    }
    """
    with Workload(tmp_path, "perl", "-e", script) as workload:
        for at in (20, 50):
            workload.wait_for(f"\n{at} 5\n")
            workload.cycle()
        workload.let_end()
        assert workload.status() == 0
        assert workload.lines() == [f"{number} 5" for number in range(1, 101)]


def test_a_terminal_keeps_ctrl_c_and_window_size(tmp_path: Path):
    script = """
    import os, signal, sys, time
    signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
    signal.signal(signal.SIGWINCH, lambda *_: print("size", *os.get_terminal_size(0), flush=True))
    print("up", os.isatty(0), flush=True)
    number = 0
    while True:
        number += 1
        os.write(1, b"beat %d\\n" % number)  # at once: what the signals' handlers print does not come in between
        time.sleep(0.02)
    """
    with Workload.python(tmp_path, script, terminal=True) as workload:
        workload.wait_for("up True")
        for life, beat in enumerate((5, 20, 40), start=1):
            workload.wait_for(f"beat {beat}\r")
            workload.cycle()
            workload.resize(20 + life, 70)
            workload.wait_for(f"size 70 {20 + life}")
            interrupted = workload.output.count(b"interrupted")
            os.write(workload.master, b"\x03")
            _wait_for_count(workload, b"interrupted", interrupted + 1)


def _wait_for_count(workload: Workload, wanted: bytes, count: int) -> None:
    end = time.monotonic() + WAIT_S
    while workload.output.count(wanted) < count:
        assert time.monotonic() < end, workload.output[-500:]
        workload.drain()
        time.sleep(0.01)
    assert workload.output.count(wanted) == count


TALKERS = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
if os.fork() == 0:
    connection, _ = listener.accept()
    while message := connection.recv(8, socket.MSG_WAITALL):
        connection.sendall(message)
    os._exit(0)
outside = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
inside = socket.create_connection(listener.getsockname())
print("port", listener.getsockname()[1], flush=True)
told = False
for number in range(1, 201):
    inside.sendall(b"%08d" % number)
    assert inside.recv(8, socket.MSG_WAITALL) == b"%08d" % number
    try:
        outside.send(b"x")
        heard = outside.recv(1)
    except OSError:
        heard = b""
    if not heard and not told:
        told = True
        print("outside closed", flush=True)
    print(number, flush=True)
    time.sleep(0.01)
    while number == 100 and not os.path.exists("on"):
        time.sleep(0.01)
try:
    late = socket.create_connection(listener.getsockname())
    print("still listening", flush=True)
finally:
    os._exit(0)
"""


def test_connections_within_the_tree_live_on_and_those_with_others_are_closed(tmp_path: Path):
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            while content := connection.recv(100):
                connection.sendall(content)

    echoing = threading.Thread(target=echo, daemon=True)
    echoing.start()
    # The port is nobody else's while the tree is away.
    with (
        server,
        ports.reserve() as kept,
        Workload.python(tmp_path, TALKERS, str(server.getsockname()[1]), str(ports.number(kept))) as workload,
    ):
        workload.wait_for("\n30\n")
        dumped = workload.dump()
        # The source goes on with all its connections.
        workload.wait_for("\n60\n")
        assert b"closed" not in workload.output
        workload.end()
        workload.let_end()
        echoing.join(timeout=WAIT_S)
        workload.output = b""
        restored = workload.restore(dumped)
        assert restored.closed_connections == 1
        workload.wait_for("outside closed")
        assert workload.status() == 0
        numbers = [int(line) for line in workload.lines() if line.isdecimal()]
        assert numbers == list(range(numbers[0], 201))
        assert "still listening" in workload.lines()


def test_daemons_and_other_users_in_the_tree_come_along(tmp_path: Path):
    tmp_path.chmod(0o755)
    script = """
    setsid sh -c 'while :; do echo daemon; sleep 0.05; done' &
    exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'n=0; while :; do n=$((n+1)); echo "$(id -u) $n"; sleep 0.02; done'
    """
    with Workload(tmp_path, "bash", "-c", script) as workload:
        workload.wait_for("65534 5\n")
        for _ in range(3):
            dumped = workload.cycle()
            assert {fact.uid for fact in dumped.processes} == {0, 65534}
            workload.output = b""
            workload.wait_for("daemon\n")
            workload.wait_for("65534 ")


def test_a_workload_killed_by_a_signal_says_so_after_a_restore(tmp_path: Path):
    with Workload(tmp_path, "bash", "-c", "echo up; while :; do sleep 0.02; done") as workload:
        workload.wait_for("up\n")
        workload.cycle()
        assert tree.send(workload.tree, signal.SIGTERM)
        assert workload.status() == 128 + signal.SIGTERM


def test_a_tree_that_dies_at_once_is_not_told_to_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # On a busy machine its first steps come later.
    for moment in ("_MOMENT_S", "_WAITING_S", "_MOST_S"):
        monkeypatch.setattr(alive, moment, WAIT_S)
    script = """
    import os, sys, time
    print("up", flush=True)
    while not os.path.exists(sys.argv[1]):
        pass
    os.abort()
    """
    flag = tmp_path / "flag"
    with Workload.python(tmp_path, script, str(flag)) as workload:
        workload.wait_for("up\n")
        dumped = workload.dump()
        workload.end()
        flag.touch()
        workload.restore(dumped)
        with pytest.raises(errors.RestoreFailed, match="died of SIGABRT a moment after"):
            alive.verify(workload.tree, dumped.processes, None)


def test_a_waiting_tree_counts_as_alive_and_its_probe_decides(tmp_path: Path):
    with Workload(tmp_path, "sleep", "1000") as workload:
        workload.await_command("sleep")
        dumped = workload.cycle()
        # Its first steps after the restore may be seen or not; from then on it waits.
        assert alive.verify(workload.tree, dumped.processes, None).missing == ()
        wait_for(lambda: alive.verify(workload.tree, dumped.processes, None).progress == "waiting", WAIT_S, "for it to be seen to wait")
        environment = {"PATH": os.environ["PATH"]}
        probe = probes.Probe(argv=("sh", "-c", "echo fine"), environment=environment, working_directory="/")
        assert alive.verify(workload.tree, dumped.processes, probe).probe == "fine"
        with pytest.raises(errors.RestoreFailed, match="the probe failed with 7: no"):
            alive.verify(
                workload.tree, (), probes.Probe(argv=("sh", "-c", "echo no; exit 7"), environment=environment, working_directory="/")
            )
        with pytest.raises(errors.RestoreFailed, match=r"did not end within 0\.1 s"):
            slow = probes.Probe(argv=("sh", "-c", "sleep 10; :"), environment=environment, working_directory="/", limit_s=0.1)
            alive.verify(workload.tree, (), slow)
        # As when a signal to stop had reached it in the middle of the dump.
        tree.stop(workload.tree)
        alive.verify(workload.tree, dumped.processes, None)
        assert not [process for process in tree.members(workload.tree) if process.is_stopped]
        traced = tree.pids(workload.tree)[-1]
        assert ptrace(PTRACE_SEIZE, traced, None, None) == 0
        with pytest.raises(errors.RestoreFailed, match="stand still"):
            alive.verify(workload.tree, dumped.processes, None)
        assert ptrace(PTRACE_INTERRUPT, traced, None, None) == 0
        os.waitpid(traced, WALL)
        assert ptrace(PTRACE_DETACH, traced, None, None) == 0


def test_what_was_stopped_when_it_was_saved_is_brought_back_stopped(tmp_path: Path):
    with Workload(tmp_path, "sleep", "1000") as workload:
        workload.await_command("sleep")
        (sleeper,) = tree.members(workload.tree)[1:]
        workload.stop(sleeper.pid)
        dumped = workload.cycle()
        alive.verify(workload.tree, dumped.processes, None)
        assert [process.is_stopped for process in tree.members(workload.tree)] == [False, True]


OF_ITSELF = """
import os, sys, threading, time
held = open("/proc/stat")
other = threading.Thread(target=time.sleep, args=(1e6,), daemon=True)
other.start()
number = 0
while True:
    number += 1
    with open(f"/proc/{os.getpid()}/cmdline") as told:
        named = told.read().rstrip(chr(0)).split(chr(0)) == sys.orig_argv
    with open(f"/proc/self/task/{other.native_id}/comm", "r+") as name:
        name.write(f"thread-{number % 10}")
    held.seek(0)
    print(number, named, os.readlink("/proc/self") == str(os.getpid()), held.read(4), flush=True)
    time.sleep(0.01)
"""


def test_a_workload_finds_itself_in_proc_in_every_life_and_while_it_is_saved(tmp_path: Path):
    """As the CUDA driver does, to name its threads, and what measures memory; it would end with an error if it ever did not."""
    with Workload.python(tmp_path, OF_ITSELF) as workload:
        for at in (5, 40, 80):
            workload.wait_for(f"\n{at} ")
            workload.dump(lambda: None)  # and it runs on
            workload.wait_for(f"\n{at + 10} ")
            workload.cycle()
        workload.wait_for("\n101 ")  # which is written in pieces
        assert {line.split(maxsplit=1)[1] for line in workload.lines()[:100]} == {"True True cpu "}


def test_files_of_its_own_processes_in_proc_are_held_on(tmp_path: Path):
    with Workload.python(tmp_path, HOLDS_PROC) as workload:
        for at in (5, 40, 80):
            workload.wait_for(f"\n{at} ")
            assert [each.code for each in problems(save.check(workload.tree.pid, SavePlan(criu=workload.criu)))] == []
            workload.cycle()
        workload.wait_for("\n101 ")  # which is written in pieces
        assert {line.split(maxsplit=1)[1] for line in workload.lines()[:100]} == {"True"}


@pytest.mark.parametrize(
    ("opened", "why"),
    [
        ("f'/proc/self/task/{other.native_id}/comm'", "of a thread"),
        ("f'/proc/{ended.pid}/status'", "has ended"),
    ],
)
def test_files_of_proc_that_nobody_can_open_again_are_refused(tmp_path: Path, opened: str, why: str):
    program = f"""
        import subprocess, threading, time
        other = threading.Thread(target=time.sleep, args=(1e6,), daemon=True)
        other.start()
        ended = subprocess.Popen(["sleep", "1000"])
        held = open({opened})
        ended.kill()
        ended.wait()
        print("ready", flush=True)
        time.sleep(1e6)
    """
    with Workload.python(tmp_path, program) as workload:
        workload.wait_for("ready")
        (told,) = problems(save.check(workload.tree.pid, SavePlan(criu=workload.criu)))
        assert told.code == "file-of-process"
        assert why in told.message
        # What is opened after that look is met at the freeze.
        with pytest.raises(errors.CheckpointLater, match=why):
            workload.dump()
        assert tree.is_alive(workload.tree)


def test_files_of_its_own_processes_come_back_only_where_it_has_a_proc_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Workload.python(tmp_path, HOLDS_PROC) as workload:
        workload.wait_for("\n5 ")
        dumped = workload.dump()
        workload.end()
        with monkeypatch.context() as patch:
            forbid_mounts(tmp_path, patch)
            with pytest.raises(errors.RestoreRefused, match="file-of-process"):
                workload.restore(dumped)
        workload.restore(dumped)
        workload.wait_for("\n60 ")


def test_where_nothing_may_be_mounted_none_of_its_files_in_proc_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forbid_mounts(tmp_path, monkeypatch)
    with Workload.python(tmp_path, "import time\nheld = open('/proc/self/status')\nprint('up', flush=True)\ntime.sleep(1e6)") as workload:
        workload.wait_for("up")
        with pytest.raises(errors.CheckpointLater, match="file-of-process"):
            workload.dump()
        assert tree.is_alive(workload.tree)


def test_where_nothing_may_be_mounted_a_workload_lives_with_the_proc_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forbid_mounts(tmp_path, monkeypatch)
    with Workload.python(tmp_path, COUNTER, "200") as workload:
        assert not views.is_own(workload.tree.pid)
        for at in (20, 45):
            workload.wait_for(f"\n{at} ")
            workload.cycle()
        monkeypatch.undo()
        # What was saved so comes back with a /proc of its own where that can be.
        workload.wait_for("\n70 ")
        workload.cycle()
        assert views.is_own(workload.tree.pid)
        workload.let_end()
        assert workload.status() == 3


def test_what_a_container_put_over_files_of_proc_stays_there(tmp_path: Path):
    """As with files that tell of a container's own limits, and folders of the GPUs that it may use."""
    shown = tmp_path / "shown"
    shown.write_text("what the container shows")
    script = f"mount --bind {shown} /proc/version && exec {sys.executable} {tmp_path / 'supervise.py'}"
    (tmp_path / "supervise.py").write_text(
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path\n"
        "from engine import Workload\n"
        "script = 'cat /proc/version; test -e /proc/1/stat && echo; sleep 1000'\n"
        f"with Workload(Path({str(tmp_path)!r}), '/bin/sh', '-c', script) as workload:\n"
        "    workload.wait_for('what the container shows')\n"
        "    workload.wait_for(chr(10))\n"
        "    workload.cycle()\n"
        "    print(open(f'/proc/{workload.tree.pid}/root/proc/version').read())\n"
    )
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout.strip() == "what the container shows", done.stderr


READS_ON = """
import os, sys, time
for line in sys.stdin:
    print("read", line, end="", flush=True)
    while line == "50\\n" and not os.path.exists("on"):
        time.sleep(0.01)
"""


def test_an_input_without_a_name_is_read_on_where_it_was(tmp_path: Path):
    """As the here-documents of some shells are."""
    source = tmp_path / "input"
    source.write_text("".join(f"{number:0100d}\n" if number != 50 else "50\n" for number in range(300)))
    stays = os.open(source, os.O_RDONLY)
    source.unlink()
    with Workload.python(tmp_path, READS_ON, stdin=Path(f"/proc/self/fd/{stays}")) as workload:
        for _ in range(2):
            workload.wait_for("read 50\n")
            workload.cycle()
        workload.let_end()
        assert workload.status() == 0
        assert [int(line.split()[1]) for line in workload.lines()] == list(range(300))
    os.close(stays)


def test_a_file_on_a_mount_of_the_workloads_own_keeps_it_from_being_saved(tmp_path: Path):
    script = """
    import mmap, os, subprocess, sys, time
    subprocess.run(["mount", "-t", "tmpfs", "own", sys.argv[1]], check=True)
    with open(sys.argv[1] + "/data", "w+b") as data:
        data.truncate(4096)
        mapped = mmap.mmap(data.fileno(), 4096)
    opened = open(sys.argv[1] + "/data") if sys.argv[2] == "open" else None
    mapped = mapped if sys.argv[2] == "map" else None
    if sys.argv[2] == "work":
        os.chdir(sys.argv[1])
    print("up", flush=True)
    time.sleep(1000)
    """
    for what in ("open", "map", "work", "nothing"):
        folder = tmp_path / what
        (folder / "own").mkdir(parents=True)
        with Workload.python(folder, script, str(folder / "own"), what) as workload:
            workload.wait_for("up")
            codes = {found.code for found in problems(save.check(workload.tree.pid, SavePlan(criu=workload.criu)))}
            assert codes == (set() if what == "nothing" else {"file-mount-own"})


def test_a_name_that_leads_elsewhere_by_now_is_not_opened_by_root(tmp_path: Path):
    source, trap = tmp_path / "input", tmp_path / "trap"
    source.write_text("what was given")
    os.mkfifo(trap)
    script = (
        "import os, runpy, sys\n"
        f"starter = runpy.run_path({str(Path(launch.__file__).with_name('starter.py'))!r})\n"
        f"starter['_found_anew'].__globals__['os'].readlink = lambda name: {str(trap)!r}\n"
        "starter['_open_anew']()\n"
        "print(os.read(0, 100).decode(), os.fstat(0).st_nlink)\n"
    )
    with source.open() as given:
        done = subprocess.run([sys.executable, "-c", script], stdin=given, capture_output=True, text=True, timeout=WAIT_S)
    assert done.stdout == "what was given 0\n", done.stderr


def policies(workload: Workload) -> list[str]:
    """What is said of policies for memory."""
    return [each.message for each in save.check(workload.tree.pid, SavePlan(criu=workload.criu)) if each.code == "memory-policy"]


has_numa = pytest.mark.skipif(
    not (Path("/proc/self/numa_maps").exists() and platform.machine() == "x86_64"), reason="needs NUMA, on x86-64"
)


@has_numa
def test_a_policy_for_memory_that_a_restore_loses_is_named(tmp_path: Path):
    program = """
        import ctypes, time
        ctypes.CDLL(None).syscall(238, 2, ctypes.byref(ctypes.c_ulong(1)), 64)  # set_mempolicy(MPOL_BIND, node 0)
        print("up", flush=True)
        time.sleep(1e6)
    """
    with Workload.python(tmp_path, program) as workload:
        workload.wait_for("up")
        assert policies(workload) == ["takes memory by the policy bind:0, and by default after a restore"]
        workload.cycle()
        assert policies(workload) == []


@has_numa
def test_a_policy_for_memory_that_all_was_started_with_holds_in_each_life(tmp_path: Path):
    set_policy = ctypes.CDLL(None).syscall
    assert set_policy(238, 2, ctypes.byref(ctypes.c_ulong(1)), 64) == 0
    try:
        with Workload.python(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(1e6)") as workload:
            workload.wait_for("up")
            workload.cycle()
            assert [mappings.memory_policy(pid) for pid in tree.pids(workload.tree)] == ["bind:0"] * 2
            assert policies(workload) == []
    finally:
        set_policy(238, 0, None, 0)
