"""Where the proof runs: a folder of its own, a Perdure of its own, GPUs, and programs that are asked by files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.base.proc import machine
from perdure.checkpoint.host import gpu
from perdure.checkpoint.host.gpu import Gpus

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
_SOURCE = Path(gpu.__file__).resolve().parents[3]
_SPARE_BYTES = 1 << 30
_CLEARING_S = 60.0
_SLOW_BYTES_S = 50e6
"""Anything slower than this is taken for hanging."""


class Case(msgspec.Struct, kw_only=True):
    """What became of one case."""

    name: str
    outcome: str
    """``passed``, ``failed`` or ``not run``."""
    why: str = ""
    figures: dict[str, float] = {}
    """Name with unit, such as ``stopped_s``, ``restore_x``."""
    runs: list[dict[str, Any]] = []
    """Every run, as it was measured."""


class CaseFailed(Exception):
    """Something that has to hold does not."""


class NotRun(Exception):
    """Something that a case needs is not here, or there is no time for it."""


@dataclasses.dataclass
class Place:
    """Where the proof runs. `environment` is what all its processes get."""

    folder: Path
    gpus: Gpus
    criu: str | None = None
    """A program or a prefix; None: what Perdure finds."""
    python: str = sys.executable
    """The Python that has PyTorch, if one has."""
    ends_s: float | None = None
    """When all has to be over, by the monotonic clock; None: there is no hurry."""

    def __post_init__(self) -> None:
        for name in ("state", "run", "work"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of Perdure and of the programs."""
        found = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
        found |= {"PERDURE_STATE": str(self.folder / "state"), "PERDURE_RUN_DIR": str(self.folder / "run")}
        found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(_SOURCE), *filter(None, sys.path)]))
        return found | ({"PERDURE_CRIU": self.criu} if self.criu else {})

    def with_torch(self, program: str, *arguments: str) -> list[str]:
        """Return the command of one of `PROGRAMS` for the Python that has PyTorch, which may be another one than ours.

        It gets none of our libraries, which it does not need and may not be able to load.
        """
        return ["env", "-u", "PYTHONPATH", self.python, str(PROGRAMS / program), *arguments]

    def clear(self, *arguments: str) -> None:
        """Run a command of Perdure that clears away what a case left, whatever comes of it and however late it is."""
        command = [sys.executable, "-m", "perdure", *arguments]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, env=self.environment, cwd=self.folder, timeout=_CLEARING_S, check=False)

    def perdure(self, *arguments: str, limit_s: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run a command of Perdure to its end. Raises `NotRun` when no time is left for it."""
        command = [sys.executable, "-m", "perdure", *arguments]
        try:
            return subprocess.run(
                command, capture_output=True, text=True, env=self.environment, cwd=self.folder, timeout=self.within_s(limit_s), check=False
            )
        except subprocess.TimeoutExpired as expired:
            self.require_time()
            raise CaseFailed(f"perdure {' '.join(arguments)} took longer than {expired.timeout:.0f} s") from expired

    def told(self, *arguments: str, limit_s: float = 600.0) -> dict[str, Any]:
        """Run a command with --json that has to go well. Raises `CaseFailed`."""
        done = self.perdure(*arguments, "--json", limit_s=limit_s)
        if done.returncode != 0:
            raise CaseFailed(f"perdure {' '.join(arguments)}: status {done.returncode}: {_reason(done.stderr)}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def left_s(self) -> float | None:
        """Return how long it may still take; None: as long as it likes."""
        return None if self.ends_s is None else self.ends_s - time.monotonic()

    def within_s(self, limit_s: float) -> float:
        """Return `limit_s`, or what is left, if that is less."""
        left_s = self.left_s()
        return limit_s if left_s is None else min(limit_s, max(left_s, 0.1))

    def require_time(self) -> None:
        """Raise `NotRun` when no time is left."""
        left_s = self.left_s()
        if left_s is not None and left_s <= 0:
            raise NotRun("the time limit came before its end")

    def argv_of(self, name: str, size_bytes: int) -> list[str]:
        """Return the command line of a program called `name` that holds `size_bytes` of the first GPU."""
        return [sys.executable, str(PROGRAMS / "gpu_work.py"), str(self.folder / "work" / name), self.gpus.devices[0].uuid, str(size_bytes)]

    def disk_bytes(self) -> int:
        """Return what is free on the disk, but for a spare part."""
        there = os.statvfs(self.folder)
        return there.f_bavail * there.f_frsize - _SPARE_BYTES

    def room_bytes(self, on_disk: int = 2) -> int:
        """Return how much GPU memory a case may take: what the first GPU has free, twice in the machine's memory.

        `on_disk` is how often the disk has to hold it: images that wait to be stored, and what is stored of them.
        """
        if not self.gpus.devices:
            raise NotRun("NVML shows no GPU")
        host_bytes = machine.memory().available_bytes
        room = min(self.gpus.devices[0].free_bytes - _SPARE_BYTES // 2, (host_bytes - _SPARE_BYTES) // 2)
        return min(room, self.disk_bytes() // on_disk) if on_disk else room


class Program:
    """A program that works in a folder of its own; `prefix` is what it is started by."""

    def __init__(self, place: Place, name: str, argv: Sequence[str], *, prefix: Sequence[str] = ()) -> None:
        self.place = place
        self.name = name
        self.folder = place.folder / "work" / name
        self.folder.mkdir(exist_ok=True)
        self.argv = [*prefix, *argv]
        self._asked = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or what keeps it, in a session of its own, with its output in ``out`` and ``err``."""
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.place.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def wait_ready(self, limit_s: float = 300.0) -> None:
        """Wait for its file ``ready``. Raises `CaseFailed`, `NotRun`."""
        self._wait((self.folder / "ready").exists, limit_s, "to begin")

    def ask(self, what: str, size_bytes: int = 0) -> str:
        """Ask it by a file and return its answer. Raises `CaseFailed`."""
        self._asked += 1
        aside = self.folder / ".asked"
        aside.write_text(f"{self._asked} {what}")
        os.replace(aside, self.folder / "ask")
        found: list[str] = []

        def is_answered() -> bool:
            with contextlib.suppress(FileNotFoundError):
                number, _, value = (self.folder / "answer").read_text().partition(" ")
                if number == str(self._asked):
                    found.append(value)
            return bool(found)

        self._wait(is_answered, 120.0 + size_bytes / _SLOW_BYTES_S, f"to answer {what}")
        return found[0]

    def _wait(self, is_there, limit_s: float, what: str) -> None:
        end_s = time.monotonic() + limit_s
        while not is_there():
            if self.process is not None and self.process.poll() is not None:
                raise CaseFailed(f"{self.name} ended with status {self.process.returncode}: {self.said()}")
            self.place.require_time()
            if time.monotonic() > end_s:
                raise CaseFailed(f"waited {limit_s:.0f} s in vain for {self.name} {what}: {self.said()}; {self._standing()}")
            time.sleep(0.01)

    def said(self) -> str:
        """Return the end of what it wrote to stderr."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "err").read_text("utf-8", "replace")[-800:].strip()
        return ""

    def _standing(self) -> str:
        """Return how each of its processes stands: its state, and where in the kernel it waits."""
        told = []
        for pid in _descendants(self.process.pid if self.process is not None else 0):
            with contextlib.suppress(OSError):
                _, _, rest = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")
                names = [Path(f"/proc/{pid}/{what}").read_text("utf-8", "replace").strip() for what in ("comm", "wchan")]
                told.append(f"{pid} {names[0]} {rest.split()[0]} {names[1]}")
        return f"its processes: {', '.join(told) or 'none'}"

    def kill(self) -> None:
        """Kill it with all that it started, as a node that fails would, and wait until all is gone."""
        if self.process is None:
            return
        below = [*_descendants(self.process.pid)]
        handles = []
        for pid in (self.process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
                signal.pidfd_send_signal(handles[-1], signal.SIGKILL)
        self.process.wait()
        for handle in handles:
            select.select([handle], [], [], 60.0)
            os.close(handle)
        (self.folder / "ask").unlink(missing_ok=True)  # whoever is brought back must not answer it again


def _reason(text: str) -> str:
    """Return the reason that a command gave as JSON on its last line."""
    last = (text.strip().splitlines() or [""])[-1]
    try:
        error = json.loads(last)["error"]
        return f"{error['message']} ({error['hint']})"
    except (ValueError, KeyError, TypeError):
        return last


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _descendants(int(child))
