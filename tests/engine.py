"""One workload for tests of the engine: launched, saved, ended and brought back, with its output kept as a supervisor keeps it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from owners import PYTHON
from supervised import wait_for

from perdure import errors
from perdure.base import settings
from perdure.checkpoint import dump, launch, restore, tree, views
from perdure.checkpoint.criu import locate
from perdure.checkpoint.criu.run import Criu
from perdure.checkpoint.launch import LaunchSpec
from perdure.model.checkpoint import Owner

WAIT_S = 120.0
ON = "on"
"""Programs that come to an end wait for this file on their way: however busy the machine, none has ended before all was done to it."""


def working_criu() -> Criu:
    """The CRIU that `perdure` itself would take."""
    environ = dict(os.environ)
    return locate.find(locate.places(settings.load({}, working_directory=Path("/")), environ))


HOLDS_PROC = """
import os, sys, threading, time
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
child = os.fork()
if child == 0:
    time.sleep(1e6)
me = os.getpid()
paths = ["/proc/self/status", f"/proc/{me}/task/{me}/comm", f"/proc/{child}/status", "/proc/self/smaps_rollup"]
held = {path: open(path) for path in paths}
folders = [os.open(path, os.O_RDONLY) for path in ("/proc/self/fd", "/proc/self/task")]
number = 0
while True:
    number += 1
    told = []
    for path, file in held.items():
        file.seek(0)
        text = file.read()
        told.append(len(text) > 0)
        if path.endswith("status"):
            told.append(f"Pid:\\t{child if str(child) in path else me}\\n" in text)
    told.append(len(os.listdir(folders[1])) == 2)
    print(number, all(told), flush=True)
    time.sleep(0.01)
