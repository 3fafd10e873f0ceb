"""Prove that a CRIU works here: a tiny process with a socket and a timer is dumped, killed, restored, and seen to go on.

Called by `locate` before a CRIU is used for the first time, and by `doctor`. `criu check` is no such proof: 4.1.1 passes it on
kernels that make it fail on every process with an INET socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import privileges
from perdure.checkpoint.criu import run
from perdure.checkpoint.criu.log import Explanation
from perdure.checkpoint.images import timers

REVISION = 1
"""Grows when the probe asks for more than before, so that older answers are not believed."""

_STEP_S = 10.0
_TIMER = "timer"


class Outcome(msgspec.Struct, frozen=True):
    """What the probe found. `step` is where it failed (``privileges version start dump run-on restore socket timer``) or ``done``."""

    passed: bool
    version: str
    step: str
    wall_s: float
    explanation: Explanation | None = None
    network_lock: Literal["iptables", "nftables"] = "iptables"
    """What `criu` is to hold connections still with."""


class _Failed(Exception):
    """Carries the failed step to `probe`; never leaves this module."""

    def __init__(self, step: str, explanation: Explanation) -> None:
        super().__init__(step)
        self.step = step
        self.explanation = explanation


def probe(criu: run.Criu, init: str) -> Outcome:
    """Prove or disprove `criu`, with the static minimal init at the path `init`; takes about a second, at most a minute.

    Leaves nothing behind: no process, no namespace, no folder.
    """
    began = time.monotonic()
    version = ""
    try:
        refusal = why_not_here()
        if refusal is not None:
            raise _Failed("privileges", refusal)
        version = read_version(criu)
        if not version:
            raise _Failed("version", _explain("criu-not-startable", f"{criu.program} does not tell its version", "name another CRIU"))
        criu = msgspec.structs.replace(criu, network_lock=_choose_lock(criu))
        with tempfile.TemporaryDirectory(prefix="perdure-probe-") as folder:
            _Trial(criu, init, Path(folder)).attempt()
    except _Failed as failure:
        return Outcome(False, version, failure.step, time.monotonic() - began, failure.explanation)
    return Outcome(True, version, "done", time.monotonic() - began, network_lock=criu.network_lock)


def why_not_here() -> Explanation | None:
    """Return what this process lacks for checkpointing at all, or None."""
    if not privileges.is_root():
        return _explain("host-privileges", "checkpointing needs root, and this process is not", "run it as root: sudo perdure …")
    lacking = privileges.missing(("CAP_SYS_ADMIN", "CAP_SYS_PTRACE"))
    if lacking:
        names = ", ".join(lacking)
        return _explain(
            "host-privileges",
            f"this root lacks {names}, as in a container that was started without them",
            "start the container with " + " ".join(f"--cap-add={name.removeprefix('CAP_')}" for name in lacking),
        )
    return None


def _choose_lock(criu: run.Criu) -> Literal["iptables", "nftables"]:
    """Return nftables where CRIU and the kernel have it: the other way needs the programs of iptables, which many systems lack."""
    with tempfile.TemporaryDirectory(prefix="perdure-probe-") as folder:
        asked = run.Call(
            action=run.Action.CHECK, images=folder, work=folder, timeout_s=_STEP_S, options=("--feature", "network_lock_nftables")
        )
        return "nftables" if run.run(criu, asked).succeeded else "iptables"


def read_version(criu: run.Criu) -> str:
    """Return the version that `criu` tells, such as ``4.2.1``, or an empty text when it does not start."""
    try:
        done = subprocess.run([*criu.argv, "--version"], capture_output=True, text=True, errors="replace", timeout=_STEP_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"^Version: (\S+)", done.stdout, re.MULTILINE)
    return match[1] if match else ""


_PAYLOAD = """\
import ctypes, os, select, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
libc = ctypes.CDLL(None)
timer = libc.timerfd_create(1, 0)
period = (ctypes.c_long * 4)(0, 250_000_000, 0, 250_000_000)
if timer < 0 or libc.timerfd_settime(timer, 0, period, None) != 0:
    sys.exit(3)
progress = os.open(sys.argv[1], os.O_WRONLY)
rounds = fired = 0
while True:
    if select.select([timer], [], [], 0.01)[0]:
        os.read(timer, 8)
        fired += 1
    client.send(b".")
    rounds += len(server.recv(1))
    os.pwrite(progress, rounds.to_bytes(8, "little") + fired.to_bytes(8, "little"), 0)
