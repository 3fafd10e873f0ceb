"""A real program in a PID namespace of its own, dumped and restored by a real CRIU: for tests of what lies around the images."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from perdure.base import settings
from perdure.base.proc import process
from perdure.checkpoint.criu import locate, run

STANDING = ("--tcp-close", "--file-locks", "--link-remap", "--ghost-limit=1G", "--ext-unix-sk", "--manage-cgroups=ignore")

PREAMBLE = """
import os, pathlib, sys, time
sys.stderr = open("stderr", "a", buffering=1)
def say(name, text=""):
    while True:  # saved between the two, the first is not there when the second comes again
        try:
            pathlib.Path(name + ".new").write_text(str(text)); os.rename(name + ".new", name)
            return
        except FileNotFoundError:
            pass
def wait(name):
    while not os.path.exists(name): time.sleep(0.01)
"""


def wait_for(what, limit_s: float = 120.0):
    """Return the first true answer of `what`; for things outside that can only be looked at."""
    end = time.monotonic() + limit_s
    while not (answer := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return answer


class Frozen:
    """One Python program, `script`, started in `folder`. It says where it is by making files there; see `reached` and `tell`."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.criu = locate.find(locate.places(settings.load({}, working_directory=Path("/")), os.environ))
        (folder / "program.py").write_text(PREAMBLE + textwrap.dedent(script))
        self.pid = 0
        self._starter: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(os.devnull, "r+b") as null:
            self._starter = subprocess.Popen(
                ["unshare", "--pid", "--fork", "setsid", sys.executable, "-I", str(self.folder / "program.py")],
                stdin=null,
                stdout=null,
                stderr=null,
                cwd=self.folder,
            )
        self.pid = wait_for(lambda: process.children(self._starter.pid))[0]

    def said(self, name: str) -> str | None:
        """Return what the program wrote to the file `name`, None before that. Programs write to another name and rename."""
        path = self.folder / name
        return path.read_text() if path.exists() else None

    def reached(self, name: str, limit_s: float = 120.0) -> str:
        wait_for(lambda: self.said(name) is not None or self._failed(), limit_s)
        return self.said(name)

    def _failed(self) -> bool:
        assert "Traceback" not in (self.said("stderr") or ""), self.said("stderr")
        return False

    def tell(self, name: str) -> None:
        (self.folder / name).touch()

    def tree(self) -> tuple[int, ...]:
        return (self.pid, *process.descendants(self.pid))

    @property
    def images(self) -> Path:
        return self.folder / "images"

    def dump(self, *options: str) -> None:
        """Dump the tree; it is gone afterwards unless `options` say otherwise."""
        self.images.mkdir(mode=0o700)
        call = run.Call(
            action=run.Action.DUMP,
            images=str(self.images),
            work=str(self.images),
            timeout_s=120,
            options=("-t", str(self.pid), *STANDING, *options),
        )
        done = run.run(self.criu, call)
        assert done.succeeded, done.explanation
        if "--leave-running" not in options:
            self._reap()

    def restore(self) -> None:
        pidfile = self.images / f"pid.{time.monotonic_ns()}"
        call = run.Call(
            action=run.Action.RESTORE,
            images=str(self.images),
            work=str(self.images),
            timeout_s=120,
            options=("--restore-detached", "--restore-sibling", "--pidfile", str(pidfile), *STANDING),
        )
        done = run.run(self.criu, call)
        assert done.succeeded, done.explanation
        self.pid = int(pidfile.read_text())

    def kill(self) -> None:
        """End the tree, whether it was started or restored by us."""
        # One that ended by itself was reaped by its starter: its number may be another's by now.
        if self.pid and (self._starter is None or self._starter.poll() is None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        if self._starter is not None:
            self._starter.wait()
            self._starter = None
        elif self.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self.pid = 0
