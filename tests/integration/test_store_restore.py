"""`perdure store verify --restore` on real checkpoints, beside the workload that goes on; and one carried to another machine's store."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path

import pytest
from supervised import LIMIT_S, lines, wait_for

pytestmark = pytest.mark.criu

PROGRAM = """
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", 0))
outside = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
output = open("output", "a", buffering=1)
number = 0
while True:
    print("line", number, flush=True)
    output.write(f"{number}\\n")
    try:
        outside.sendall(b"x" if not os.path.exists("epoch-2") else b"!")
    except OSError:
        pass
    number += 1
    time.sleep(0.02)
"""


def read_all(descriptor: int, into: bytearray) -> None:
    """Read until nobody writes there any more."""
    with contextlib.suppress(OSError):
        while content := os.read(descriptor, 65536):
            into += content
    os.close(descriptor)


def test_it_is_restored_seen_to_live_and_leaves_nothing(site, tmp_path):
    (site.work / "program.py").write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = site.start("run", "--name", "w", "--every", "never", "--", "python3", "program.py", str(server.getsockname()[1]))
        connection, _ = server.accept()
        with connection:
            wait_for(lambda: (site.work / "output").exists() and (site.work / "output").stat().st_size > 20)
            assert site.run("checkpoint", "w").returncode == 0
            supervised = site.ps("w")["pid"]
            before = set(os.listdir(site.work))
            done = site.run("store", "verify", "--restore", "w", "--json")
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout)
            assert (told["id"], told["progress"], told["processes"]) == ("w@1.1", "moved", 2)
            assert set(os.listdir(site.work)) == before
            assert site.ps("w")["pid"] == supervised
            assert process.poll() is None
            with pytest.raises(BlockingIOError):
                server.setblocking(False)
                server.accept()  # the trial reached nobody
    written = [int(line) for line in (site.work / "output").read_text().split("\n")[:-1]]  # what is being written is not a line yet
    assert written == list(range(len(written)))


def test_what_cannot_be_restored_says_why(site):
    process = site.start("run", "--name", "w", "--every", "never", "--", "python3", "count.py", "100000", "0.02")
    wait_for(lambda: len(site.log("w")) > 20)
    assert site.run("checkpoint", "w", "--stop").returncode == 0
    process.wait(timeout=LIMIT_S)
    site.work.rename(site.folder / "moved")
    site.work.touch()
    try:
        done = site.run("store", "verify", "--restore", "w", "--json", cwd=site.folder)
        assert done.returncode in (20, 22)
        assert str(site.work) in json.loads(done.stderr)["error"]["message"]
    finally:
        site.work.unlink()
        (site.folder / "moved").rename(site.work)
    assert site.run("store", "verify", "--restore", "w").returncode == 0


def test_a_damaged_one_is_told_before_anything_runs(site):
    site.start("run", "--name", "w", "--every", "never", "--", "python3", "count.py", "100000", "0.02")
    wait_for(lambda: len(site.log("w")) > 20)
    assert site.run("checkpoint", "w").returncode == 0
    pack = next((site.state / "store" / "packs").rglob("[0-9a-f]" * 64))
    changed = bytearray(pack.read_bytes())
    changed[len(changed) // 3] ^= 4
    pack.write_bytes(changed)
    done = site.run("store", "verify", "--restore", "w", "--json")
    assert done.returncode == 13
    assert pack.name in json.loads(done.stderr)["error"]["message"]


def test_a_workload_carried_by_hand_goes_on_there(site, tmp_path):
    """Stopped here, exported, imported into a store with another key, and run there: the log is that of an undisturbed run."""
    count = 20_000
    process = site.start("run", "--name", "w", "--every", "never", "--", "python3", "count.py", str(count), "0.02")
    wait_for(lambda: len(site.log("w")) > 200)
    assert site.run("checkpoint", "w", "--stop").returncode == 0
    process.wait(timeout=LIMIT_S)
    (tmp_path / "shared.key").write_bytes(b"k" * 32)
    (tmp_path / "store.key").write_bytes(b"s" * 32)
    exported = tmp_path / "w.perdure"
    done = site.run("store", "export", "w", "-o", exported, "--file-key", tmp_path / "shared.key")
    assert done.returncode == 0, done.stderr
    there = {"PERDURE_STATE": str(tmp_path / "state-there"), "PERDURE_KEY_FILE": str(tmp_path / "store.key")}
    site.environment |= there
    site.state = Path(there["PERDURE_STATE"])
    site.hurry()
    done = site.run("store", "import", exported, "--file-key", tmp_path / "shared.key")
    assert done.returncode == 0, done.stderr
    done = site.run("run", "--name", "w", "--every", "never", "--", "python3", "count.py", str(count), "0.02")
    assert done.returncode == 0, done.stderr
    assert b"goes on from w@1.1, life 2" in done.stderr
    assert site.log("w") == lines(count)


def test_a_workload_on_a_terminal(site):
    """Its terminal is not ours: the trial gives it another one."""
    leader, follower = os.openpty()
    process = site.start(
        "run",
        "--name",
        "w",
        "--every",
        "never",
        "--",
        "python3",
        "count.py",
        "100000",
        "0.02",
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    shown = bytearray()
    # On a descriptor of its own, and to the end: nobody's terminal is left full, nor read after it is closed.
    threading.Thread(target=read_all, args=(os.dup(leader), shown), daemon=True).start()
    try:
        wait_for(lambda: b"line 5" in shown)
        assert site.run("checkpoint", "w").returncode == 0
        done = site.run("store", "verify", "--restore", "w", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["progress"] == "moved"
        assert process.poll() is None
    finally:
        os.close(leader)
