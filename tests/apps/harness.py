"""One application, twice: undisturbed, and under `perdure run` with a checkpoint mid-way and everything killed after it.

What both leave behind is compared: standard output byte for byte, and the files that the application says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from supervised import is_zombie, remove_staged, wait_for

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = Path(__file__).resolve().parent / "programs"
DEADLINE_S = 240.0


def _same(text: bytes) -> bytes:
    return text


@dataclasses.dataclass(frozen=True)
class Application:
    """What is run, what it needs, and what must come out the same."""

    name: str
    command: tuple[str, ...]
    lines: int
    """Lines of standard output after which the checkpoint is asked for."""
    outputs: tuple[str, ...] = ()
    """Files in its folder that must be the same byte for byte."""
    needs: tuple[str, ...] = ()
    """Programs on PATH."""
    modules: tuple[str, ...] = ()
    """Python modules of the applications' environment."""
    options: tuple[str, ...] = ()
    """Options of `perdure run`."""
    shown: Callable[[bytes], bytes] = _same
    """What of standard output must be the same: without wall-clock times, for programs that print them."""
    build: tuple[tuple[str, ...], ...] = ()
    fast: bool = False
    progress_file: str | None = None
    """Counts its lines instead of standard output's."""


class Managed:
    """`perdure run` of one workload in a folder and a state of its own. Everything it started is ended by `close`."""

    def __init__(self, folder: Path, name: str, command: Sequence[str], options: Sequence[str] = ()) -> None:
        self.folder = folder
        self.name = name
        self.command = tuple(command)
        self.options = tuple(options)
        self.state = folder.parent / f"{folder.name}.state"
        self.run_dir = folder.parent / f"{folder.name}.run"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder.parent),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            "PERDURE_STATE": str(self.state),
            "PERDURE_RUN_DIR": str(self.run_dir),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.errors = folder.parent / f"{folder.name}.err"

    def perdure(self, *arguments: str, timeout_s: float = DEADLINE_S) -> subprocess.CompletedProcess[str]:
        """Run a command of ours beside the workload."""
        return subprocess.run(
            [sys.executable, "-m", "perdure", *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=timeout_s,
        )

    def start(self, *extra: str) -> None:
        """Start, or start again."""
        with open(self.errors, "ab") as errors, open(self.folder.parent / f"{self.folder.name}.out", "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "perdure", "run", "--name", self.name, *self.options, *extra, "--", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it said on stderr."""
        return self.errors.read_text(errors="replace")[-4000:]

    def log(self) -> bytes:
        """The console's log so far."""
        try:
            return (self.state / "workloads" / self.name / "log").read_bytes()
        except FileNotFoundError:
            return b""

    def output(self) -> bytes:
        """Standard output, as it stands in the file that it was sent to with ``>>``."""
        return (self.folder.parent / f"{self.folder.name}.out").read_bytes()

    def wait_lines(self, count: int, file: str | None = None) -> None:
        """Wait until the workload has written `count` lines; fail when it ends before."""
        assert self.process
        deadline = time.monotonic() + DEADLINE_S
        while True:
            text = (self.folder / file).read_bytes() if file and (self.folder / file).exists() else b"" if file else self.log()
            if text.count(b"\n") >= count:
                return
            assert self.process.poll() is None, f"ended with {self.process.returncode} before line {count}: {self.said()}\n{text[-500:]!r}"
            assert time.monotonic() < deadline, f"no line {count}: {text[-500:]!r} {self.said()}"
            select.select([], [], [], 0.01)

    def checkpoint(self) -> dict:
        """Ask for a checkpoint, wait until it is kept, and return the document that `perdure checkpoint --json` prints."""
        done = self.perdure("checkpoint", self.name, "--json")
        assert done.returncode == 0, f"{done.stderr[-600:]}\n{self.said()}"
        return json.loads(done.stdout)

    def tree(self) -> list[int]:
        """Host PIDs of the supervisor and all below it."""
        assert self.process
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    found += [int(child) for child in children.read_text().split()]
        return found

    def kill_all(self) -> None:
        """End the supervisor and the whole tree with SIGKILL, and wait until they are gone."""
        assert self.process
        tree = self.tree()
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        # One that is still dying answers whoever asks its port whether the next one is there.
        for pid in tree:
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists() or is_zombie(pid))

    def finish(self) -> int:
        """Wait for the end and return the exit status."""
        assert self.process
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not done after {DEADLINE_S} s: {self.log()[-500:]!r} {self.said()}") from None

    def close(self) -> None:
        """Leave nothing running."""
        if self.process and self.process.poll() is None:
            self.kill_all()
        remove_staged(self.state)


def interpreter(modules: Sequence[str]) -> str:
    """Return the Python that has `modules`: this one, or that of the applications' environment."""
    for candidate in (sys.executable, str(ROOT / ".venv-apps" / "bin" / "python")):
        if (
            os.access(candidate, os.X_OK)
            and not subprocess.run([candidate, "-c", f"import {', '.join(modules) if modules else 'sys'}"], capture_output=True).returncode
        ):
            return candidate
    return ""


def lack(application: Application) -> str | None:
    """Return what this machine lacks for the application, or None."""
    missing = [program for program in application.needs if not shutil.which(program)]
    if missing:
        return f"no {', '.join(missing)} on this machine"
    if application.modules and not interpreter(application.modules):
        return f"no Python with {', '.join(application.modules)}: scripts/setup apps"
    return None


def command(application: Application) -> tuple[str, ...]:
    """Return the command line, with the interpreter and the programs' folder filled in."""
    python = interpreter(application.modules)
    places = {"{python}": python, "{ours}": sys.executable}
    return tuple(places.get(word, word).replace("{programs}", str(PROGRAMS)) for word in application.command)


def hurry(folder: Path) -> None:
    """Tell programs that wait for a checkpoint to be stored that it is."""
    (folder / "hurry").touch()


def prepare(application: Application, folder: Path, *, alone: bool = False) -> None:
    """Make the folder and build what must be built, in it."""
    folder.mkdir()
    if alone:
        hurry(folder)
    for line in application.build:
        subprocess.run([word.replace("{programs}", str(PROGRAMS)) for word in line], cwd=folder, check=True, capture_output=True)


def undisturbed(application: Application, folder: Path) -> bytes:
    """Run to the end without us; return standard output."""
    prepare(application, folder, alone=True)
    done = subprocess.run(
        command(application),
        cwd=folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        env={"PATH": os.environ["PATH"], "HOME": str(folder.parent), "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout
