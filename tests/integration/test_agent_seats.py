"""Workloads of ordinary users under the agent, with a real CRIU: as whom they run, how they end and come back, and what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from agents import ALICE, BOB, COUNT, Node, ask_as, ends, lines, needs_root, running, start_as_user
from supervised import LIMIT_S, command_line, remove_group, wait_for
from writing import holding

from perdure import errors
from perdure._version import __version__
from perdure.agent import asked, client, slots, waiting
from perdure.base.proc import process
from perdure.cli import agent_run, console

pytestmark = [needs_root, pytest.mark.users, pytest.mark.criu]

WAIT = "echo up; exec sleep 600"
"""For sh -c: says that it runs, and waits."""


@pytest.fixture(scope="module")
def node():
    with running(AWS_SECRET_ACCESS_KEY="of-root-alone") as made:
        yield made


def main_of(node: Node, uid: int, name: str) -> int:
    """PID of the workload's first process below its init."""
    init = node.ps(uid, name)["pid"]
    wait_for(lambda: process.children(init))
    return process.children(init)[0]


def opened(pid: int) -> dict[int, str]:
    """Where the descriptors of a process lead. One that is closed meanwhile is left out."""
    found = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(each.name)] = os.readlink(each)
    return found


def goes_on(pid: int) -> bool:
    """Tell whether a process is neither stopped nor dead: one that runs may be seen in any other state, as in D while it forks."""
    stat = process.stat(pid)
    return not (stat.is_stopped or stat.is_dead)


