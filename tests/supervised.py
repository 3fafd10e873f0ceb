"""Real workloads under the real command line, for tests: started, watched, killed, and cleared away whatever happens."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from perdure import errors
from perdure.base.proc.process import stat
from perdure.supervisor import lock, state

ROOT = Path(__file__).resolve().parent.parent

LIMIT_S = 240.0
"""For what takes a second or two where nothing else runs. It costs nothing where all is well."""

COUNT = """
import os, sys, time
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    if not os.path.exists("hurry"):
        time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""
"""Prints numbered lines: ARGV = how many, seconds between two, exit status."""

COUNT_FOR_ANOTHER = """
import multiprocessing, os, sys, time

def count(lock, queue):
    number = 0
    while True:
        with lock:
            number += 1
        queue.put(number)
        time.sleep(0.01)
"""
"""The beginning of a program of multiprocessing: what its child does."""

KILLED_ON_TRIAL = """
import ctypes, os, signal, sys, time
trial = os.fork()
if not trial:
    parent = os.getppid()
    open(sys.argv[1] + "/trial.new", "w").write(str(os.getpid()))
    os.rename(sys.argv[1] + "/trial.new", sys.argv[1] + "/trial")
    while os.getppid() == parent:
        time.sleep(0.001)
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)
while not os.path.exists(sys.argv[1] + "/trial"):
    time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""A CRIU that is killed while it tries out on a child what the kernel can do: that has itself traced, by init then, and stops."""


def lines(count: int) -> bytes:
    """What `COUNT` writes when nothing disturbs it."""
    return b"".join(b"line %d\n" % number for number in range(count))


class Site:
    """One machine's worth of state, in a folder of the test's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "count.py").write_text(COUNT)
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "src"),
            "PERDURE_STATE": str(self.state),
            "PERDURE_RUN_DIR": str(folder / "run"),
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def hurry(self) -> None:
        """Let what counts get to its end at once: all that was to be done to it is done."""
        (self.work / "hurry").touch()

    def command(self, *arguments: str | os.PathLike[str]) -> list[str]:
        return [sys.executable, "-m", "perdure", *map(str, arguments)]

    def start(self, *arguments: str | os.PathLike[str], **options) -> subprocess.Popen[bytes]:
        """Start `perdure ARGUMENTS` with pipes, in a session of its own: by the command `wrapped_in`, or by the program `by`, if given."""
        wrapped_in, by = options.pop("wrapped_in", ()), options.pop("by", None)
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.work)
        environment = self.environment | options.pop("env", {})
        command = self.command(*arguments) if by is None else [sys.executable, "-c", by, *map(str, arguments)]
        process = subprocess.Popen([*wrapped_in, *command], env=environment, start_new_session=True, **options)
        self._started.append(process)
        return process

    def run(self, *arguments: str | os.PathLike[str], timeout_s: float = LIMIT_S, **options) -> subprocess.CompletedProcess[bytes]:
        """Run `perdure ARGUMENTS` to its end."""
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ps(self, name: str) -> dict:
        done = self.run("ps", name, "--json")
        assert done.returncode == 0, done.stderr.decode()
        (found,) = json.loads(done.stdout)["workloads"]
        return found

    def log(self, name: str) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self.state / "workloads" / name / "log").read_bytes()
        return b""

    def manifests(self, name: str) -> list[str]:
        """Names of the workload's checkpoints in the default store, oldest first."""
        folder = self.state / "store" / "workloads" / name / "manifests"
        return sorted(path.name for path in folder.iterdir() if re.fullmatch(r"\d{8}\.\d{8}", path.name)) if folder.is_dir() else []

    def supervisor(self, name: str) -> int:
        """PID of the workload's supervisor, as its lock says."""
        return int((self.state / "workloads" / name / "lock").read_text())

    def alive(self) -> list[int]:
        """Processes that work in the site's folder."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "cwd") == str(self.work) and not is_zombie(int(folder.name)):
                    found.append(int(folder.name))
        return found

    def kill_all(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a supervisor and everything below it with SIGKILL, and wait until all are gone."""
        below = descendants(process.pid)
        for pid in (process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        for pid in below:
            wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists() or is_zombie(pid))

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                self.kill_all(process)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        kill_holders((self.state / "workloads").glob("*/lock"))  # those in the background
        for entry in Path("/proc").glob("[0-9]*"):  # what a restore that was cut off left waiting
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd") == str(self.work) and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)
        remove_staged(self.state)


def remove_staged(folder: Path) -> None:
    """Remove the images, mostly in memory, that nothing will repair any more, as the state in `folder` and those of users below it note."""
    for path in (*folder.glob("state.db"), *folder.glob("users/*/state.db")):
        with contextlib.suppress(errors.PerdureError), state.opened(path) as database:
            for operation in database.unfinished():
                if operation.staging is not None:
                    shutil.rmtree(operation.staging, ignore_errors=True)


def kill_holders(locks: Iterable[Path]) -> None:
    """Kill the supervisors that hold `locks`. The number in one that nobody holds may be another process's by now."""
    for path in locks:
        with contextlib.suppress(ValueError, ProcessLookupError, OSError):
            if lock.is_held(path):
                os.kill(int(path.read_text()), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            # A thread that has just ended takes nothing away of what the others started.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for child in (task / "children").read_text().split():
                    found += [int(child), *descendants(int(child))]
    return found


def command_line(pid: int) -> list[bytes]:
    """The words that a process was started with; none where it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    return []


def is_zombie(pid: int) -> bool:
    """Tell whether a process has ended, reaped or not."""
    try:
        return stat(pid).is_dead
    except errors.ProcessGone:
        return True


def remove_group(group: Path) -> None:
    """Remove a control group once no process is in it, which the kernel may refuse for a moment after the end of the last one."""

    def is_removed() -> bool:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    wait_for(is_removed, what=f"for the end of all in {group}")


def wait_for(is_true: Callable[[], object], limit_s: float = LIMIT_S, what: str = "") -> None:
    """Wait until `is_true`, and fail after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, f"waited in vain {what}"
        time.sleep(0.02)
