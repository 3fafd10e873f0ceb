"""The vendor's order of steps, done by hand: what Perdure is held against. Driver: lock, checkpoint; CRIU: dump; driver: restore, unlock.

Nothing of Perdure's engine is used but the helper that speaks to the driver and the CRIU that was found.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.gpuproof.place import CaseFailed, Place, Program
from perdure.base import settings
from perdure.base.proc import process
from perdure.checkpoint.criu import locate
from perdure.checkpoint.criu.calls import PLUGINS
from perdure.checkpoint.cuda.contract import Operation, Request
from perdure.checkpoint.cuda.helper import Helper

_LIMIT_S = 1800.0
_LOCK_MS = 60_000
_GONE_S = 120.0


class Hand:
    """Saves and brings back one program, step by step, with images in a folder."""

    def __init__(self, place: Place, program: Program, helper: Helper) -> None:
        environ = place.environment
        self._place = place
        self._criu = locate.find(locate.places(settings.load(environ, working_directory=place.folder), environ))
        self._program = program
        self._helper = helper
        self._images = place.folder / "work" / f"{program.name}.images"
        self.durations_s: dict[str, float] = {}

    def save(self, pid: int) -> float:
        """Save the process `pid` and let it run on. Returns how long it stood still, in seconds."""
        shutil.rmtree(self._images, ignore_errors=True)
        self._images.mkdir(mode=0o700)
        began_s = time.monotonic()
        self._ask(Operation.LOCK, pid)
        self._ask(Operation.CHECKPOINT, pid)
        self._run("dump", "--tree", str(pid), "--leave-running", "--ghost-limit", "1G", "--link-remap")
        self._ask(Operation.RESTORE, pid)
        self._ask(Operation.UNLOCK, pid)
        return time.monotonic() - began_s

    def bring_back(self, pid: int) -> float:
        """Bring the process back under its old `pid`, which has to be free. Returns how long that took, in seconds."""
        began_s = time.monotonic()
        self._run("restore", "--restore-detached")
        self._ask(Operation.RESTORE, pid)
        self._ask(Operation.UNLOCK, pid)
        return time.monotonic() - began_s

    @property
    def stored_bytes(self) -> int:
        """Size of the images on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self._images.iterdir())

    def clear(self) -> None:
        """Remove the images."""
        shutil.rmtree(self._images, ignore_errors=True)

    def _ask(self, operation: Operation, pid: int) -> None:
        ticks = process.stat(pid).start_ticks
        request = Request(number=0, operation=operation, pid=pid, start_ticks=ticks, time_limit_ms=_LOCK_MS)
        began_s = time.monotonic()
        (answer,) = self._helper.ask((request,), self._place.within_s(_LIMIT_S))
        self.durations_s[f"gpu-{operation.value}"] = time.monotonic() - began_s
        if answer.problem is not None:
            raise CaseFailed(f"by hand, {operation.value}: {answer.problem.message}")

    def _run(self, action: str, *options: str) -> None:
        argv = [*self._criu.argv, action, "--images-dir", str(self._images), "--log-file", f"{action}.log", "--libdir", PLUGINS, *options]
        began_s = time.monotonic()
        done = subprocess.run(argv, capture_output=True, text=True, timeout=self._place.within_s(_LIMIT_S), check=False, cwd="/")
        self.durations_s[f"criu-{action}"] = time.monotonic() - began_s
        if done.returncode != 0:
            raise CaseFailed(f"by hand, criu {action}: {_errors(self._images / f'{action}.log') or done.stderr[-400:]}")


def end(pid: int) -> None:
    """Kill the process `pid`, which is nobody's child here, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], _GONE_S)
        os.close(handle)


def _errors(log: Path) -> str:
    with contextlib.suppress(OSError):
        return "; ".join(line for line in log.read_text("utf-8", "replace").splitlines() if "Error" in line)[:800]
    return ""


def figures(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Return how many times what was done by hand Perdure's own figures are."""
    return {
        f"{name}_x": ours[f"{name}{unit}"] / theirs[f"{name}{unit}"]
        for name, unit in (("stopped", "_s"), ("restore", "_s"), ("bytes", ""))
        if theirs.get(f"{name}{unit}") and ours.get(f"{name}{unit}") is not None
    }
