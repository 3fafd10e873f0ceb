"""SIGTERM and Ctrl-C before there is a workload: a store that keeps everybody waiting does not keep them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time

import pytest
from supervised import LIMIT_S, Site, lines, wait_for

pytestmark = pytest.mark.criu


class Silent:
    """A server on loopback that takes connections, and never says a word."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.called = threading.Event()
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._taken.append(self._listening.accept()[0])
                self.called.set()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for connection in self._taken:
            connection.close()


@pytest.fixture
def silent():
    made = Silent()
    yield made
    made.close()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)], ids=["TERM", "INT"])
def test_a_store_that_does_not_answer_does_not_keep_it(site, silent, number, status):
    pytest.importorskip("obstore")
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c"}
    store = f"s3://bucket/prefix?endpoint=http://127.0.0.1:{silent.port}"
    process = site.start("run", "--name", "a", "--store", store, "--", "python3", "count.py", "10", "0.1", env=environment)
    assert silent.called.wait(LIMIT_S)
    process.send_signal(number)
    # Its own patience with a silent server is five minutes and more.
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (status, b""), err.decode()
    assert b"nothing of a was started" in err
    # The name is free again.
    done = site.run("run", "--name", "a", "--every", "never", "--", "python3", "count.py", "10", "0.1")
    assert (done.returncode, done.stdout) == (0, lines(10)), done.stderr.decode()


@pytest.mark.parametrize("detached", [False, True], ids=["foreground", "background"])
def test_a_lease_that_is_waited_for_does_not_keep_it(site, tmp_path, detached):
    (tmp_path / "other").mkdir()
    there = Site(tmp_path / "other")
    run = ["run", "--name", "a", "--every", "never", "--store", str(tmp_path / "store")]
    command = ["--", "python3", "count.py", "1000000", "0.05"]
    try:
        # In a PID namespace of its own it is what a process of another machine is: nobody can look it up.
        older = there.start(
            *run, *command, cwd=site.work, env={"PERDURE_LEASE_TTL": "300s"}, wrapped_in=("unshare", "--pid", "--fork", "--mount-proc")
        )
        wait_for(lambda: there.log("a"))
        said = tmp_path / "said"
        with open(said, "wb") as errors:
            follower = site.start(*run, *(["-d"] if detached else []), *command, stderr=errors)
        told = site.state / "workloads" / "a" / "supervisor.log" if detached else said
        wait_for(lambda: told.exists() and b"gave no sign of its end" in told.read_bytes())
        os.kill(site.supervisor("a"), signal.SIGTERM)
        assert follower.wait(LIMIT_S) == 75, said.read_bytes()
        assert b"SIGTERM: nothing of a was started" in said.read_bytes()
        assert [path.name for path in (tmp_path / "store" / "workloads" / "a" / "lives").iterdir()] == ["00000001"]
        assert older.poll() is None
    finally:
        there.close()


OBSTINATE = """
import signal, sys, time
def last(_number, _frame):
    print("asked to end", flush=True)
    sys.exit(7)
signal.signal(signal.SIGINT, last)
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("instant", ["running", "saving", "restoring", "restored"])
def test_ctrl_c_as_often_as_one_likes_leaves_nothing_behind(site, instant):
    (site.work / "obstinate.py").write_text(OBSTINATE)
    run = ["run", "--name", "a", "--every", "never", "--", "python3", "obstinate.py"]
    process = site.start(*run)
    wait_for(lambda: b"up" in site.log("a"))
    if instant.startswith("restor"):
        assert site.run("checkpoint", "a", "--stop").returncode == 0
        process.communicate(timeout=LIMIT_S)
        process, events = site.start("restore", "a", "--events", "events"), site.work / "events"
        sign = b'"running"' if instant == "restored" else b'"fetch"'
        wait_for(lambda: events.exists() and sign in events.read_bytes())
    saving = site.start("checkpoint", "a") if instant == "saving" else None
    while process.poll() is None:
        for one in (process, saving):
            if one is not None and one.poll() is None:
                one.send_signal(signal.SIGINT)
        time.sleep(0.003)
    _, err = process.communicate()
    assert process.returncode in (7, 130, -signal.SIGINT), err.decode()
    assert b"Traceback" not in err, err.decode()
    assert b"Exception ignored" not in err, err.decode()
    if saving is not None:
        _, told = saving.communicate(timeout=LIMIT_S)
        assert b"Traceback" not in told, told.decode()
        assert b"Exception ignored" not in told, told.decode()
    wait_for(lambda: not site.alive())
    done = site.run("run", "--name", "a", "--fresh", "--every", "never", "--", "true")
    assert done.returncode == 0, done.stderr.decode()
