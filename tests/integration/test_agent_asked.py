"""The agent and what it is asked, without a workload: who may ask, how much, and what becomes of noise."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agents import ALICE, BOB, Node, as_user, ask_as, needs_root, running, start_as_user
from supervised import LIMIT_S, wait_for

from perdure import errors
from perdure._version import __version__
from perdure.agent import asked, client
from perdure.agent.limits import Bounds
from perdure.base.proc import process
from perdure.model.checkpoint import Owner
from perdure.supervisor import state
from perdure.supervisor.folders import Folders
from perdure.supervisor.record import Options, State, Workload

pytestmark = [needs_root, pytest.mark.users]


@pytest.fixture(scope="module")
def node():
    with running() as made:
        yield made


def know(node: Node, uid: int, name: str) -> None:
    """Let the user `uid` have a workload that ended."""
    folders = Folders(node.state, node.run_dir).of_user(uid)
    folders.make(name)
    folders.log(name).write_text(f"secret of {uid}\n")
    with state.opened(folders.database) as database:
        database.put(
            Workload(
                name=name,
                command=("true",),
                working_directory="/",
                options=Options(),
                store="",
                created_ns=1,
                changed_ns=1,
                state=State.COMPLETED,
            )
        )


def exchange(path: str, message: str) -> str:
    """Send `message`, in hexadecimal, and return everything that comes back."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(bytes.fromhex(message))
            connection.shutdown(socket.SHUT_WR)
        content = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                content += piece
        return content.decode()


def try_to_write(path: str) -> list[str]:
    """Ask for a log and try everything that could change it."""
    with client.Answering(path, asked.Logs(name="train")) as answering:
        answering.answer()
        descriptor = answering.descriptor()
    found = [os.pread(descriptor, 100, 0).decode()]
    for attempt in (
        lambda: os.write(descriptor, b"x"),
        lambda: os.ftruncate(descriptor, 0),
        lambda: os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR),
    ):
        try:
            attempt()
            found.append("done")
        except OSError as error:
            found.append(type(error).__name__)
    return found