def test_it_runs_as_the_user_with_nothing_of_roots_and_ends_with_its_status(node):
    script = "id -u; id -g; id -G; umask; pwd; ulimit -n; grep Cap /proc/self/status; cat /proc/self/oom_score_adj; env; exit 7"
    done = node.run(
        ALICE,
        *("run", "--name", "who", "--every", "never", "--", "sh", "-c", script),
        groups=(27, 20030),
        limits=("RLIMIT_NOFILE=777", "RLIMIT_FSIZE=5000000"),
        env={"MINE": "kept"},
        umask=0o027,
    )
    assert done.returncode == 7, (done.stderr.decode(), node.audit()[-3:])
    told = done.stdout.decode().splitlines()
    assert told[:2] == [str(ALICE), str(ALICE)]
    assert set(told[2].split()) == {str(ALICE), "27", "20030"}
    assert told[3:6] == ["0027", str(node.home(ALICE)), "777"]
    capabilities = dict(line.split(":\t") for line in told if line.startswith("Cap"))
    assert {capabilities[kind] for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    variables = dict(line.split("=", 1) for line in told if "=" in line)
    assert variables["MINE"] == "kept"
    assert variables["HOME"] == str(node.home(ALICE))
    assert not [name for name in variables if name.startswith("AWS_")]
    assert not [name for name, value in variables.items() if "of-root-alone" in value]


def test_its_descriptors_are_its_own_streams_and_nothing_else(node):
    client = node.begin(ALICE, "fds", "sh", "-c", WAIT)
    main = main_of(node, ALICE, "fds")
    # While a program is being loaded it has more open, for a moment.
    wait_for(lambda: command_line(main)[:1] == [b"sleep"] and set(opened(main)) == {0, 1, 2}, what=f"for no more: {opened(main)}")
    # Root's own processes hold nothing of another user's; who is not root sees nothing of them at all.
    seat = node.seat(ALICE, "fds")
    assert not [each for each in opened(seat).values() if f"/{BOB}/" in each]
    assert "of-root-alone" not in Path(f"/proc/{seat}/cmdline").read_text()
    assert process.environment(seat)["AWS_SECRET_ACCESS_KEY"] == "of-root-alone"
    assert "HOME" not in process.environment(node.ps(ALICE, "fds")["pid"]), "the init, which is root, has nothing of the user's"
    client.send_signal(signal.SIGTERM)
    client.send_signal(signal.SIGTERM)
    client.wait(timeout=240)


HELD_OPEN = """
import os, time
table = os.open("table", os.O_RDWR | os.O_CREAT)
os.pwrite(table, b"then", 0)
print("up", flush=True)
time.sleep(600)
"""


def test_check_foresees_who_writes_to_its_files(node):
    table = node.home(ALICE) / "table"
    running = node.begin(ALICE, "shared", "python3", "-c", HELD_OPEN)
    node.json(ALICE, "checkpoint", "shared", "--stop")
    assert running.wait(LIMIT_S) == 75
    table.write_bytes(b"now, and more")
    codes = {"restore-output-in-use", "restore-output-shared"}
    assert not codes & {one["code"] for one in node.json(ALICE, "check", "--restore", "shared")["findings"]}
    with holding((str(table), os.O_WRONLY, 0, 0)) as pid:
        foreseen = node.run(ALICE, "check", "--restore", "shared", "--json")
        assert foreseen.returncode == 4, foreseen.stderr.decode()
        told = [(one["code"], one["path"], one["pid"]) for one in json.loads(foreseen.stdout)["findings"] if one["code"] in codes]
        assert told == [("restore-output-in-use", str(table), pid)]
        assert node.run(ALICE, "restore", "shared").returncode == 22
    assert table.read_bytes() == b"now, and more"
    # What was read of it for that is gone.
    assert not list(node.folder.rglob("perdure-check-*"))
    assert node.run(ALICE, "rm", "shared", "--checkpoints").returncode == 0


def test_saved_and_gone_on_with_it_loses_nothing_and_its_output_is_whole(node):
    command = ("sh", "-c", COUNT % (4000, "0.05", 3))
    first = node.begin(ALICE, "move", *command)
    saved = node.json(ALICE, "checkpoint", "move", "--stop")
    out = first.communicate(timeout=240)[0]
    assert first.returncode == 75
    assert saved["id"] == "move@1.1"
    assert node.ps(ALICE, "move")["state"] == "stopped"
    with node.hurry(ALICE):
        again = node.run(ALICE, "run", "--name", "move", "--every", "never", "--", *command)
    assert again.returncode == 3, again.stderr.decode()
    assert out + again.stdout == lines(4000)
    assert b"goes on from move@1.1" in again.stderr
    log = node.run(ALICE, "logs", "move")
    assert log.stdout == lines(4000)
    assert node.run(ALICE, "logs", "move", "--tail", "2").stdout == b"line 3998\nline 3999\n"
    (listed,) = node.json(ALICE, "store", "ls", "move")["checkpoints"]
    assert listed["id"] == "move@1.1"
    shown = node.json(ALICE, "store", "show", "move@1.1")
    assert shown["owner"] == {"uid": ALICE, "gid": ALICE, "groups": []}
    # A completed one comes back only when that is asked for.
    with node.hurry(ALICE):
        back = node.run(ALICE, "restore", "move", "--from", "move@1.1")
    assert back.returncode == 3, back.stderr.decode()
    # Nothing of it is there for Bob.
    kinds = (asked.Logs, asked.Checkpoint, asked.Stop, asked.Remove, asked.StoreList)
    show = (asked.StoreShow(checkpoint="move@1.1"), asked.CheckRestore(checkpoint="move"), asked.StoreDelete(checkpoint="move@1.1"))
    for told in ask_as(node, BOB, *(kind(name="move") for kind in kinds), *show):
        assert told[0] in ("workload-missing", "store-missing"), told
    assert node.run(BOB, "restore", "move", "--from", "move@1.1").returncode in (10, 21)
    pin, unpin = (asked.StorePin(checkpoint="move@1.1", unpin=each) for each in (False, True))
    pinned, _ = ask_as(node, ALICE, pin, unpin)
    assert pinned == {"id": "move@1.1", "pinned": True}
    assert node.json(ALICE, "store", "prune", "move", "--keep-last", "1")["removed"] == []
    verified = node.json(ALICE, "store", "verify")
    assert "move@1.1" in verified["good"]
    assert (verified["lost"], verified["damages"]) == ([], [])
    assert node.run(ALICE, "rm", "move", "--checkpoints").returncode == 0
    assert node.run(ALICE, "store", "ls", "move").returncode == errors.WorkloadMissing.exit_status


def test_logs_follow_until_it_ends_and_stop_ends_it(node):
    client = node.begin(ALICE, "follow", "sh", "-c", COUNT % (100000, "0.1", 0))
    follower = node.client(ALICE, "logs", "-f", "follow", bufsize=0)
    assert follower.stdout.readline() == b"line 0\n"
    done = node.run(ALICE, "stop", "follow", "--grace", "1s")
    assert done.returncode == 0, done.stderr.decode()
    out, _ = follower.communicate(timeout=240)
    assert follower.returncode == 0
    assert out.startswith(b"line 1\n")
    client.communicate(timeout=240)
    assert node.ps(ALICE, "follow")["state"] in ("stopped", "failed")


def test_a_client_that_dies_leaves_nothing_behind(node):
    client = node.begin(ALICE, "dies", "sh", "-c", f"sleep 700 & {WAIT}")
    tree, seat = node.tree(ALICE, "dies"), node.seat(ALICE, "dies")
    client.kill()
    client.wait(timeout=LIMIT_S)
    for pid in (*tree, seat):
        ends(pid)
    assert node.ps(ALICE, "dies")["state"] in ("stopped", "failed", "lost")
    wait_for(lambda: node.noted("end", uid=ALICE, workload="dies"))


def test_signals_reach_the_workload_and_term_saves_it(node):
    script = "trap 'echo hup-like; exit 9' USR2; echo up; while :; do sleep 0.1; done"
    client = node.begin(ALICE, "signals", "sh", "-c", script)
    client.send_signal(signal.SIGUSR2)
    assert client.wait(timeout=240) == 9
    client = node.begin(ALICE, "saved-by-term", "sh", "-c", WAIT)
    client.send_signal(signal.SIGTERM)
    _, err = client.communicate(timeout=240)
    assert client.returncode == 75, err.decode()
    assert node.ps(ALICE, "saved-by-term")["checkpoints"] == 1


def test_in_the_background_it_outlives_the_command(node):
    done = node.run(ALICE, "run", "-d", "--name", "behind", "--every", "never", "--", "sh", "-c", WAIT)
    assert done.returncode == 0, done.stderr.decode()
    assert node.ps(ALICE, "behind")["state"] == "running"
    assert slots.count(node.user_state(ALICE)) == 1
    assert node.run(ALICE, "stop", "behind", "--grace", "0").returncode == 0


def test_events_go_where_the_user_may_write_and_nowhere_else(node):
    own, roots = node.home(ALICE) / "events", node.folder / "events"
    assert node.run(ALICE, "run", "--name", "told", "--events", own, "--", "true").returncode == 0
    assert [json.loads(line)["phase"] for line in own.read_text().splitlines()][-1] == "ended"
    assert own.stat().st_uid == ALICE
    assert node.run(ALICE, "run", "--name", "told", "--events", roots, "--", "true").returncode != 0
    assert not roots.exists()


@pytest.mark.parametrize(
    "words",
    [("--store", "/tmp/x"), ("--key-file", "/etc/shadow"), ("--adopt", "1"), ("--metrics", "/tmp/x.prom")],
    ids=lambda words: words[0],
)
def test_what_only_root_may_decide_is_refused(node, words):
    done = node.run(ALICE, "run", *words, "--", "true")
    assert done.returncode in (errors.UsageError.exit_status, errors.Unsupported.exit_status)


def test_a_command_that_is_not_there_is_told_as_a_shell_would(node):
    assert node.run(ALICE, "run", "--", "no-such-command").returncode == 127
    (node.home(ALICE) / "plain").write_text("text")
    assert node.run(ALICE, "run", "--", "./plain").returncode == 126
    # A working directory or program that only root can reach is not reached for her.
    closed = node.folder / "closed"
    closed.mkdir(mode=0o700)
    shutil.copy("/bin/true", closed / "true")
    assert node.run(ALICE, "run", "--", str(closed / "true")).returncode in (126, 127)


def test_a_set_uid_program_in_it_is_never_saved_and_the_workload_goes_on(node):
    if os.statvfs(node.folder).f_flag & os.ST_NOSUID:
        pytest.skip(f"set-uid programs have no effect in {node.folder}")
    program = node.folder / "suid-sleep"
    shutil.copy(shutil.which("sleep", path="/usr/bin:/bin"), program)
    program.chmod(0o4755)
    client = node.begin(ALICE, "suid", "sh", "-c", f"{program} 600 & echo up; wait")
    inside = main_of(node, ALICE, "suid")
    wait_for(lambda: any(process.status(pid).uids[1] == 0 for pid in process.descendants(inside)), what="for a root process")
    done = node.run(ALICE, "checkpoint", "suid")
    assert done.returncode == errors.CheckpointRefused.exit_status, done.stderr.decode()
    assert goes_on(inside)
    assert node.run(ALICE, "check", "suid").returncode in (4, 22)
    assert node.ps(ALICE, "suid")["checkpoints"] == 0
    assert node.run(ALICE, "stop", "suid", "--grace", "0").returncode == 0
    client.communicate(timeout=240)


def test_it_comes_back_with_no_more_groups_than_its_user_has_now(node):
    command = ("sh", "-c", f"id -G; {WAIT}")
    client = node.begin(ALICE, "groups", *command, groups=(27, 20030))
    assert node.run(ALICE, "checkpoint", "groups", "--stop").returncode == 0
    client.communicate(timeout=240)
    done = node.run(ALICE, "restore", "groups", groups=(20030,))
    assert done.returncode == errors.RestoreRefused.exit_status, done.stderr.decode()
    assert b"27" in done.stderr
    back = node.client(ALICE, "restore", "groups", groups=(27, 20030))
    wait_for(lambda: node.ps(ALICE, "groups")["state"] == "running", what="for groups")
    main = main_of(node, ALICE, "groups")
    assert set(process.status(main).groups) - {ALICE} == {27, 20030}
    assert set(process.status(main).uids) == {ALICE}
    assert process.status(main).capabilities == 0
    node.run(ALICE, "stop", "groups", "--grace", "0")
    back.communicate(timeout=240)


def test_an_image_of_another_users_repository_is_not_taken_for_ones_own(node):
    client = node.begin(ALICE, "theft", "sh", "-c", WAIT)
    assert node.run(ALICE, "checkpoint", "theft", "--stop").returncode == 0
    client.communicate(timeout=240)
    bob = node.begin(BOB, "theft", "sh", "-c", WAIT)
    assert node.run(BOB, "checkpoint", "theft", "--stop").returncode == 0
    bob.communicate(timeout=240)
    # As if somebody had moved the file of one into the other's store: it is sealed with another key.
    (hers,) = (node.store / "users" / str(ALICE) / "workloads" / "theft" / "manifests").iterdir()
    (his,) = (node.store / "users" / str(BOB) / "workloads" / "theft" / "manifests").iterdir()
    his.write_bytes(hers.read_bytes())
    done = node.run(BOB, "restore", "theft")
    assert done.returncode not in (0, 75), done.stderr.decode()
    assert node.run(BOB, "restore", "theft", "--from", "theft@1.1").returncode == errors.StoreCorrupt.exit_status
    assert node.ps(BOB, "theft")["state"] != "running"


@pytest.mark.parametrize("part", ["manifests", "packs"])
def test_an_image_that_was_edited_is_refused(node, part):
    name = f"edited-{part}"
    client = node.begin(ALICE, name, "sh", "-c", WAIT)
    assert node.run(ALICE, "checkpoint", name, "--stop").returncode == 0
    client.communicate(timeout=240)
    store = node.store / "users" / str(ALICE)
    found = [path for path in store.rglob("*") if path.is_file() and part in path.parts and (part == "packs" or name in path.parts)]
    assert found
    for path in found:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    done = node.run(ALICE, "restore", name, "--from", f"{name}@1.1")
    assert done.returncode == errors.StoreCorrupt.exit_status, done.stderr.decode()
    assert node.ps(ALICE, name)["state"] != "running"
    shutil.rmtree(store)  # other workloads of hers had packs there too


def test_a_link_where_an_output_was_leads_nowhere_and_roots_files_stay(node):
    treasure = node.folder / "treasure"
    treasure.write_text("root's\n")
    treasure.chmod(0o600)
    home = node.home(ALICE)
    script = "exec 5>>out; echo begun >&5; echo up; i=0; while :; do echo $i >&5; i=$((i+1)); sleep 0.05; done"
    for how in ("symlink", "hardlink"):
        name = f"link-{how}"
        client = node.begin(ALICE, name, "sh", "-c", script)
        assert node.run(ALICE, "checkpoint", name, "--stop").returncode == 0
        client.communicate(timeout=240)
        out = home / "out"
        out.unlink()
        if how == "symlink":
            out.symlink_to(treasure)
        else:
            os.link(treasure, out)
        before = treasure.read_bytes()
        done = node.run(ALICE, "restore", name, timeout_s=300)
        assert done.returncode not in (0, 75), done.stderr.decode()
        assert treasure.read_bytes() == before
        assert (treasure.stat().st_uid, treasure.stat().st_mode & 0o777) == (0, 0o600)
        out.unlink()


def test_outputs_that_only_root_can_read_do_not_go_into_a_checkpoint(node):
    treasure = node.folder / "sealed"
    treasure.write_text("nobody's business but root's")
    treasure.chmod(0o600)
    home = node.home(ALICE)
    (home / "way").symlink_to(treasure)
    client = node.begin(ALICE, "reads", "sh", "-c", WAIT, options=("--outputs", treasure, "--outputs", home / "way"))
    done = node.run(ALICE, "checkpoint", "reads")
    shown = node.run(ALICE, "store", "show", "reads", "--json")
    if done.returncode == 0:
        stored = json.loads(shown.stdout)["files"]
        assert not [one for one in stored if one["size_bytes"] == treasure.stat().st_size]
    assert b"business" not in done.stdout + done.stderr + shown.stdout
    node.run(ALICE, "stop", "reads", "--grace", "0")
    client.communicate(timeout=240)


def test_it_is_where_its_caller_is_control_groups_priority_and_processors(node):
    memory = Path("/sys/fs/cgroup/memory")
    group = (memory if memory.is_dir() else Path("/sys/fs/cgroup")) / f"perdure-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    cpu = min(os.sched_getaffinity(0))
    client = None
    try:
        client = node.client(
            ALICE,
            *("run", "--name", "place", "--every", "never", "--", "sh", "-c", WAIT),
            limits=("nice=5", f"cpu={cpu}"),
            preexec_fn=lambda: (group / "cgroup.procs").write_text("0"),
        )
        log = node.user_state(ALICE) / "workloads" / "place" / "log"
        # The log is there before the workload.
        wait_for(lambda: client.poll() is not None or (log.exists() and log.stat().st_size), what="for place")
        main = main_of(node, ALICE, "place")
        for pid in (main, node.seat(ALICE, "place")):
            assert process.cgroups(pid) == process.cgroups(client.pid)
            assert os.getpriority(os.PRIO_PROCESS, pid) == 5
            assert os.sched_getaffinity(pid) == {cpu}
        node.run(ALICE, "stop", "place", "--grace", "0")
        client.communicate(timeout=240)
    finally:
        if client is not None and client.poll() is None:
            client.kill()
            client.wait()
        remove_group(group)


@pytest.mark.parametrize(
    ("around", "said"),
    [(("unshare", "-m"), b"sees other mounts"), (("unshare", "-n"), b"another network"), (("setpriv", "--no-new-privs"), b"no_new_privs")],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_whoever_is_confined_is_refused(node, around, said):
    before = node.noted("run", uid=ALICE)
    done = subprocess.run(
        [*around, *node.command(ALICE, "run", "--", "true")],
        env=node.user_environment(ALICE),
        cwd=node.home(ALICE),
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == errors.Unsupported.exit_status, done.stderr.decode()
    assert said in done.stderr
    assert node.noted("run", uid=ALICE) == before


def test_the_agent_killed_while_a_checkpoint_is_made_stops_nothing():
    with running() as node:
        client = node.begin(ALICE, "goes-on", "sh", "-c", COUNT % (100000, "0.05", 0))
        asking = node.client(ALICE, "checkpoint", "goes-on")
        wait_for(lambda: node.noted("checkpoint", uid=ALICE, result="begun"))
        node.end(signal.SIGKILL)
        out, err = asking.communicate(timeout=240)
        assert asking.returncode == 0, err.decode()
        assert b"goes-on@1.1" in out
        node.start()
        seen = node.ps(ALICE, "goes-on")
        assert (seen["state"], seen["checkpoints"]) == ("running", 1)
        assert goes_on(main_of(node, ALICE, "goes-on"))
        assert node.run(ALICE, "checkpoint", "goes-on", "--stop").returncode == 0
        client.communicate(timeout=240)
        assert client.returncode == 75


def test_a_seat_killed_while_a_checkpoint_is_made_leaves_no_half_and_no_frozen_process():
    with running() as node:
        client = node.begin(ALICE, "cut", "sh", "-c", COUNT % (100000, "0.05", 0))
        assert node.run(ALICE, "checkpoint", "cut").returncode == 0
        tree, seat = node.tree(ALICE, "cut"), node.seat(ALICE, "cut")
        asking = node.client(ALICE, "checkpoint", "cut")
        wait_for(lambda: len(node.noted("checkpoint", uid=ALICE, result="begun")) == 2)
        os.kill(seat, signal.SIGKILL)
        for pid in (seat, *tree):
            ends(pid)
        asking.communicate(timeout=240)
        client.communicate(timeout=240)
        assert client.returncode == errors.AgentUnavailable.exit_status
        node.end(signal.SIGKILL)
        node.start()
        wait_for(lambda: node.noted("repair", uid=ALICE, workload="cut", result="done"))
        assert node.ps(ALICE, "cut")["state"] == "lost"
        assert not [each for each in Path("/dev/shm").glob("perdure-*") if _names(each, node)]
        checkpoints = [one["id"] for one in node.json(ALICE, "store", "ls", "cut")["checkpoints"]]
        assert checkpoints in (["cut@1.1"], ["cut@1.1", "cut@1.2"])
        back = node.client(ALICE, "run", "--name", "cut", "--every", "never", "--", "sh", "-c", COUNT % (100000, "0.05", 0))
        wait_for(lambda: node.ps(ALICE, "cut")["state"] == "running", what="for cut")
        assert node.run(ALICE, "stop", "cut", "--grace", "0").returncode == 0
        _, err = back.communicate(timeout=240)
        assert re.search(rb"goes on from cut@1\.[12]", err), err.decode()


def _names(folder: Path, node: Node) -> bool:
    """Tell whether a staging folder is one of this node's: its log names the node's folder. Another's may be removed meanwhile."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return any(str(node.folder).encode() in path.read_bytes() for path in folder.rglob("*.log"))
    return False


def run_patiently(agent_socket: str, home: str) -> int:
    """What `perdure run` does, but that it waits longer for the agent than a busy machine takes to start one."""
    waiting.PATIENCE_S = LIMIT_S
    os.chdir(home)
    options = [("name", "patient"), ("every", "never")]
    command = ("sh", "-c", "echo once >> started; exit 6")
    return agent_run.run(agent_socket, command, dict(os.environ), options, console.Common(), events=None)


def ask_patiently(agent_socket: str) -> str:
    """Ask for the status, and wait as long for the next agent."""
    client.PATIENCE_S = LIMIT_S
    return client.ask(agent_socket, asked.Status())["version"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_waits_for_the_next_agent(number):
    with running() as node:
        node.end(number)
        with start_as_user(ALICE, run_patiently, str(node.socket), str(node.home(ALICE))) as waiter:
            said = waiter.stderr.readline()
            assert b"waiting for the node's agent" in said, said + waiter.stderr.read()
            node.start()
            out, err = waiter.communicate(timeout=240)
            assert (waiter.returncode, out) == (0, b"6"), err.decode()
            assert b"waiting" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_agent_that_ends_as_it_is_asked_lets_the_next_one_answer(number):
    """It stands still while they connect and ask, so that it has taken none of the requests when it hears that it is to end."""
    with running() as node, contextlib.ExitStack() as stack:
        made = f"/.{node.agent.pid}\n"  # the name of the agent's socket, and of each connection to it, taken or not

        def connected() -> int:
            return Path("/proc/net/unix").read_text().count(made)

        node.agent.send_signal(signal.SIGSTOP)
        wait_for(lambda: process.stat(node.agent.pid).is_stopped)
        before = connected()
        runner = stack.enter_context(start_as_user(ALICE, run_patiently, str(node.socket), str(node.home(ALICE))))
        askers = [stack.enter_context(start_as_user(uid, ask_patiently, str(node.socket))) for uid in (ALICE, BOB)]
        wait_for(lambda: connected() == before + 3, what="for those who ask")
        wait_for(lambda: all(process.stat(one.pid).state == "S" for one in (runner, *askers)))
        node.agent.send_signal(number)
        node.agent.send_signal(signal.SIGCONT)
        node.agent.wait(LIMIT_S)
        node.start()
        out, err = runner.communicate(timeout=240)
        assert (runner.returncode, out) == (0, b"6"), err.decode()
        assert (node.home(ALICE) / "started").read_text() == "once\n"
        for one in askers:
            out, err = one.communicate(timeout=240)
            assert (one.returncode, json.loads(out)) == (0, __version__), err.decode()


def test_seats_go_on_while_the_agent_is_away_and_the_next_one_knows_them():
    with running() as node:
        stays = node.begin(ALICE, "stays", "sh", "-c", COUNT % (100000, "0.05", 0))
        node.end(signal.SIGTERM)
        assert stays.poll() is None
        assert node.run(ALICE, "ps").returncode == errors.AgentUnavailable.exit_status
        node.start()
        assert node.ps(ALICE, "stays")["state"] == "running"
        assert node.run(ALICE, "agent", "--status").stdout.endswith(b"1 of your 256 seats are taken\n")
        assert node.run(ALICE, "checkpoint", "stays", "--stop").returncode == 0
        assert stays.wait(timeout=240) == 75
