"""A small process tree under a minimal init in namespaces of its own, for tests that hand it to a real CRIU."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from perdure.base import settings
from perdure.checkpoint.criu import locate, run

ROUND_S = 0.005
COUNT = """
import os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o666)
os.pwrite(out, bytes(8), 0)
rounds = 0
while True:
    rounds += 1
    os.pwrite(out, rounds.to_bytes(8, "little"), 0)
    time.sleep(0.005)
"""
"""Counts in the file that is its first argument, at most once every `ROUND_S`."""


def places() -> locate.Places:
    """Where CRIU is looked for, whatever the one who runs the tests has configured."""
    return locate.places(settings.load({}, working_directory=Path("/")), os.environ)


def wait_until(holds: Callable[[], bool], *, limit_s: float = 120.0) -> bool:
    """Wait until another process has done something that can only be looked for; tell whether it did."""
    end = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


class Tree:
    """A tree that counts. Use as a context manager: whatever was started or restored is ended."""

    def __init__(self, folder: Path, *, code: str = COUNT, before: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.images = folder / "images"
        self.images.mkdir()
        self.counter = folder / "counter"
        self._code = code
        self._before = before
        self._restored: list[int] = []

    def __enter__(self) -> Tree:
        init = locate.find_init(places()).path
        command = [init, "--", *self._before, sys.executable, "-I", "-S", "-c", self._code, str(self.counter)]
        self._launcher = subprocess.Popen(
            ["unshare", "--pid", "--ipc", "--fork", "setsid", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # CRIU makes a folder of one name there while it dumps: two trees must not share it.
            cwd=self.folder,
        )
        assert wait_until(lambda: self.count() > 0), "the tree did not start"
        self.root = self._children(self._launcher.pid)[0]
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for pid in self._restored:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def count(self) -> int:
        return int.from_bytes(self.counter.read_bytes()[:8], "little") if self.counter.exists() else 0

    def goes_on(self) -> bool:
        now = self.count()
        return wait_until(lambda: self.count() > now)

    def call(self, action: run.Action, *options: str, timeout_s: float = 120.0) -> run.Call:
        chosen = ("--leave-running",) if action is run.Action.DUMP else ("--restore-detached", "--restore-sibling")
        return run.Call(
            action=action,
            images=str(self.images),
            work=str(self.folder),
            timeout_s=timeout_s,
            root=self.root if action is run.Action.DUMP else None,
            options=("--manage-cgroups=ignore", *chosen, *options),
        )

    def restore(self, criu: run.Criu, **options: float) -> run.Result:
        result = run.run(criu, self.call(run.Action.RESTORE, **options))
        if result.root_pid is not None:
            self._restored.append(result.root_pid)
        return result

    def end(self) -> None:
        """Kill the tree with -9 and reap it."""
        if self._launcher.returncode is not None:
            return  # its number may be another's by now
        for child in self._children(self._launcher.pid):
            with contextlib.suppress(ProcessLookupError):  # it may end by itself meanwhile, and be reaped
                os.kill(child, signal.SIGKILL)
        self._launcher.wait(120)

    @staticmethod
    def _children(pid: int) -> list[int]:
        try:
            return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []
