"""What goes wrong around a workload: killed supervisors, stores that are full, read-only or away, workloads that cannot be saved."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from supervised import COUNT, KILLED_ON_TRIAL, LIMIT_S, Site, command_line, descendants, is_zombie, lines, wait_for

from perdure import errors
from perdure.base.proc import machine, process
from perdure.checkpoint import tree
from perdure.store import documents, layout, lives, locks
from perdure.store.owners import Linux
from perdure.supervisor import place, state
from perdure.supervisor.record import Operation

pytestmark = pytest.mark.criu

MANY = 4000
"""Lines of a workload that ends: more than are written before what is tested is over, until `Site.hurry`."""

STATE = """
import os, sys, time
block = bytearray(16 << 20)
for number in range(int(sys.argv[1])):
    block[number * 4096 % len(block)] = number % 251
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(0.05)
"""
"""Like `COUNT`, with memory enough that a checkpoint takes a while."""


@pytest.fixture
def site(tmp_path, site):
    (site.work / "state.py").write_text(STATE)
    # Others may use the usual places at the same time.
    site.environment["PERDURE_STAGING"] = str(tmp_path / "staging")
    (tmp_path / "staging").mkdir()
    return site


@pytest.fixture
def disk(tmp_path):
    """A file system of 3 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def staged(site: Site) -> list[Path]:
    """What lies where images wait."""
    return list((site.folder / "staging").iterdir())


def frozen(pids: list[int]) -> list[int]:
    """Those of `pids` that live and are stopped or traced."""
    found = []
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            if process.stat(pid).is_stopped:
                found.append(pid)
    return found


def _dumping(pid: int) -> list[tree.Tree]:
    """CRIU below the supervisor `pid`, and its own children."""
    found = []
    for below in descendants(pid):
        with contextlib.suppress(errors.ProcessGone):
            ticks = process.stat(below).start_ticks
            if b"dump" in command_line(below):
                found.append(tree.Tree(below, ticks))
    return found


def _savers(pid: int) -> list[int]:
    """Those below the supervisor `pid` that store a checkpoint."""
    return [below for below in descendants(pid) if b"perdure.supervisor.saver" in command_line(below)]


def _place(site: Site) -> place.Place:
    return place.Place(url=str(site.state / "store"), key_file=None, cache=str(site.folder / "cache"), threads=1)


@contextlib.contextmanager
def _store_in_use(site: Site) -> Iterator[None]:
    """Keep everybody who wants to store something waiting, while the block runs."""
    with place.opened(_place(site)) as repository, locks.exclusive(repository, purpose="test", surroundings=Linux()):
        yield


def _goes_on(site: Site, words: bytes, *arguments: str, **options) -> bytes:
    """Run a workload until its supervisor has said `words`, a pattern; require that it came to its end, and return all that was said."""
    said = site.folder / "said"
    with open(said, "wb") as stderr:
        running = site.start("run", "--name", "a", *arguments, stderr=stderr, **options)
    wait_for(lambda: re.search(words, said.read_bytes()) or running.poll() is not None, what=f"for {words!r}")
    site.hurry()
    out, _ = running.communicate(timeout=LIMIT_S)
    assert (running.returncode, out) == (0, lines(MANY)), said.read_bytes().decode()
    return said.read_bytes()


def _said(site: Site) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return (site.work / "events").read_bytes()
    return b""


def test_the_supervisor_killed_at_random_instants(site):
    _kill_rounds(site, rounds=12, seed=20261129)


