"""How much of the store one user may take, under the agent and with a real CRIU: what is refused, and what that never touches."""

from __future__ import annotations

import os
import signal

import pytest
from agents import ALICE, BOB, Node, needs_root, running
from supervised import wait_for

from perdure import errors
from perdure.base.proc import process

pytestmark = [needs_root, pytest.mark.users, pytest.mark.criu]

_HOLD = """\
content=$(head -c 24000000 /dev/urandom | base64 -w 0)
trap 'echo alive' USR1
echo up
while :; do sleep 0.1; done
"""
"""For sh -c: holds 32 megabytes that make 24, and answers a signal."""


@pytest.fixture(scope="module")
def node():
    with running(PERDURE_USER_QUOTA="42MiB") as made:
        yield made


def hold(node: Node, uid: int, name: str) -> None:
    node.begin(uid, name, "sh", "-c", _HOLD)


def packs(node: Node, uid: int) -> set[str]:
    return {path.name for path in (node.store / "users" / str(uid) / "packs").rglob("*") if path.is_file()}


def require_alive(node: Node, uid: int, name: str) -> None:
    """Fail unless the workload answers."""
    log = node.user_state(uid) / "workloads" / name / "log"
    before = log.read_bytes().count(b"alive")
    (shell,) = process.children(node.ps(uid, name)["pid"])
    os.kill(shell, signal.SIGUSR1)
    wait_for(lambda: log.read_bytes().count(b"alive") > before)


def test_who_has_taken_their_share_is_told_and_the_workload_and_others_go_on(node):
    hold(node, ALICE, "first")
    node.json(ALICE, "checkpoint", "first")
    before = packs(node, ALICE)
    assert before
    hold(node, ALICE, "second")
    # There is room for some of it: what was written by then is taken away again.
    refused = node.run(ALICE, "checkpoint", "second")
    assert refused.returncode == errors.StoreFull.exit_status, refused
    assert b"of the 42 MiB that one user may" in refused.stderr, refused.stderr
    assert b"perdure store prune" in refused.stderr
    assert packs(node, ALICE) == before
    require_alive(node, ALICE, "second")

    hold(node, BOB, "his")
    node.json(BOB, "checkpoint", "his")

    # What the first one gives back, the second one has.
    node.run(ALICE, "stop", "first")
    assert node.run(ALICE, "rm", "first", "--checkpoints").returncode == 0
    assert node.json(ALICE, "checkpoint", "second")["id"] == "second@1.2"


def test_who_has_no_room_at_all_is_told_before_anything_is_frozen():
    with running(PERDURE_USER_QUOTA="1") as node:
        client = node.begin(ALICE, "none", "sh", "-c", "echo up; exec sleep 600")
        refused = node.run(ALICE, "checkpoint", "none")
        assert refused.returncode == errors.CheckpointRefused.exit_status, refused
        assert b"of the 1 B that one user may" in refused.stderr
        assert packs(node, ALICE) == set()
        assert not list((node.user_state(ALICE) / "workloads" / "none").glob("dump.log")), "CRIU was not called"
        assert client.poll() is None
