"""`perdure eval coldstart` with a real CRIU and a real server: both clocks, the same answers, every start recorded, nothing left."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import evaluations
import pytest
import reported

from perdure.base.proc import process
from perdure.evaluation import folder, local, lock, page_cache, places, standing

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.criu

# Takes a second to load; each answer holds what was drawn while it did, so that only a restore can give the same answer again.
# One that was asked before, and was brought back, is not ready while there is a file `hold` beside it.
SERVER = """
import http.server, os, random, sys, time
time.sleep(1.0)
drawn = str(random.random()).encode()
hold = os.path.join(os.path.dirname(__file__), "hold")
asked = []

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while asked and os.path.exists(hold):
            time.sleep(0.05)
        self.say(b"ready")
    def do_POST(self):
        asked.append(self.path)
        self.say(self.rfile.read(int(self.headers["Content-Length"]))[::-1] + drawn)
    def say(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def there(tmp_path):
    """A locked evaluation of the server."""
    with socket.socket() as ours:
        # As long as this one is bound, nobody else is given its port; the server, which sets the same option, can have it all the same.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        place = tmp_path / "trial"
        place.mkdir()
        (place / "server.py").write_text(SERVER)
        made = evaluations.begin(
            place,
            command=f'command = ["{sys.executable}", "{place}/server.py", "{port}"]',
            **{
                "workload.own_checkpoint": f"""
[workload.ready]
kind = "http"
url = "http://127.0.0.1:{port}/"
timeout_s = 240
[[workload.requests]]
url = "http://127.0.0.1:{port}/"
method = "POST"
body = "the same question"
[workload.own_checkpoint]"""
            },
        )
        evaluations.measure_baseline(made)
        lock.fix(made, signed=reported.SIGNED)
        yield made


def test_both_clocks_and_the_same_answers(perdure, there):
    done = perdure("eval", "coldstart", "--repetitions", "2", "--cache", "warm", "--dir", there.path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {(one["side"], one["cache"]): one for one in document["groups"]}
    assert found["native", "warm"]["runs"] == 2
    assert found["native", "warm"]["excluded"] == 1, "the one that fills the page cache is there, too"
    assert found["native", "warm"]["fastest_s"] > 1.0, "loading is in it"
    assert found["restore", "warm"]["runs"] == 2
    assert (document["asked"], document["same"]) == (2, 2)
    assert len(document["restores"]) == 2
    assert all(one["logical_bytes"] > 1_000_000 for one in document["restores"])

    runs = folder.read_runs(there).runs
    cold = [run for run in runs if run.purpose == "coldstart"]
    assert [run.id.split("-")[2] for run in cold] == ["native", "native", "native", "first", "restore", "restore"]
    assert all(run.finished and run.environment.memory_bytes for run in cold)
    assert standing.look(there).is_sound
    assert not list(there.raw.glob("*/state")), "checkpoints are removed in the end"
    assert [pid for run in cold for pid in local.leftovers(run.id)] == []

    report = perdure("eval", "report", "--dir", there.path, "--html", there.report / "page.html")
    assert report.returncode == 0, report.stderr
    assert "Answers after a restore: 2 of 2 the same as before." in report.stdout
    page = (there.report / "page.html").read_text()
    assert all(run.id in page for run in cold)


def test_what_answers_already_is_refused(perdure, there):
    command = json.loads((there.path / "evaluation.lock").read_text())["plan"]["workload"]["command"]
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(command[-1])))
        listening.listen()
        # It takes the connection and says nothing: no server, and not ready either.
        done = perdure("eval", "coldstart", "--repetitions", "1", "--cache", "warm", "--dir", there.path)
    assert done.returncode in (3, 20), done.stderr
    (run, *_) = [run for run in folder.read_runs(there).runs if run.purpose == "coldstart"]
    assert run.excluded is not None
    assert "before it was ready" in run.excluded
    assert not [pid for pid in process.pids() if pid in local.leftovers(run.id)]


def test_a_plan_without_a_probe_or_a_lock_is_refused(perdure, tmp_path):
    place = tmp_path / "other"
    place.mkdir()
    made = evaluations.begin(place)
    evaluations.measure_baseline(made)
    done = perdure("eval", "coldstart", "--dir", place)
    assert done.returncode == 4
    assert "is not locked" in done.stderr
    lock.fix(made, signed=reported.SIGNED)
    done = perdure("eval", "coldstart", "--dir", place)
    assert done.returncode == 2
    assert "workload.ready" in done.stderr


def test_a_harness_that_is_killed_loses_no_start(perdure, there, tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "perdure", "eval", "coldstart", "--repetitions", "1", "--cache", "warm", "--dir", str(there.path)]
    # However late the kill is, the restore is not done by then.
    (there.path / "hold").touch()
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as harness:
        deadline = time.monotonic() + 240
        while not any(b"restarted" in journal.read_bytes() for journal in there.raw.glob("*/journal.jsonl")):
            assert time.monotonic() < deadline
            assert harness.poll() is None
            select.select([], [], [], 0.01)
        harness.send_signal(signal.SIGKILL)
    (there.path / "hold").unlink()
    before = {run.id for run in folder.read_runs(there).runs}

    done = perdure("eval", "coldstart", "--repetitions", "1", "--cache", "warm", "--dir", there.path)
    assert done.returncode in (0, 3), done.stderr
    runs = {run.id: run for run in folder.read_runs(there).runs}
    assert set(runs) >= before | folder.raw_ids(there)
    broken = [run for run in runs.values() if not run.finished]
    assert [run.id.split("-")[2] for run in broken] == ["restore"]
    assert [pid for run_id in runs for pid in local.leftovers(run_id)] == []
    assert not [
        place for run_id in runs for place in (there.raw / run_id / "state", places.of(there.raw, run_id).run_dir) if place.exists()
    ]


def resident(path) -> int:
    """Return how many pages of a file are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    size_bytes = path.stat().st_size
    pages = ctypes.create_string_buffer(-(-size_bytes // mmap.PAGESIZE))
    with open(path, "rb") as handle:
        there = libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, handle.fileno(), 0)
        assert libc.mincore(there, size_bytes, pages) == 0
        libc.munmap(there, size_bytes)
    return sum(page[0] & 1 for page in (pages[at : at + 1] for at in range(len(pages))))


@pytest.mark.slow  # it empties the page cache of the whole machine
def test_cold_and_warm_starts_and_a_page_cache_that_is_really_empty(perdure, there, tmp_path):
    content = tmp_path / "content"
    content.write_bytes(os.urandom(8 << 20))
    content.read_bytes()
    assert resident(content) == (8 << 20) // mmap.PAGESIZE
    if not page_cache.drop():
        pytest.skip("the page cache cannot be emptied here")
    assert resident(content) == 0
    done = perdure("eval", "coldstart", "--repetitions", "2", "--cache", "both", "--dir", there.path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {(one["side"], one["cache"]): one for one in document["groups"]}
    assert {key: one["runs"] for key, one in found.items() if key[0] != "first life"} == {
        (side, cache): 2 for side in ("native", "restore") for cache in ("cold", "warm")
    }
    assert (document["asked"], document["same"]) == (4, 4)
    assert (
        sorted((one["cache"], one["logical_bytes"] > 1_000_000) for one in document["restores"])
        == [("cold", True)] * 2 + [("warm", True)] * 2
    )
    assert {fit["cache"] for fit in document["fits"]} == {"cold", "warm"}