def test_what_a_criu_left_that_was_killed_with_its_supervisor_ends_with_the_next_run(site):
    run = ["run", "--name", "a", "--every", "never", "--", "python3", "count.py", "1000000", "0.02"]
    killed = site.start(*run)
    wait_for(lambda: site.log("a"))
    site.kill_all(killed)
    folder = site.folder / "staging" / "perdure-left"
    (folder / "images").mkdir(parents=True)
    (folder / "criu.py").write_text(KILLED_ON_TRIAL)
    with state.opened(site.state / "state.db") as database:
        row = Operation(number=0, workload="a", kind="checkpoint", began_ns=1, staging=str(folder), boot_id=machine.boot_id())
        database.begin(row)
    subprocess.run(["python3", folder / "criu.py", folder, "dump", "-D", folder / "images"], check=False)
    trial = int((folder / "trial").read_text())
    wait_for(lambda: process.stat(trial).is_stopped, what="for the trial to stop")
    again = site.start(*run)
    wait_for(lambda: is_zombie(trial), what="for the end of the trial")
    wait_for(lambda: not folder.exists(), what=f"for the end of {folder}")
    wait_for(lambda: site.ps("a")["state"] == "running", what="for the next run")
    assert site.run("stop", "a").returncode == 0
    again.communicate(timeout=LIMIT_S)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # each instant takes three seconds where nothing else runs
def test_the_supervisor_killed_at_200_random_instants(site):
    _kill_rounds(site, rounds=200, seed=1)


def _kill_rounds(site: Site, *, rounds: int, seed: int) -> None:
    generator = random.Random(seed)
    run = ["run", "--name", "a", "--every", "1s", "--events", "events", "--", "python3", "state.py", "1000000"]
    newest, of_criu = "", []
    for number in range(rounds):
        process = site.start(*run)
        wait_for(lambda process=process: b'"running"' in _said(site) or process.poll() is not None)
        assert process.poll() is None, process.stderr.read().decode()
        for one in of_criu:
            # Where CRIU had a child just then that has itself traced, it is the next run that ends that.
            wait_for(lambda one=one: not tree.is_alive(one), what=f"end of {one}, round {number}")
        if newest:
            assert f'"text":"a@{int(newest[:8])}.{int(newest[9:])}"'.encode() in _said(site), (number, newest, _said(site))
        os.truncate(site.work / "events", 0)
        asker = site.start("checkpoint", "a")
        wait_for(lambda asker=asker: b'"check"' in _said(site) or asker.poll() is not None)
        time.sleep(generator.uniform(0.0, 1.2))
        of_criu = _dumping(process.pid)
        below = [pid for pid in descendants(process.pid) if pid not in {one.pid for one in of_criu}]
        process.kill()
        process.wait()
        asker.communicate(timeout=LIMIT_S)
        for pid in below:
            wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}") or is_zombie(pid), what=f"end of {pid}, round {number}")
        assert frozen(below) == []
        there = site.manifests("a")
        assert not newest or (there and there[-1] >= newest), "a checkpoint was lost"
        newest = there[-1] if there else ""
    log = site.log("a")
    assert log == lines(len(log.splitlines()))
    last = site.start(*run)
    wait_for(lambda: b'"running"' in _said(site))
    assert site.run("stop", "a").returncode == 0
    last.communicate(timeout=LIMIT_S)
    assert staged(site) == []
    verified = site.run("store", "verify")
    assert verified.returncode == 0, verified.stderr.decode()


def test_the_supervisor_killed_at_random_instants_of_a_restore(site):
    _kill_restores(site, rounds=8, seed=7)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_supervisor_killed_at_200_random_instants_of_a_restore(site):
    _kill_restores(site, rounds=200, seed=8)


def _kill_restores(site: Site, *, rounds: int, seed: int) -> None:
    generator = random.Random(seed)
    run = ["run", "--name", "a", "--every", "never", "--events", "events", "--", "python3", "state.py", "1000000"]
    first = site.start(*run)
    wait_for(lambda: len(site.log("a").splitlines()) > 20)
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    first.communicate(timeout=LIMIT_S)
    for _ in range(rounds):
        process = site.start(*run)
        time.sleep(generator.uniform(0.1, 2.0))
        process.kill()
        process.communicate()
    (site.work / "events").unlink()
    last = site.start(*run)
    wait_for(lambda: b'"running"' in _said(site) or last.poll() is not None)
    # A restore that was cut off may leave tasks that wait for it: the next run ends them.
    wait_for(lambda: set(site.alive()) <= {last.pid, *descendants(last.pid)})
    assert b'"text":"a@1.1"' in _said(site)
    assert site.run("stop", "a").returncode == 0
    last.communicate(timeout=LIMIT_S)
    log = site.log("a")
    assert log == lines(len(log.splitlines()))
    assert staged(site) == []


def test_criu_killed_in_the_middle_of_a_dump(site):
    """The workload goes on; or, where CRIU's death took it along, that is said, and the next run goes on from the checkpoint before."""
    run = ["run", "--name", "a", "--every", "never", "--events", "events", "--", "python3", "state.py", "1000000"]
    generator = random.Random(3)
    process = site.start(*run)
    wait_for(lambda: site.log("a"))
    assert site.run("checkpoint", "a").returncode == 0
    for _ in range(6):
        asker = site.start("checkpoint", "a", "--json")
        wait_for(lambda asker=asker, process=process: _criu_of(process.pid) or asker.poll() is not None)
        time.sleep(generator.uniform(0.0, 0.1))
        found = _criu_of(process.pid)
        if found is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found, 9)
        _, err = asker.communicate(timeout=LIMIT_S)
        if b'"workload-lost"' in err:
            assert process.wait(LIMIT_S) == 75, process.stderr.read().decode()
            assert site.ps("a")["state"] == "lost"
            (site.work / "events").unlink()
            process = site.start(*run)
            wait_for(lambda process=process: b'"running"' in _said(site) or process.poll() is not None)
        length = len(site.log("a"))
        wait_for(lambda length=length: len(site.log("a")) > length)
    assert site.run("checkpoint", "a").returncode == 0
    assert site.run("stop", "a").returncode == 0
    log = site.log("a")
    assert log == lines(len(log.splitlines()))


def _criu_of(pid: int) -> int | None:
    for child in descendants(pid):
        if b"dump" in command_line(child)[1:]:
            return child
    return None


def test_a_full_store_lets_the_workload_go_on_and_says_so(site, disk):
    (site.work / "big.py").write_text(f"import os\nkept = os.urandom(6 << 20)\n{COUNT}")
    command = ("--", "python3", "big.py", str(MANY), "0.05")
    said = _goes_on(site, rb"no checkpoint: .*\n", "--every", "1s", "--store", str(disk / "store"), *command)
    assert re.search(rb"no checkpoint: .*(room|space|full).*; the workload goes on; next try in 30s", said), said.decode()


def test_a_read_only_store_lets_the_workload_go_on(site, disk):
    said = site.folder / "said"
    with open(said, "wb") as stderr:
        command = ("--store", str(disk / "store"), "--", "python3", "count.py", str(MANY), "0.05")
        process = site.start("run", "--name", "a", "--every", "2s", *command, stderr=stderr)
    wait_for(lambda: site.log("a"))
    # Not while something is being written there.
    wait_for(lambda: subprocess.run(["mount", "-o", "remount,ro", str(disk)], capture_output=True).returncode == 0)
    wait_for(lambda: b"no checkpoint: " in said.read_bytes() or process.poll() is not None)
    site.hurry()
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, lines(MANY)), said.read_text()
    assert b"no checkpoint: " in said.read_bytes()
    assert b"the workload goes on" in said.read_bytes()


def test_a_full_state_folder_lets_the_workload_go_on(site, disk):
    store = site.folder / "elsewhere"
    environment = {"PERDURE_STATE": str(disk / "state"), "PERDURE_STORE": str(store)}
    process = site.start("run", "--name", "a", "--every", "2s", "--", "python3", "count.py", "80", "0.1", env=environment)
    log = disk / "state" / "workloads" / "a" / "log"
    wait_for(lambda: log.exists() and log.read_bytes())
    with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, lines(80)), err.decode()