"""
"""Counts rounds over its own connection and expiries of its timer, and writes both where they can be read."""


class _Trial:
    """One dump, kill and restore."""

    def __init__(self, criu: run.Criu, init: str, folder: Path) -> None:
        self._criu = criu
        self._init = init
        self._folder = folder
        self._images = folder / "images"
        self._progress = folder / "progress"

    def attempt(self) -> None:
        self._images.mkdir(mode=0o700)
        self._clear()
        # The payload is the leader of a session inside its namespace, as CRIU wants a tree's root to be.
        launcher = subprocess.Popen(
            [
                "unshare",
                "--pid",
                "--ipc",
                "--fork",
                "setsid",
                self._init,
                "--",
                sys.executable,
                "-I",
                "-S",
                "-c",
                _PAYLOAD,
                str(self._progress),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,  # CRIU makes a folder there for an instant, and another probe may be going on
        )
        try:
            root = self._await_start(launcher)
            self._call("dump", run.Action.DUMP, "--leave-running", root=root)
            self._await("run-on", timer=False)
        finally:
            _end(launcher)
        self._clear()
        # As before every restore: CRIU saves a timer whose expiry is pending as one that never fires again.
        try:
            timers.cure_timerfds(self._images)
        except errors.InputError as error:
            raise _Failed("dump", _explain("criu-images-unusable", str(error), "use another CRIU")) from error
        pid_file = self._folder / "pid"
        try:
            self._call("restore", run.Action.RESTORE, "--restore-detached", "--restore-sibling", "--pidfile", str(pid_file))
            self._await("socket", timer=False)
            self._await(_TIMER, timer=True)
        finally:
            _end_restored(pid_file)

    def _clear(self) -> None:
        # Of the same size as before: CRIU refuses a file whose size changed.
        self._progress.write_bytes(bytes(16))

    def _await_start(self, launcher: subprocess.Popen[bytes]) -> int:
        self._await("start", timer=True, launcher=launcher)
        children = _children(launcher.pid)
        if not children:
            raise _Failed(
                "start", _explain("host-no-children", "/proc does not list a process's children", "use a kernel with PROC_CHILDREN")
            )
        return children[0]

    def _await(self, step: str, *, timer: bool, launcher: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until the payload has gone on from where it is now; `timer`: until its timer has fired, too."""
        seen = self._read()
        end = time.monotonic() + _STEP_S
        is_over = False
        while not is_over:
            is_over = time.monotonic() > end  # looked at once more: this process may have stood still meanwhile
            now = self._read()
            if now[0] > seen[0] and (not timer or now[1] > seen[1]):
                return
            if launcher is not None and launcher.poll() is not None:
                break
            # Another process's writes to a file can only be looked for.
            time.sleep(0.005)
        raise _Failed(step, _STALLED[step])

    def _read(self) -> tuple[int, int]:
        content = self._progress.read_bytes()
        return int.from_bytes(content[:8], "little"), int.from_bytes(content[8:16], "little")

    def _call(self, step: str, action: run.Action, *options: str, root: int | None = None) -> None:
        standing = ("--tcp-established", "--manage-cgroups=ignore")
        call = run.Call(
            action=action, images=str(self._images), work=str(self._folder), timeout_s=_STEP_S, options=(*standing, *options), root=root
        )
        result = run.run(self._criu, call)
        if result.explanation is not None:
            raise _Failed(step, result.explanation)


def _explain(code: str, message: str, remedy: str) -> Explanation:
    return Explanation(code=code, message=message, line="", remedy=remedy)


_STALLED = {
    "start": _explain(
        "host-no-namespaces",
        "a process in a PID and IPC namespace of its own did not start",
        "try: unshare --pid --ipc --fork true; in a container, allow namespaces or start it privileged",
    ),
    "run-on": _explain("criu-not-left-running", "the process did not go on after a dump that was to leave it running", "use another CRIU"),
    "socket": _explain(
        "criu-restored-dead", "CRIU said that it restored the process, and its connection does not go on", "use another CRIU"
    ),
    "timer": _explain("criu-timer-lost", "the restored process's timer never fires again", "use CRIU 4.2.1 or newer"),
}


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]
    except OSError:
        return []


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Kill the namespace's init, and with it all that is inside; then reap."""
    for child in _children(launcher.pid):
        _kill(child)
    if not _children(launcher.pid):
        launcher.kill()
    try:
        launcher.wait(_STEP_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()


def _end_restored(pid_file: Path) -> None:
    """Kill and reap the restored init, which is our child."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(pid_file.read_text("ascii"))
        _kill(pid)
        os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
