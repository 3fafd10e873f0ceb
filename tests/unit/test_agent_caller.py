"""Who is at the other end of a connection: what the kernel says, and of a process that has gone, nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from perdure import errors
from perdure.agent import caller, surroundings

_CONNECT = """
import os, socket, sys
uid, groups = int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",") if word]
if os.geteuid() == 0:
    os.setgroups(groups); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
sys.stdin.read()
"""


@pytest.fixture
def listener():
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(b"\0perdure-test-%d" % os.getpid())
        made.listen()
        made.settimeout(120)
        yield made


def connect(listener: socket.socket, uid: int, groups: str = "") -> tuple[subprocess.Popen[bytes], socket.socket]:
    name = listener.getsockname().decode()
    program = _CONNECT.replace("sys.argv[1]", repr(name))
    process = subprocess.Popen([sys.executable, "-c", program, "-", str(uid), groups], stdin=subprocess.PIPE)
    return process, listener.accept()[0]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@needs_root
@pytest.mark.parametrize("count", [0, 3, 400])
def test_user_and_all_groups_are_those_that_the_kernel_knows(listener, count):
    groups = tuple(range(30000, 30000 + count))
    process, connection = connect(listener, 20001, ",".join(map(str, groups)))
    with connection:
        found = caller.identify(connection)
        assert (found.uid, found.gid, found.groups, found.pid) == (20001, 20001, groups, process.pid)
        assert found.pidfd is not None
        assert caller.is_alive(found.pidfd)
        assert found.owner.groups == groups
        assert surroundings.of(found).cgroups
        os.close(found.pidfd)
    process.stdin.close()
    process.wait(timeout=120)


def test_a_caller_that_has_ended_is_not_taken_for_another(listener):
    process, connection = connect(listener, os.geteuid())
    with connection:
        before = caller.identify(connection)
        process.stdin.close()
        process.wait(timeout=120)
        # The PID is free now: it may be anybody's, and what is asked of it is refused.
        with pytest.raises(errors.AgentUnavailable):
            surroundings.of(before)
        after = caller.identify(connection)
        assert after.uid == os.geteuid()
        assert after.pidfd is None or not caller.is_alive(after.pidfd)
        with pytest.raises(errors.AgentUnavailable):
            surroundings.of(after)
        for found in (before, after):
            if found.pidfd is not None:
                os.close(found.pidfd)