def test_no_room_for_images_lets_the_workload_go_on(site, disk):
    command = ("--every", "1s", "--", "python3", "state.py", str(MANY))
    said = _goes_on(site, rb"no checkpoint: .*\n", *command, env={"PERDURE_STAGING": str(disk)})
    assert b"there is no room for" in said


URING = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
ring = libc.syscall(425, 4, parameters)
print("ring", ring, flush=True)
while not os.path.exists("hurry"):
    time.sleep(0.05)
"""


def has_io_uring() -> bool:
    parameters = ctypes.create_string_buffer(120)
    ring = ctypes.CDLL(None).syscall(425, 4, parameters)
    if ring >= 0:
        os.close(ring)
    return ring >= 0


@pytest.mark.skipif(not has_io_uring(), reason="this kernel offers no io_uring")
def test_what_cannot_be_saved_is_refused_with_its_code_and_goes_on(site):
    (site.work / "uring.py").write_text(URING)
    process = site.start("run", "--name", "a", "--every", "1s", "--", "python3", "uring.py")
    wait_for(lambda: b"ring" in site.log("a"))
    asked = site.run("checkpoint", "a", "--json")
    assert asked.returncode == 22
    told = json.loads(asked.stderr.splitlines()[-1])["error"]
    assert "file-io-uring" in told["message"]
    (found,) = [one for one in told["findings"] if one["severity"] == "problem"]
    assert (found["code"], found["pid"] > 0) == ("file-io-uring", True)
    site.hurry()
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert b"no checkpoint: file-io-uring" in err


@pytest.mark.skipif(not has_io_uring(), reason="this kernel offers no io_uring")
def test_sigterm_to_one_that_cannot_be_saved_reaches_it(site):
    (site.work / "uring.py").write_text(URING)
    process = site.start("run", "--name", "a", "--every", "never", "--", "python3", "uring.py")
    wait_for(lambda: b"ring" in site.log("a"))
    process.terminate()
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143, err.decode()
    assert b"passing SIGTERM on" in err


def test_a_second_sigterm_ends_it_at_once(site):
    process = site.start("run", "--name", "a", "--every", "never", "--", "python3", "state.py", "1000000")
    wait_for(lambda: site.log("a"))
    assert site.run("checkpoint", "a").returncode == 0
    with _store_in_use(site):
        process.terminate()
        # What the first asks for waits for the store.
        wait_for(lambda: _savers(process.pid))
        process.terminate()
        _, err = process.communicate(timeout=100)
    assert process.returncode == 75, err.decode()
    assert b"SIGTERM came again" in err, err.decode()
    assert site.manifests("a") == ["00000001.00000001"]
    assert site.ps("a")["state"] == "stopped"


def test_the_saver_killed_lets_the_workload_go_on(site):
    process = site.start("run", "--name", "a", "--every", "never", "--events", "events", "--", "python3", "state.py", str(MANY))
    wait_for(lambda: site.log("a"))
    with _store_in_use(site):
        asker = site.start("checkpoint", "a")
        # It waits for the store, and cannot have done its work by the time that it is killed.
        wait_for(lambda: _savers(process.pid))
        (saver,) = _savers(process.pid)
        os.kill(saver, signal.SIGKILL)
        _, err = asker.communicate(timeout=LIMIT_S)
    assert asker.returncode == 20
    assert b"was ended by SIGKILL" in err
    assert site.run("checkpoint", "a").returncode == 0
    site.hurry()
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, lines(MANY))


def test_a_workload_killed_from_outside_can_be_gone_on_with(site):
    run = ["run", "--name", "a", "--every", "never", "--", "python3", "count.py", str(MANY), "0.05"]
    process = site.start(*run)
    wait_for(lambda: site.log("a"))
    # By hand: in the middle of the next one that came by the clock, it would not only be killed.
    assert site.run("checkpoint", "a").returncode == 0
    (worker,) = [pid for pid in descendants(process.pid) if b"count.py" in command_line(pid)][-1:]
    os.kill(worker, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 137
    assert site.ps("a")["state"] == "lost"
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0
    assert site.log("a") == lines(MANY)


def test_a_workload_that_dies_of_its_own_fault_is_never_resumed(site):
    run = ["run", "--name", "a", "--every", "1s", "--", "python3", "-c", "import os, time; time.sleep(2.5); os.abort()"]
    for epoch in (1, 2):
        done = site.run(*run)
        assert done.returncode == 134
        assert (site.ps("a")["state"], site.ps("a")["epoch"]) == ("failed", epoch)
    assert b"starting it anew" in done.stderr


def test_a_life_that_was_replaced_ends_its_workload(site):
    process = site.start("run", "--name", "a", "--every", "never", "--", "python3", "count.py", "100000", "0.05")
    wait_for(lambda: site.log("a"))
    with place.opened(_place(site)) as repository:
        first = documents.read(repository, layout.life_key("a", 1), lives.Begun)
        newer = msgspec.structs.replace(first, life=msgspec.structs.replace(first.life, epoch=2))
        documents.write(repository, layout.life_key("a", 2), newer, replace=False)
    below = descendants(process.pid)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 11, err.decode()
    assert b"life 2 has begun" in err
    assert all(not os.path.exists(f"/proc/{pid}") or is_zombie(pid) for pid in below)
    assert site.ps("a")["state"] == "lost"


def test_a_workload_that_stands_still_takes_no_good_checkpoints_place(site):
    said = site.folder / "said"
    with open(said, "wb") as stderr:
        running = site.start("run", "--name", "a", "--every", "1s", "--", "python3", "count.py", "100000", "0.01", stderr=stderr)
    wait_for(lambda: site.manifests("a"))
    (worker,) = [pid for pid in descendants(running.pid) if command_line(pid)[1:2] == [b"count.py"]]
    os.kill(worker, signal.SIGSTOP)
    # One that had begun before may still be made; then none, however long it hangs.
    wait_for(lambda: b"every process of it is stopped" in said.read_bytes())
    before = site.manifests("a")
    time.sleep(2.5)
    assert site.manifests("a") == before
    asked = site.run("checkpoint", "a", "--json")
    assert asked.returncode == 0, asked.stderr.decode()
    assert site.manifests("a")[-1] > before[-1]
    os.kill(worker, signal.SIGCONT)
    assert site.run("stop", "a").returncode == 0


DEADLOCK = """
import os, threading, time
number = 0
while not os.path.exists("hang"):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.02)
print("hangs", flush=True)
one, other = threading.Lock(), threading.Lock()
met = threading.Barrier(2)
def cross(first, second):
    with first:
        met.wait()
        with second:
            print("never", flush=True)
