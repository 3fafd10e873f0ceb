"""Faults that come too late are none: nothing can be done to a workload that has ended, whatever the kernel still shows of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure import errors
from perdure.evaluation import faults, local
from perdure.evaluation.local import Processes
from perdure.model.evaluation import FaultKind


@pytest.mark.parametrize("kind", FaultKind)
def test_a_workload_that_has_ended_meets_no_fault(kind):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is dead and not reaped
    beside = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = Processes(ended.pid, ended.pid, (ended.pid,), supervisor=beside.pid)
        with pytest.raises(errors.ProcessGone, match="ended before"):
            faults.inject(kind, found, node=lambda: beside.pid, disk=None)
        assert beside.poll() is None
        ended.wait()
        with pytest.raises(errors.ProcessGone):
            faults.inject(kind, found, node=lambda: beside.pid, disk=None)
        assert beside.poll() is None
    finally:
        beside.communicate(b"\n")


def test_a_workload_whose_first_thread_alone_has_ended_is_still_there():
    program = "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).pthread_exit(None)"
    running = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    try:
        faults.inject(FaultKind.KILL, Processes(running.pid, running.pid, (running.pid,)), node=lambda: 0, disk=None)
        assert running.wait() == -9
    finally:
        running.kill()
        running.communicate()


@pytest.mark.parametrize("pid", [-1, 0, 1, os.getpid(), os.getppid()], ids=["all", "group", "first", "itself", "parent"])
def test_what_everything_hangs_on_and_ourselves_are_no_workload(pid):
    with pytest.raises(errors.UsageError) as caught:
        local.recognise(pid)
    assert caught.value.hint