def connect_often(path: str, count: int, most: int) -> tuple[int, float]:
    """Hold `count` connections until all but `most` are over; return how many were turned away, and the seconds it took."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    began_s = time.monotonic()
    held = []
    for _ in range(count):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        held.append(connection)
    over: list[bytes] = []
    while len(over) < count - most and time.monotonic() < began_s + LIMIT_S:
        over = []
        for connection in held:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                over.append(connection.recv(1 << 12, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        time.sleep(0.05)
    return sum(b"connections open" in said for said in over), time.monotonic() - began_s


def hold(path: str, count: int) -> int:
    """Hold `count` connections until there is no more to read from stdin."""
    held = []
    for _ in range(count):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect(path)
    sys.stderr.write("held\n")
    sys.stderr.flush()
    sys.stdin.read()
    return len(held)


def ask_at_once(path: str, count: int) -> list[str]:
    """Ask `count` times without waiting for answers, and return what came back."""
    held = []
    for _ in range(count):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            held[-1].sendall(asked.encode(asked.Asked(what=asked.Status())))
    found = []
    for connection in held:
        with contextlib.suppress(ConnectionResetError), connection.makefile() as lines:
            found.append(lines.readline())
    return found


def pretend(path: str) -> str:
    """Listen at `path` as if this were the agent, and ask there."""
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(path)
        fake.listen()
        try:
            client.ask(path, asked.Status())
        except errors.InputDenied as error:
            return str(error)
    return ""


def refusals(paths: list[str]) -> int:
    """Return how many of `paths` may not be read."""
    refused = 0
    for path in paths:
        try:
            Path(path).read_bytes()
        except PermissionError:
            refused += 1
    return refused


def test_each_user_has_their_own_workloads_and_sees_no_trace_of_anothers(node):
    know(node, ALICE, "train")
    (seen,) = ask_as(node, ALICE, asked.Ps())
    assert [one["name"] for one in seen["workloads"]] == ["train"]
    kinds = (asked.Logs, asked.Checkpoint, asked.Stop, asked.Remove, asked.Check)

    def whats(name: str) -> list:
        return [asked.Ps(names=(name,)), *(kind(name=name) for kind in kinds), asked.StoreList(name=name), asked.StoreShow(checkpoint=name)]

    none, *others = ask_as(node, BOB, asked.Ps(), *whats("train"), *whats("nowhere"))
    assert none["workloads"] == []
    # What is another's is answered exactly as what is nowhere.
    count = len(others) // 2
    of_alice = [[word.replace("train", "X") for word in one] for one in others[:count]]
    assert of_alice == [[word.replace("nowhere", "X") for word in one] for one in others[count:]]
    assert {one[0] for one in of_alice} <= {"workload-missing", "store-missing"}
    assert ask_as(node, ALICE, asked.Ps(names=("train",)))[0]["workloads"]


def test_only_root_names_another_user(node):
    know(node, ALICE, "train")
    for user in (ALICE, 0):
        assert ask_as(node, BOB, asked.Ps(), user=user)[0][0] == "usage"
    assert [one["name"] for one in client.ask(str(node.socket), asked.Ps(), user=ALICE)["workloads"]] == ["train"]


def test_the_log_is_handed_over_to_read_and_not_to_write(node):
    know(node, ALICE, "train")

    assert as_user(ALICE, try_to_write, str(node.socket)) == [f"secret of {ALICE}\n", "OSError", "OSError", "PermissionError"]


@pytest.mark.parametrize(
    "message",
    [
        b"\0" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        b"ASK1" + struct.pack("<I", 0xFFFFFFFF),
        b"ASK1" + struct.pack("<I", 1 << 20) + b"x" * 20000,
        b"ASK1" + struct.pack("<I", 4) + b"null",
        b"ASK1" + struct.pack("<I", 5) + b"\xff\xfe\x00\x01\x02",
        *(
            b"ASK1" + struct.pack("<I", len(document)) + document
            for document in (
                b'{"what":{"type":"rm-rf"}}',
                b'{"what":{"type":"ps","uid":0}}',
                b'{"what":{"type":"ps"},"owner":0}',
                b'{"what":{"type":"ps","names":[1]}}',
                b'{"what":{"type":"logs","name":"../../root"}}',
                b'{"what":{"type":"logs","name":"a/b"}}',
                b'{"what":{"type":"stop","name":"a","grace_s":1e999}}',
                b"[" * 60000,
            )
        ),
        b"PSR1" + struct.pack("<I", 3) + b"a\0b",
        b"PSR1" + struct.pack("<I", 0xFFFFFFFF),
        b"ASK1" + struct.pack("<I", 100) + b"{",
    ],
    ids=lambda message: repr(bytes(message[:40])),
)
def test_noise_is_refused_and_costs_nothing(node, message):
    answer = as_user(ALICE, exchange, str(node.socket), message.hex())
    assert answer, "an answer says why"
    last = json.loads(answer.splitlines()[-1])
    told = last.get("refused") or last["ended"]["error"]
    assert told["code"] in ("usage", "quantity", "workload-missing")
    assert "Traceback" not in answer
    assert client.ask(str(node.socket), asked.Status())


def test_a_request_that_dribbles_or_stops_does_not_keep_anybody_waiting(node):
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(node.socket))
        slow.sendall(b"ASK1" + struct.pack("<I", 100))
        assert client.ask(str(node.socket), asked.Status())
        slow.settimeout(LIMIT_S)
        told = json.loads(slow.makefile().readline())
    assert told["refused"]["code"] == "usage"


def test_a_thousand_idle_connections_of_one_user_keep_nobody_else_out(node):
    before = len(os.listdir(f"/proc/{node.agent.pid}/fd"))
    turned_away, took_s = as_user(ALICE, connect_often, str(node.socket), 1000, 32)
    # Where connecting takes as long as one may be idle, those that were closed for that have made room for as many again.
    rounds = 1 + int(took_s / Bounds().idle_s)
    assert 1000 - 32 * rounds <= turned_away <= 1000 - 32
    assert ask_as(node, BOB, asked.Status())[0]["seats"] == 0
    wait_for(lambda: len(os.listdir(f"/proc/{node.agent.pid}/fd")) <= before)
    assert ask_as(node, ALICE, asked.Status())[0]["seats"] == 0


def test_others_are_served_while_a_user_holds_all_connections():
    with running() as node:
        holder = start_as_user(ALICE, hold, str(node.socket), 40)
        try:
            assert holder.stderr.readline() == b"held\n"
            assert ask_as(node, BOB, asked.Status())[0]["seats"] == 0
            assert client.ask(str(node.socket), asked.Status())["seats"] == 0
        finally:
            holder.stdin.close()
            holder.wait(timeout=LIMIT_S)
            for pipe in (holder.stdout, holder.stderr):
                pipe.close()


def test_a_connection_that_says_nothing_is_closed_after_a_while(node):
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(node.socket))
        idle.settimeout(LIMIT_S)
        assert idle.recv(1) == b""


def test_who_asks_for_too_much_at_once_is_turned_away_and_others_are_not():
    with running() as node:
        said = as_user(ALICE, ask_at_once, str(node.socket), 100)
        served = [line for line in said if '"answer"' in line]
        refused = [line for line in said if '"code":"agent"' in line]
        assert served
        assert refused
        assert len(served) + len(refused) == len(said)
        assert all("going on already" in line or "times a minute" in line or "connections open" in line for line in refused)
        assert node.noted("refuse", uid=ALICE)
        assert ask_as(node, BOB, asked.Status()) == [{"version": __version__, "seats": 0, "most_seats": 256}]
        # One that was answered counts until its process has ended.
        wait_for(lambda: not process.children(node.agent.pid), what="for the end of what was asked before")
        # The numbers of the connections that were refused are given out again.
        said = as_user(BOB, ask_at_once, str(node.socket), 12)
        assert [line for line in said if '"answer"' not in line] == []
        wait_for(lambda: ask_as(node, ALICE, asked.Status())[0] == {"version": __version__, "seats": 0, "most_seats": 256})


def test_a_second_agent_does_not_take_the_socket_away(node):
    second = subprocess.run([sys.executable, "-m", "perdure", "agent"], env=node.environment, capture_output=True, timeout=LIMIT_S, cwd="/")
    assert second.returncode == errors.WorkloadBusy.exit_status, second.stderr
    assert client.ask(str(node.socket), asked.Status())


def test_an_ordinary_user_cannot_be_the_agent_and_is_not_believed_to_be_it(node):
    assert node.run(ALICE, "agent").returncode == errors.EnvironmentUnfit.exit_status

    assert f"listens user {ALICE}" in as_user(ALICE, pretend, str(node.home(ALICE) / "fake.sock"))


def test_a_process_of_another_user_or_one_that_has_gone_cannot_be_checked(node):
    own = subprocess.Popen(["sleep", "600"], user=ALICE, group=ALICE, extra_groups=[])
    try:
        others = [asked.Check(pid=pid, start_ticks=process.stat(pid).start_ticks) for pid in (1, os.getpid(), node.agent.pid)]
        ticks = process.stat(own.pid).start_ticks
        # A PID that another process has by now: the start says so.
        recycled, right = (asked.Check(pid=own.pid, start_ticks=each) for each in (ticks + 1, ticks))
        *refused, found = ask_as(node, ALICE, *others, recycled, asked.Check(pid=2**22, start_ticks=1), right)
        assert {one[0] for one in refused} == {"workload-missing"}
        assert found["pid"] == own.pid
        assert ask_as(node, BOB, right)[0][0] == "workload-missing"
    finally:
        own.kill()
        own.wait()


def test_every_action_is_noted_with_who_and_what_and_nothing_can_be_forged(node):
    know(node, ALICE, "noted")
    node.run(ALICE, "ps", "noted")
    (begun, done) = node.noted("ps", uid=ALICE)[-2:]
    assert begun["result"] == "begun"
    assert done["result"] == "done"
    forged = 'x\n{"what":"forged","uid":0}'
    ask_as(node, ALICE, asked.StorePin(checkpoint=forged))
    assert not node.noted("forged")
    assert node.noted("store-pin", checkpoint=forged)
    assert os.stat(node.log).st_mode & 0o777 == 0o640
    assert os.stat(node.log).st_uid == 0


def test_root_does_without_and_a_user_without_an_agent_is_told_what_helps(node):
    done = node.run(ALICE, "run", "--", "true", env={"PERDURE_AGENT_SOCKET": "/nonexistent/agent.sock"})
    assert done.returncode == errors.EnvironmentUnfit.exit_status
    assert b"perdure agent" in done.stderr


def test_the_unit_starts_this_very_program(node):
    done = node.run(ALICE, "agent", "--unit")
    assert done.returncode == 0
    unit = done.stdout.decode()
    (start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith("/perdure agent")
    assert start.startswith("ExecStart=/")
    assert "KillMode=process" in unit


def test_it_tells_its_service_manager_that_it_is_ready(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(LIMIT_S)
        with running(NOTIFY_SOCKET=str(tmp_path / "notify")) as node:
            assert manager.recv(100) == b"READY=1"
            node.end()
            assert manager.recv(100) == b"STOPPING=1"
            # It stays as the sign that there will be another one.
            with socket.socket(socket.AF_UNIX) as client, pytest.raises(ConnectionRefusedError):
                client.connect(str(node.socket))


def test_the_store_of_users_has_to_be_roots_alone():
    with running() as node:
        node.store.mkdir(mode=0o755)
        node.store.chmod(0o777)
        know(node, ALICE, "train")
        assert ask_as(node, ALICE, asked.StoreList())[0][0] == "environment"
        node.store.chmod(0o755)
        assert ask_as(node, ALICE, asked.StoreList()) == [{"checkpoints": []}]
        # A folder on the way that is a link, or another user's.
        users = node.store / "users"
        users.symlink_to(node.home(ALICE))
        assert ask_as(node, ALICE, asked.StoreList())[0][0] == "environment"
        users.unlink()
        users.mkdir()
        os.chown(users, ALICE, ALICE)
        assert ask_as(node, ALICE, asked.StoreList())[0][0] == "environment"


def test_folders_of_users_are_roots_alone(node):
    know(node, ALICE, "train")
    owner = Owner(uid=ALICE, gid=ALICE, groups=())
    for path in (node.state, node.state / "users", node.user_state(owner.uid), node.user_state(owner.uid) / "workloads" / "train"):
        found = path.stat()
        assert (found.st_uid, found.st_mode & 0o777) == (0, 0o700), path

    paths = (node.user_state(ALICE) / "state.db", node.user_state(ALICE) / "workloads" / "train" / "log", node.log)
    assert as_user(ALICE, refusals, [str(path) for path in paths]) == len(paths)