threading.Thread(target=cross, args=(one, other)).start()
cross(other, one)
"""


def _still(site: Site) -> dict[str, bool]:
    """Whether the workload stood still at each of its checkpoints, oldest first; empty while one of them is being removed."""
    with place.opened(_place(site)) as repository, contextlib.suppress(errors.WorkloadMissing):
        return {str(one): bool(repository.head(one).stood_still) for one in repository.checkpoints("a")}
    return {}


def _hung(site: Site, after: str = "") -> dict[str, bool]:
    """Wait until there are two from before the hang and one from after it, which is another one than `after`."""
    found: dict[str, bool] = {}

    def is_so() -> bool:
        nonlocal found
        found = _still(site)
        return list(found.values()) == [False, False, True] and list(found)[-1] != after

    wait_for(is_so)
    return found


def test_a_workload_that_hangs_pushes_out_no_checkpoint_from_before(site):
    (site.work / "deadlock.py").write_text(DEADLOCK)
    said = site.folder / "said"
    run = ["run", "--name", "a", "--every", "1s", "--keep", "2", "--events", "events", "--", "python3", "deadlock.py"]
    with open(said, "wb") as stderr:
        running = site.start(*run, stderr=stderr)
    wait_for(lambda: len(site.manifests("a")) == 2)
    (site.work / "hang").touch()
    wait_for(lambda: b"hangs" in site.log("a"))
    # It goes on being saved, for it may only be waiting; but each of these replaces the one before, and nothing else.
    *before, newest = _hung(site)
    for _ in range(3):
        *same, newest = _hung(site, newest)
        assert same == before
    assert said.read_bytes().count(b"it waits for something, or hangs") == 1
    # Brought back it hangs on, and that is known of it from the first checkpoint on.
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    running.wait(LIMIT_S)
    (site.work / "events").unlink()
    site.start(*run)
    wait_for(lambda: b'"committed"' in _said(site))
    *same, newest = _hung(site)
    assert same == before
    assert newest.startswith("a@2.")
    assert site.run("stop", "a").returncode == 0


def test_a_workload_whose_probe_fails_takes_no_good_checkpoints_place(site):
    said = site.folder / "said"
    probe = f"test ! -e {site.work}/broken"
    with open(said, "wb") as stderr:
        site.start("run", "--name", "a", "--every", "1s", "--probe", probe, "--", "python3", "count.py", "100000", "0.01", stderr=stderr)
    wait_for(lambda: site.manifests("a"))
    (site.work / "broken").touch()
    wait_for(lambda: b"the probe failed with 1: : it does not work" in said.read_bytes())
    before = site.manifests("a")
    # Whoever asks gets one all the same.
    asked = site.run("checkpoint", "a", "--json")
    assert asked.returncode == 0, asked.stderr.decode()
    assert site.manifests("a")[-1] > before[-1]
    assert site.run("stop", "a").returncode == 0


def _probed(site: Site, said: Path) -> subprocess.Popen[bytes]:
    """Start a workload of which the probe before a checkpoint by the clock, once `slow` is there, leaves `probed` and takes very long."""
    probe = "test ! -e slow || { touch probed; sleep 28; touch waited; }"
    with open(said, "wb") as stderr:
        run = ("run", "--name", "a", "--every", "1s", "--probe", probe, "--", "python3", "count.py", "100000", "0.01")
        started = site.start(*run, stderr=stderr)
    wait_for(lambda: site.manifests("a"))
    (site.work / "slow").touch()
    wait_for((site.work / "probed").exists)
    return started


def test_a_probe_that_takes_long_makes_way_for_who_asks(site):
    said = site.folder / "said"
    _probed(site, said)
    before = site.manifests("a")
    asked = site.run("checkpoint", "a", "--json")
    assert asked.returncode == 0, asked.stderr.decode()
    assert site.manifests("a")[-1] > before[-1]
    assert not (site.work / "waited").exists(), "it was waited for"
    assert b"no checkpoint" not in said.read_bytes()
    # The clock goes on.
    (site.work / "slow").unlink()
    (site.work / "probed").unlink()
    newest = site.manifests("a")[-1]
    wait_for(lambda: site.manifests("a")[-1] > newest)


@pytest.mark.parametrize("how", ["sigterm", "stop"])
def test_a_probe_that_takes_long_delays_no_end(site, how):
    said = site.folder / "said"
    started = _probed(site, said)
    if how == "stop":
        assert site.run("stop", "a").returncode == 0
    else:
        before = site.manifests("a")
        started.send_signal(signal.SIGTERM)
        assert started.wait(LIMIT_S) == 75
        assert site.manifests("a")[-1] > before[-1], "it was not saved"
    started.wait(LIMIT_S)
    assert not (site.work / "waited").exists(), "it was waited for"
    assert site.ps("a")["state"] == "stopped"
