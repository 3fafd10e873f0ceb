"""Who is at the other end of a connection: what the kernel says, and of a process that has gone, nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile

import pytest
from criu_tree import wait_until

from perdure import errors
from perdure.agent import caller, surroundings
from perdure.base.proc import process as process_facts

_CONNECT = """
import os, socket, sys
uid, groups = int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",") if word]
exec(sys.argv[4])
if os.geteuid() == 0:
    os.setgroups(groups); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
if len(sys.argv) > 5:
    connection.set_inheritable(True)
    os.execv(sys.argv[5], sys.argv[5:])
sys.stdin.read()
"""


@pytest.fixture
def listener():
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(b"\0perdure-test-%d" % os.getpid())
        made.listen()
        made.settimeout(120)
        yield made


def connect(
    listener: socket.socket, uid: int, groups: str = "", *, first: str = "", becomes: tuple[str, ...] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    name = listener.getsockname().decode()
    program = _CONNECT.replace("sys.argv[1]", repr(name))
    process = subprocess.Popen([sys.executable, "-c", program, "-", str(uid), groups, first, *becomes], stdin=subprocess.PIPE)
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


@needs_root
def test_one_that_has_become_a_program_with_more_rights_than_its_user_is_refused(listener):
    # As sudo does at its prompt: it has raised its own limits, and the connection is still the user's. Not below pytest's folder, which
    # is root's alone.
    with tempfile.TemporaryDirectory(prefix="perdure-test-") as folder:
        os.chmod(folder, 0o755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("temporary files may not be set-uid here")
        program = shutil.copy("/bin/cat", folder)
        os.chmod(program, 0o4755)
        process, connection = connect(listener, 20001, becomes=(program,))
        with connection:
            found = caller.identify(connection)
            assert found.pidfd is not None
            assert wait_until(lambda: process_facts.status(found.pid).uids[1] == 0)
            with pytest.raises(errors.Unsupported, match="other rights than its user"):
                surroundings.of(found)
            os.close(found.pidfd)
    process.stdin.close()
    process.wait(timeout=120)


@needs_root
def test_one_that_may_never_have_a_right_which_its_workload_could_get_is_refused(listener):
    drop = "import ctypes; PR_CAPBSET_DROP, CAP_NET_RAW = 24, 13; assert not ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_NET_RAW, 0, 0, 0)"
    process, connection = connect(listener, 20001, first=drop)
    with connection:
        found = caller.identify(connection)
        assert found.pidfd is not None
        with pytest.raises(errors.Unsupported, match="bounding set"):
            surroundings.of(found)
        os.close(found.pidfd)
    process.stdin.close()
    process.wait(timeout=120)


@pytest.mark.parametrize(
    ("label", "free"),
    [
        ("", True),
        ("unconfined", True),
        ("/usr/bin/man (complain)", True),
        ("/usr/bin/man (enforce)", False),
        ("chrome (unconfined)", True),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", True),
        ("user_u:user_r:user_t:s0", False),
        ("system_u:system_r:container_t:s0:c1,c2", False),
    ],
)
def test_what_a_security_module_calls_unconfined(label, free):
    assert surroundings._is_free(label) is free
