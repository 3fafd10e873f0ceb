"""An ordinary user's workload on that user's terminal: a seat, root's and in another session, behaves as a command of the user's would."""

from __future__ import annotations

import shlex
import time

import pytest
from agents import ALICE, Node, needs_root, running
from screens import Screen

pytestmark = [needs_root, pytest.mark.users, pytest.mark.criu]


class OfUser(Screen):
    """A terminal whose commands are run as the user."""

    def __init__(self, node: Node, uid: int) -> None:
        self._node, self._uid = node, uid
        super().__init__(node.home(uid), node.user_environment(uid))

    def perdure(self, *arguments: str) -> None:
        """Type a command line."""
        self.type(shlex.join(self._node.command(self._uid, *arguments)).encode() + b"\n")


@pytest.fixture(scope="module")
def node():
    with running() as made:
        yield made


@pytest.fixture
def screen(node):
    made = OfUser(node, ALICE)
    yield made
    made.close()


def test_it_has_a_terminal_of_the_same_size_and_is_told_of_a_new_one(screen):
    before = screen.modes()
    script = (
        "trap 'told=1' WINCH; test -t 0 && test -t 1 && test -t 2 && echo all of them; stty size; "
        'until [ "$told" ]; do sleep 0.05; done; stty size; read word; echo got $word'
    )
    screen.perdure("run", "--name", "size", "-q", "--", "bash", "-c", script)
    screen.expect(b"all of them")
    screen.expect(b"30 90")
    screen.resize(40, 100)
    screen.expect(b"40 100")
    screen.type(b"hello\r")
    screen.expect(b"got hello")
    screen.expect(b"READY> ")
    assert screen.modes() == before


def test_ctrl_c_is_the_workloads_and_the_terminal_is_given_back(screen):
    before = screen.modes()
    screen.perdure("run", "--name", "keys", "-q", "--", "sh", "-c", "trap 'echo caught; exit 7' INT; echo up; while :; do sleep 0.05; done")
    screen.expect(b"up\r\n")
    assert screen.modes() != before
    screen.type(b"\x03")
    screen.expect(b"caught")
    screen.expect(b"READY> ")
    assert screen.modes() == before
    screen.type(b"echo status $?\n")
    screen.expect(b"status 7")


def test_ctrl_z_gives_the_prompt_back_and_fg_goes_on(screen):
    before = screen.modes()
    count = 'i=0; while [ "$i" -lt 100000 ]; do echo "line $i"; i=$((i+1)); sleep 0.05; done'
    screen.perdure("run", "--name", "pause", "-q", "--every", "never", "--", "bash", "-c", count)
    screen.expect(b"line 5\r\n")
    screen.type(b"\x1a")
    screen.expect(b"Stopped")
    screen.expect(b"READY> ")
    assert screen.modes() == before
    # What is typed now is the shell's, and nothing of the workload comes in between.
    screen.type(b"echo mine alone\n")
    assert b"line" not in screen.expect(b"\r\nmine alone\r\n")
    screen.type(b"fg\n")
    screen.expect(b"line ")
    screen.expect(b"line ")
    assert screen.modes() != before
    screen.type(b"\x03")
    screen.expect(b"READY> ")
    assert screen.modes() == before


def test_a_terminal_comes_back_after_a_checkpoint(node, screen):
    script = 'echo up; while read word; do stty size; echo "got $word"; done'
    screen.perdure("run", "--name", "again", "-q", "--every", "never", "--", "bash", "-c", script)
    screen.expect(b"up\r\n")
    assert node.run(ALICE, "checkpoint", "again", "--stop").returncode == 0
    screen.expect(b"READY> ")
    screen.perdure("run", "--name", "again", "-q", "--every", "never", "--", "bash", "-c", script)
    screen.type(b"hello\r")
    screen.expect(b"got hello")
    screen.type(b"\x04")
    screen.expect(b"READY> ")


def test_a_terminal_that_nobody_reads_holds_the_workload_back_and_no_checkpoint(node, screen):
    flood = "for number in range(60_000): print(f'line {number:07d}', flush=True)\nprint('all of it')"
    screen.perdure("run", "--name", "flood", "-q", "--every", "never", "--", "python3", "-c", flood)
    screen.expect(b"line 0000005\r\n")
    # Until everything in between is full, and the workload stands still.
    time.sleep(2)
    done = node.run(ALICE, "checkpoint", "flood")
    assert done.returncode == 0, done.stderr
    shown = screen.expect(b"line 0059999\r\n")
    assert [int(line[5:]) for line in shown.split(b"\r\n") if line] == list(range(6, 59_999))
    screen.expect(b"all of it\r\n")
    screen.expect(b"READY> ")
