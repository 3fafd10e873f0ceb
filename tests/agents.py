"""A node with an agent, for tests: root's service on folders of the test's, and ordinary users who ask it, as processes of their own."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from supervised import LIMIT_S, ROOT, descendants, is_zombie, kill_holders, wait_for

from perdure import errors
from perdure.agent import asked, client

ALICE = 20001
BOB = 20002
_LAUNCHER = ROOT / "tests" / "as_user.py"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the agent")

COUNT = 'i=0; while [ "$i" -lt %d ]; do echo "line $i"; i=$((i+1)); [ -e hurry ] || sleep %s; done; exit %d'
"""For sh -c: how many lines, seconds between two until `Node.hurry`, exit status."""


def lines(count: int) -> bytes:
    """What `COUNT` writes when nothing disturbs it."""
    return b"".join(b"line %d\n" % number for number in range(count))


class Node:
    """Folders that every user can come to, with an agent that can be ended, killed and started again."""

    def __init__(self, **variables: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-agent-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.state = self.folder / "state"
        self.run_dir = self.folder / "run"
        self.store = self.folder / "store"
        self.log = self.folder / "audit.log"
        self.socket = self.folder / "agent.sock"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            "PERDURE_STATE": str(self.state),
            "PERDURE_RUN_DIR": str(self.run_dir),
            "PERDURE_STORE": str(self.store),
            "PERDURE_AUDIT_LOG": str(self.log),
            "PERDURE_AGENT_SOCKET": str(self.socket),
        } | variables
        self._started: list[subprocess.Popen[bytes]] = []
        self.agent: subprocess.Popen[bytes] | None = None
        for uid in (ALICE, BOB):
            home = self.home(uid)
            home.mkdir(mode=0o700)
            os.chown(home, uid, uid)
        self.start()

    def home(self, uid: int) -> Path:
        return self.folder / f"home-{uid}"

    @contextlib.contextmanager
    def hurry(self, uid: int) -> Iterator[None]:
        """Let what counts in this user's home get to its end at once: all that was to be done to it is done."""
        (self.home(uid) / "hurry").touch()
        try:
            yield
        finally:
            (self.home(uid) / "hurry").unlink()

    def start(self) -> None:
        """Start the agent, and wait until it listens."""
        with open(self.folder / "agent.err", "ab") as told:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "perdure", "agent"],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
            )
        wait_for(self._listens, what="for the agent")

    def _listens(self) -> bool:
        assert self.agent is not None
        assert self.agent.poll() is None, (self.folder / "agent.err").read_text()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self.socket))
            return True
        return False

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the agent, and nothing else."""
        assert self.agent is not None
        self.agent.send_signal(number)
        self.agent.wait(timeout=LIMIT_S)

    def command(self, uid: int, *arguments: object, groups: tuple[int, ...] = (), limits: tuple[str, ...] = ()) -> list[str]:
        """The command line that runs `perdure ARGUMENTS` as the user `uid`."""
        who = [str(uid), str(uid), ",".join(map(str, groups)), *limits]
        return [sys.executable, str(_LAUNCHER), *who, "--", *map(str, arguments)]

    def client(
        self, uid: int, *arguments: object, groups: tuple[int, ...] = (), limits: tuple[str, ...] = (), **options
    ) -> subprocess.Popen[bytes]:
        """Start `perdure ARGUMENTS` as the user `uid`, with pipes, in a session of its own."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.home(uid))
        environment = self.user_environment(uid) | options.pop("env", {})
        process = subprocess.Popen(
            self.command(uid, *arguments, groups=groups, limits=limits), env=environment, start_new_session=True, **options
        )
        self._started.append(process)
        return process

    def user_environment(self, uid: int) -> dict[str, str]:
        return {
            "PATH": PATH,
            "HOME": str(self.home(uid)),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            "PERDURE_AGENT_SOCKET": str(self.socket),
        }

    def run(self, uid: int, *arguments: object, timeout_s: float = 240.0, **options) -> subprocess.CompletedProcess[bytes]:
        """Run `perdure ARGUMENTS` as the user `uid` to its end."""
        process = self.client(uid, *arguments, **options)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def json(self, uid: int, *arguments: object) -> dict:
        done = self.run(uid, *arguments, "--json")
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def ps(self, uid: int, name: str) -> dict:
        (found,) = self.json(uid, "ps", name)["workloads"]
        return found

    def begin(self, uid: int, name: str, *command: str, options: tuple[object, ...] = (), **more) -> subprocess.Popen[bytes]:
        """Start a workload that writes something, and wait until it has: then it runs."""
        process = self.client(uid, "run", "--name", name, "--every", "never", *options, "--", *command, **more)
        log = self.user_state(uid) / "workloads" / name / "log"

        def has_begun() -> bool:
            assert process.poll() is None, (process.communicate(), self.audit())
            return log.exists() and log.stat().st_size > 0

        wait_for(has_begun, 240, f"for {name}")
        return process

    def user_state(self, uid: int) -> Path:
        return self.state / "users" / str(uid)

    def seat(self, uid: int, name: str) -> int:
        """PID of the workload's seat, as its lock says."""
        return int((self.user_state(uid) / "workloads" / name / "lock").read_text())

    def tree(self, uid: int, name: str) -> list[int]:
        """PIDs of everything below the workload's seat."""
        return descendants(self.seat(uid, name))

    def audit(self) -> list[dict]:
        """What the log of privileged actions holds; a line that is being written just now is left out."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text("ascii").splitlines(keepends=True) if line.endswith("\n")]

    def noted(self, what: str, **about: object) -> list[dict]:
        """Lines of the audit log about `what` that say `about`."""
        return [line for line in self.audit() if line["what"] == what and about.items() <= line.items()]

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        kill_holders(self.state.glob("users/*/workloads/*/lock"))
        if self.agent is not None and self.agent.poll() is None:
            self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def running(**variables: str) -> Iterator[Node]:
    """A node while the block runs."""
    node = Node(**variables)
    try:
        yield node
    finally:
        node.close()


def start_as_user(uid: int, function: Callable[..., object], *values: object, groups: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    """Call `function`, of a test's module, in a process of the user `uid` that has no right of root's, with pipes."""
    who = [str(uid), str(uid), ",".join(map(str, groups))]
    call = ["+call", str(inspect.getsourcefile(function)), function.__name__, json.dumps(values)]
    return subprocess.Popen(
        [sys.executable, str(_LAUNCHER), *who, "--", *call],
        env={"PATH": PATH, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def as_user(uid: int, function: Callable[..., object], *values: object, groups: tuple[int, ...] = ()) -> object:
    """Do the same to its end, and return what it returns. Values go there and back as JSON."""
    process = start_as_user(uid, function, *values, groups=groups)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def asking(path: str, documents: list[dict]) -> list[object]:
    """Ask the agent at `path` for each of `documents`; returns the answers, or code, message and hint of what was refused with."""
    found: list[object] = []
    for document in documents:
        try:
            wanted = asked.decode(json.dumps(document).encode())
            found.append(client.ask(path, wanted.what, user=wanted.user))
        except errors.PerdureError as error:
            found.append([error.code, str(error), error.hint])
    return found


def ask_as(node: Node, uid: int, *whats: asked.What, user: int | None = None) -> list:
    """Ask for `whats` as the user `uid`, one after the other; see `asking`."""
    documents = [msgspec.to_builtins(asked.Asked(what=what, user=user)) for what in whats]
    return as_user(uid, asking, str(node.socket), documents)


def ends(pid: int, limit_s: float = LIMIT_S) -> None:
    """Wait until the process `pid` has ended."""
    wait_for(lambda: is_zombie(pid), limit_s, f"for the end of {pid}")
