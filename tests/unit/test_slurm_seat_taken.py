"""What a seat takes over from the task that it keeps, once that asks: from no process that is more than its user, or is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import pytest

from perdure import errors
from perdure.agent import surroundings
from perdure.model.checkpoint import Owner
from perdure.slurm import seat
from perdure.slurm.seat import Facts, _take_seat, _Unmanaged

UID = 20001
BECOME = """
import os, sys
if int(sys.argv[1]):
    os.setgroups([]); os.setresgid(*[int(sys.argv[1])] * 3); os.setresuid(*[int(sys.argv[1])] * 3)
print("is", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@contextlib.contextmanager
def task(uid, monkeypatch):
    """A process that runs as `uid`, and what a seat that it were the parent of is told of it."""
    monkeypatch.setattr(surroundings, "put_on", lambda _wanted: None)
    with subprocess.Popen([sys.executable, "-c", BECOME, str(uid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"is\n"
        monkeypatch.setattr(seat.os, "getppid", lambda: process.pid)
        yield process, Facts(owner=Owner(uid=UID, gid=UID, groups=()), job=7, step="batch", task_pid=process.pid, own="", defaults=())
        process.stdin.close()


def test_a_task_that_asks_is_joined_where_it_is(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs, task(UID, monkeypatch) as (_, facts):
        theirs.sendall(b"PSR1")
        assert _take_seat(ours, facts).cgroups


def test_a_task_that_has_become_a_program_with_more_rights_than_its_user_is_refused(monkeypatch):
    # What asks is the user's own process: it can become sudo, which has raised its own limits.
    ours, theirs = socket.socketpair()
    with ours, theirs, task(0, monkeypatch) as (_, facts):
        theirs.sendall(b"PSR1")
        with pytest.raises(errors.Unsupported, match="other rights than its user"):
            _take_seat(ours, facts)


def test_a_task_that_ends_without_asking_is_not_waited_for_though_another_has_its_socket(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs, task(UID, monkeypatch) as (process, facts):
        process.kill()
        with pytest.raises(_Unmanaged, match="the task has ended"):
            _take_seat(ours, facts)
