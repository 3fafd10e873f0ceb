"""Processors that threads are pinned to, and the class of their input and output, which CRIU does not keep."""

from __future__ import annotations

import os
import signal

import pytest
from supervised import LIMIT_S, Site, wait_for

from perdure.base.proc import scheduling
from perdure.checkpoint import placing
from perdure.model.checkpoint import Placed

pytestmark = pytest.mark.criu

IDLE, LOW = 3 << 13, (2 << 13) | 6

PIN = f"""
import os, sys, threading
from perdure.base.proc import scheduling
own = threading.get_native_id
def tell(name):
    print(name, sorted(os.sched_getaffinity(0)), scheduling.io_priority(own()), flush=True)
def wait(sign):
    while not os.path.exists(sign):
        threading.Event().wait(0.02)
def work():
    os.sched_setaffinity(0, [int(sys.argv[1])])
    scheduling.set_io_priority(own(), {IDLE})
    tell("pinned")
    done.set()
    wait("hurry")
    tell("pinned")
done = threading.Event()
worker = threading.Thread(target=work)
worker.start()
done.wait()
scheduling.set_io_priority(own(), {LOW})
tell("main")
wait("hurry")
worker.join()
tell("main")
"""


def test_threads_are_where_they_were(site: Site):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two processors")
    (site.work / "pin.py").write_text(PIN)
    run = ("run", "--name", "a", "--every", "never", "--", "python3", "pin.py", str(allowed[-1]))
    process = site.start(*run)
    told = f"pinned [{allowed[-1]}] {IDLE}\nmain {allowed} {LOW}\n".encode()
    wait_for(lambda: site.log("a") == told or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75, err.decode()
    (site.work / "hurry").touch()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == told * 2


def test_elsewhere_they_run_where_the_supervisor_may_and_that_is_said(site: Site):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two processors")
    (site.work / "pin.py").write_text(PIN)
    run = ("run", "--name", "a", "--every", "never", "--", "python3", "pin.py", str(allowed[-1]))
    process = site.start(*run)
    wait_for(lambda: b"main" in site.log("a") or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75, err.decode()
    (site.work / "hurry").touch()
    again = site.run(*run, wrapped_in=("taskset", "-c", str(allowed[0])))
    assert again.returncode == 0, again.stderr.decode()
    assert f"processors {allowed[-1]}: threads were pinned" in again.stderr.decode()
    assert site.log("a").splitlines()[2:] == [f"pinned [{allowed[0]}] {IDLE}".encode(), f"main [{allowed[0]}] {LOW}".encode()]


def test_what_is_as_with_the_supervisor_is_not_recorded():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        assert placing.record([child]) == ()
        scheduling.set_io_priority(child, IDLE)
        assert placing.record([child]) == (Placed(child, io_priority=IDLE),)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert placing.record([child]) == ()
