"""How CRIU is started: what is always said, and what only where it is needed."""

from __future__ import annotations

import socket
import subprocess

import msgspec
import pytest

from perdure.checkpoint.criu import calls, netlock, repair, run

CRIU = run.Criu(
    argv=("/p/ld.so", "--library-path", "/p/lib", "/p/criu"), version="4.2.1", origin="test", prefix="/p", network_lock="nftables"
)
CALL = run.Call(action=run.Action.DUMP, images="/i", work="/w", timeout_s=12.3, root=7)


def test_no_configuration_and_no_plugin_can_change_what_a_dump_means():
    line = run.command(CRIU, CALL)
    assert line[:6] == ["/p/ld.so", "--library-path", "/p/lib", "/p/criu", "dump", "--no-default-config"]
    assert line[line.index("-L") + 1] == "/proc/self/ns"
    assert line[line.index("--timeout") + 1] == "13"
    assert "--network-lock=nftables" in line
    assert line[-2:] == ["--tree", "7"]
    inside = run.command(CRIU, msgspec.structs.replace(CALL, is_inside=True, folders=(5, 6)))
    assert inside[-2:] == ["--tree", "1"]
    assert [inside[inside.index(option) + 1] for option in ("-D", "-W")] == ["/proc/self/fd/5", "/proc/self/fd/6"]


@pytest.mark.parametrize("action", list(run.Action))
def test_the_library_is_preloaded_into_dumps_alone(action):
    criu = msgspec.structs.replace(CRIU, needs_prlimit_preload=True, preload="/p/l.so")
    line = run.command(criu, msgspec.structs.replace(CALL, action=action))
    assert (line[:3] == ["/p/ld.so", "--preload", "/p/l.so"]) == (action in (run.Action.DUMP, run.Action.PRE_DUMP))
    assert "--preload" not in run.command(msgspec.structs.replace(criu, needs_prlimit_preload=False), CALL)


def test_what_only_a_dump_knows_is_not_said_to_a_restore():
    line = run.command(CRIU, msgspec.structs.replace(CALL, action=run.Action.RESTORE, root=None))
    assert "--timeout" not in line
    assert "--network-lock=nftables" not in line


def test_options_of_descriptors():
    assert run.inherit_fd(5, "pipe:[77]") == "--inherit-fd=fd[5]:pipe:[77]"
    assert run.external("tty[8800:a]") == "--external=tty[8800:a]"


@pytest.mark.parametrize("run_id", ["", "a", "00000000-0000-0000-0000-000000000000"])
def test_a_run_that_left_no_table_releases_none(run_id):
    assert netlock.release(run_id) == ()


def test_sockets_that_are_in_order_are_left_alone():
    import os

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            assert repair.end([os.getpid(), 2**22 + 1]) == 0
            client.send(b"x")
            assert server.recv(1) == b"x"


def test_one_whose_starter_is_gone_before_the_kernel_knows_does_not_begin():
    argv = calls.mortal(msgspec.structs.replace(CRIU, argv=("/bin/echo", "begun"), prefix=None)).argv
    assert subprocess.run(argv, capture_output=True, check=True).stdout == b"begun\n"
    # Its parent is a shell, as it would be another process after ours has ended.
    other = subprocess.run(["/bin/sh", "-c", '"$@"; exit $?', "sh", *argv], capture_output=True)
    assert (other.returncode, other.stdout) == (1, b"")