"""
"""Holds files of its own processes in /proc, and says whether they are still what they were."""


@contextlib.contextmanager
def alone_with_links() -> Iterator[None]:
    """Wait until no other test is in here: CRIU's links to files in /dev/shm that lost a name are called the same in every dump."""
    with open(Path(tempfile.gettempdir(), "perdure-test-links"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def forbid_mounts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be as in a container whose security module forbids to mount anything."""
    refusing = folder / "viewer.py"
    refusing.write_text("import json, socket, sys; socket.socket(fileno=int(sys.argv[1])).sendall(json.dumps({'errno': 1}).encode())")
    monkeypatch.setattr(views, "_VIEWER", refusing)


class Workload:
    """A tree and our side of its streams. Use it as a context manager: whatever happens, the tree is ended."""

    def __init__(
        self,
        folder: Path,
        *argv: str,
        terminal: bool = False,
        separate: bool = False,
        stdin: Path = Path(os.devnull),
        criu: Criu | None = None,
        owner: Owner | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.owner = owner
        self.environment = environment or {}
        self.argv = argv
        self.terminal = terminal
        self.separate = separate
        self.stdin = stdin
        self.criu = criu or working_criu()
        self.output = b""
        self.error = b""
        self.tree: tree.Tree | None = None
        self.dumps = 0
        self._ours: dict[int, int] = {}

    @classmethod
    def python(cls, folder: Path, script: str, *arguments: str, **options) -> Workload:
        path = folder / "program.py"
        path.write_text(textwrap.dedent(script))
        return cls(folder, PYTHON if options.get("owner") else sys.executable, "-u", str(path), *arguments, **options)

    def __enter__(self) -> Workload:
        init = locate.find_init(locate.places(settings.load({}, working_directory=Path("/")), dict(os.environ)), beside=self.criu)
        theirs = self._streams()
        try:
            self.tree = launch.launch(
                LaunchSpec(
                    argv=self.argv,
                    environment={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"} | self.environment,
                    working_directory=str(self.folder),
                    init=launch.install_init(init, self._private("init")),
                    stdin=theirs[0],
                    stdout=theirs[1],
                    stderr=theirs[2],
                    terminal=self.terminal,
                    first_pid=launch.first_pid(self.folder.name),
                    owner=self.owner,
                    folder=str(self._private("live")) if self.owner else None,
                )
            )
        finally:
            self._release(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(errors.ProcessGone):
            tree.kill(self.tree)
            tree.reap(self.tree, wait=True)
        self._close()

    def _private(self, name: str) -> Path:
        """A folder of ours: beside that of the workload where this is the owner's."""
        folder = (self.folder if self.owner is None else self.folder.parent) / name
        folder.mkdir(mode=0o755, exist_ok=True)
        return folder

    def _streams(self) -> tuple[int, int, int]:
        if self.terminal:
            master, slave = os.openpty()
            self._ours = {1: master}
            os.set_blocking(master, False)
            if self.owner is not None:
                os.fchown(slave, self.owner.uid, -1)
            return slave, slave, slave
        source = os.open(self.stdin, os.O_RDONLY)
        ours, theirs = os.pipe()
        self._ours = {1: ours}
        second = theirs
        if self.separate:
            other, second = os.pipe()
            self._ours[2] = other
        for descriptor in self._ours.values():
            os.set_blocking(descriptor, False)
            if self.owner is not None:
                os.fchown(descriptor, self.owner.uid, self.owner.gid)
        return source, theirs, second

    def _release(self, theirs: tuple[int, int, int]) -> None:
        for descriptor in set(theirs):
            os.close(descriptor)

    def _close(self) -> None:
        for descriptor in self._ours.values():
            os.close(descriptor)
        self._ours = {}

    @property
    def master(self) -> int:
        return self._ours[1]

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def drain(self) -> None:
        """Take what lies in the streams, without waiting."""
        for stream, descriptor in self._ours.items():
            with contextlib.suppress(BlockingIOError, OSError):
                while content := os.read(descriptor, 1 << 16):
                    if stream == 1:
                        self.output += content
                    else:
                        self.error += content

    def wait_for(self, wanted: str | bytes, limit_s: float = WAIT_S) -> None:
        """Wait until `wanted` has been written."""
        wanted = wanted.encode() if isinstance(wanted, str) else wanted
        end = time.monotonic() + limit_s
        while wanted not in self.output:
            left = end - time.monotonic()
            assert left > 0, f"{wanted!r} was not written: {self.output[-2000:]!r} {self.error[-2000:]!r}"
            select.select(list(self._ours.values()), [], [], min(left, 0.5))
            before = len(self.output) + len(self.error)
            self.drain()
            if len(self.output) + len(self.error) == before and not tree.is_alive(self.tree):
                self.drain()
                assert wanted in self.output, f"ended without {wanted!r}: {self.output[-2000:]!r} {self.error[-2000:]!r}"

    def await_command(self, name: str) -> None:
        """Wait until a process of the tree is called `name`: when the init runs, its command need not yet."""
        wait_for(lambda: any(found.command == name for found in tree.members(self.tree)), WAIT_S, f"for {name}")

    def let_end(self) -> None:
        """Let a program that waits for the file `ON` come to its end."""
        (self.folder / ON).touch()

    def stop(self, pid: int) -> None:
        """Stop one process of the tree as a user does, and wait until it stands still."""
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: tree.look(pid).is_stopped, WAIT_S, f"for {pid} to stop")

    def lines(self) -> list[str]:
        self.drain()
        return self.output.decode().replace("\r\n", "\n").splitlines()

    def dump(self, at_freeze=None, **options) -> dump.Dumped:
        """Save the tree into a new folder."""
        self.dumps += 1
        staging = (self.folder if self.owner is None else self.folder.parent) / f"staging-{self.dumps}"
        staging.mkdir(mode=0o700)
        options.setdefault("expected_bytes", 1 << 26)
        options.setdefault("owner", self.owner)
        hook = at_freeze or self.drain
        return dump.dump(self.tree, staging, dump.DumpOptions(**options), hook, self.criu)

    def end(self) -> int:
        """Kill the tree; what it wrote last is dropped, as a resumed supervisor does."""
        tree.kill(self.tree)
        return tree.reap(self.tree, wait=True)

    def restore(self, dumped: dump.Dumped, **options) -> restore.Restored:
        """Bring it back with new streams."""
        self._close()
        theirs = self._streams()
        work = dumped.images.parent / "restore"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700)
        options.setdefault("expected_bytes", 1 << 26)
        try:
            restored = restore.restore(
                dumped.images,
                work,
                restore.RestoreOptions(streams=dumped.streams, descriptors=dict(enumerate(theirs)), owner=self.owner, **options),
                self.criu,
            )
        finally:
            self._release(theirs)
        self.tree = restored.tree
        return restored

    def cycle(self, **options) -> dump.Dumped:
        """Save, end, bring back: what was written by the freeze stays, what came after is written again."""
        at_freeze: list[int] = []

        def hook() -> None:
            self.drain()
            at_freeze.append(len(self.output))

        dumped = self.dump(hook, **options)
        self.end()
        self.output = self.output[: at_freeze[0]]
        self.restore(dumped)
        return dumped

    def status(self) -> int:
        """Wait for the end of the workload, taking what it writes."""
        with os.fdopen(tree.open_pidfd(self.tree), "rb", buffering=0) as ended:
            end = time.monotonic() + WAIT_S
            while not select.select([ended], [], [], 0.02)[0]:
                self.drain()
                assert time.monotonic() < end, "it does not end"
        status = tree.reap(self.tree, wait=True)
        self.drain()
        return status
