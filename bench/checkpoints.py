"""How fast checkpoints are: the stop, storing and restoring, each beside the tool it is held against.

Needs root and a working CRIU. restic and borg are Debian's; where one is missing, its figure says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import signal
import statistics as summary
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench import Figure, print_figures
from perdure.base import settings
from perdure.checkpoint import dump, launch, restore, statistics, tree, views
from perdure.checkpoint.criu import locate, run
from perdure.checkpoint.criu.run import Action, Call
from perdure.checkpoint.images.pagemaps import runs_of
from perdure.model.checkpoint import BLOCK_BYTES, CheckpointId, HostFact, Manifest, Part, Run, Trigger
from perdure.store.backends.address import open_backend
from perdure.store.repository import Repository
from perdure.supervisor import resume

_PROGRAMS = Path(__file__).parent / "programs"
_ROOT = Path(__file__).resolve().parent.parent


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure a process of 2 GiB of which one page in a hundred changes, and a PyTorch training where there is PyTorch."""
    parser = argparse.ArgumentParser(prog="checkpoints", description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(list(arguments))
    if os.geteuid() != 0:
        return [Figure("checkpoints", None, "", note="needs root")]
    bench = _Bench(chosen.rounds)
    figures = bench.measure(_pages(chosen.mebibytes), f"{chosen.mebibytes} MiB, 1 % of its pages changed")
    figures += (
        bench.measure(_training(), "PyTorch training")
        if _torch()
        else [Figure("PyTorch training", None, "", note="no PyTorch: scripts/setup apps")]
    )
    return figures


class _Program:
    """A tree of ours with pipes for its streams, that is told when to go on."""

    def __init__(self, argv: Sequence[str], step: Callable[[_Program], None]) -> None:
        self.argv = tuple(argv)
        self._step = step
        self._ends: list[int] = []

    def start(self, init: locate.Init) -> tree.Tree:
        stdin, self.to = os.pipe()
        self.out, stdout = os.pipe()
        self._ends = [stdin, self.to, self.out, stdout]
        self.descriptors = {0: stdin, 1: stdout, 2: stdout}
        spec = launch.LaunchSpec(
            argv=self.argv,
            environment={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            working_directory="/",
            init=init,
            stdin=stdin,
            stdout=stdout,
            stderr=stdout,
            first_pid=launch.first_pid("bench"),
        )
        self.root = launch.launch(spec)
        self.line()
        return self.root

    def line(self) -> bytes:
        found = b""
        while not found.endswith(b"\n"):
            more = os.read(self.out, 1)
            if not more:
                raise SystemExit(f"bench: {self.argv} ended: {found!r}")
            found += more
        return found

    def step(self) -> None:
        """Let the program change what it changes."""
        self._step(self)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            tree.kill(self.root)
        tree.reap(self.root, wait=True)

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


def _pages(mebibytes: int) -> _Program:
    def step(program: _Program) -> None:
        os.write(program.to, b"%d\n" % (mebibytes * 256 // 100))
        program.line()

    return _Program([sys.executable, str(_PROGRAMS / "pages.py"), str(mebibytes)], step)


def _torch() -> str | None:
    python = str(_ROOT / ".venv-apps/bin/python")
    found = os.access(python, os.X_OK) and subprocess.run([python, "-c", "import torch"], check=False, capture_output=True).returncode == 0
    return python if found else None


def _training() -> _Program:
    def step(program: _Program) -> None:
        for _ in range(3):
            program.line()

    return _Program([_torch() or "", str(_ROOT / "scripts/demo-train.py"), "1000000"], step)


class _Bench:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        places = locate.places(settings.load({}, working_directory=Path("/")), os.environ)
        self._criu = locate.find(places)
        self._init = locate.find_init(places, beside=self._criu)

    def measure(self, program: _Program, what: str) -> list[Figure]:
        with (
            tempfile.TemporaryDirectory(prefix="perdure-bench-", dir="/dev/shm") as memory,
            tempfile.TemporaryDirectory(prefix="perdure-bench-") as disk,
        ):
            self._memory, self._disk = Path(memory), Path(disk)
            init = launch.install_init(self._init, self._disk / "init")
            program.start(init)
            try:
                return [Figure(f"— {what}", None, ""), *self._stops(program), *self._stores(program)]
            finally:
                program.end()
                program.close()

    # The stop ----------------------------------------------------------------------------------------------------------------

    def _stops(self, program: _Program) -> Iterator[Figure]:
        ours, plain = [], []
        for turn in range(self._rounds + 1):
            pair = [(ours, self._our_dump), (plain, self._plain_dump)]
            for values, make in pair if turn % 2 else reversed(pair):
                program.step()
                with self._fresh("stop") as folder:
                    stopped_s = make(program, folder)
                if turn:  # the first touches of memory are slow for whoever comes first
                    values.append(stopped_s)
        ratio = summary.median(ours) / summary.median(plain)
        yield Figure(
            "stopped, against criu dump --leave-running to memory", ratio, "x", "≤ 1.1", ratio <= 1.1,
            f"{summary.median(ours):.3f} s and {summary.median(plain):.3f} s, medians of {len(ours)}",
        )  # fmt: skip

    def _our_dump(self, program: _Program, folder: Path) -> float:
        return dump.dump(program.root, folder, dump.DumpOptions(expected_bytes=4 << 30), lambda: None, self._criu).stopped_s

    def _plain_dump(self, program: _Program, folder: Path) -> float:
        images = folder / "plain"
        images.mkdir()
        call = Call(
            action=Action.DUMP, images=str(images), work=str(folder), timeout_s=600, verbosity=2, root=program.root.pid, is_inside=True,
            options=("--leave-running", "--manage-cgroups=ignore"),
        )  # fmt: skip
        result = run.run(views.entered(self._criu, f"/proc/{program.root.pid}/ns/mnt"), call)
        if not result.succeeded:
            raise SystemExit(f"bench: {result.explanation}")
        return statistics.of_dump(folder).frozen_s

    @contextlib.contextmanager
    def _fresh(self, name: str) -> Iterator[Path]:
        folder = self._memory / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # Storing and restoring ---------------------------------------------------------------------------------------------------

    def _stores(self, program: _Program) -> Iterator[Figure]:
        with self._fresh("images") as folder:
            first = (
                dump.dump(program.root, folder / "a", dump.DumpOptions(expected_bytes=4 << 30), lambda: None, self._criu)
                if (folder / "a").mkdir() is None
                else None
            )
            assert first
            program.step()
            (folder / "b").mkdir()
            second = dump.dump(
                program.root, folder / "b", dump.DumpOptions(expected_bytes=4 << 30, leave="stopped"), lambda: None, self._criu
            )
            changed = _changed_bytes(first.images, second.images)
            repository = Repository.create(
                open_backend(str(self._disk / "store")), key=None, secret=os.urandom(32), repository_id=os.urandom(16).hex(),
                cache=self._disk / "cache", threads=os.cpu_count() or 1,
            )  # fmt: skip
            before, first_s = _store(repository, first, None, 1)
            made, second_s = _store(repository, second, before, 2)
            ratio = made.new_bytes / changed
            yield Figure(
                "stored by a second checkpoint, against its changed pages", ratio, "x", "≤ 1.1", ratio <= 1.1,
                f"{made.new_bytes / 1e6:.1f} MB for {changed / 1e6:.1f} MB; first: {before.new_bytes / 1e6:.0f} MB in {first_s:.2f} s",
            )  # fmt: skip
            yield from self._backups(first.images, second.images, second_s)
            program.end()
            yield self._restores(program, repository, made, second)

    def _backups(self, first: Path, second: Path, ours_s: float) -> Iterator[Figure]:
        """Back both up with others, under one path, since they compare by path."""
        environment = os.environ | {
            "RESTIC_PASSWORD": "x",
            "RESTIC_CACHE_DIR": str(self._disk / "rc"),
            "BORG_BASE_DIR": str(self._disk / "bb"),
            "BORG_PASSPHRASE": "x",
        }
        tools = {
            "restic": (["restic", "init", "-q", "-r", "R"], ["restic", "backup", "-q", "-r", "R"]),
            "borg": (["borg", "init", "-e", "repokey-blake2", "R"], ["borg", "create", "R::{now:%H%M%S%f}"]),
        }
        for name, (create, back_up) in tools.items():
            if not shutil.which(name):
                yield Figure(f"second checkpoint durable, against {name}", None, "x", "≥ 5", None, f"no {name} here")
                continue
            folder = self._disk / name
            folder.mkdir()

            def call(command: list[str], folder: Path = folder) -> float:
                began = time.monotonic()
                subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
                return time.monotonic() - began

            call(create)
            # In memory, as ours are, and under one name.
            held = first.parent / "now"
            for images in (first, second):
                shutil.rmtree(held, ignore_errors=True)
                shutil.copytree(images, held)
                wall_s = call([*back_up, str(held)])
            shutil.rmtree(held)
            ratio = wall_s / ours_s
            yield Figure(f"second checkpoint durable, against {name}", ratio, "x", "≥ 5", ratio >= 5, f"{wall_s:.2f} s and {ours_s:.2f} s")

    def _restores(self, program: _Program, repository: Repository, made: Manifest, saved: dump.Dumped) -> Figure:
        ours, plain = [], []
        streams = saved.streams
        options = restore.RestoreOptions(streams=streams, descriptors=program.descriptors, expected_bytes=4 << 30)
        for turn in range(self._rounds + 1):
            with self._fresh("plain") as folder:
                shutil.copytree(saved.images, folder / "images")
                (folder / "work").mkdir()
                began = time.monotonic()
                program.root = restore.restore(folder / "images", folder / "work", options, self._criu).tree
                wall_s = time.monotonic() - began
                program.end()
                if turn:
                    plain.append(wall_s)
            with self._fresh("ours") as folder:
                (folder / "work").mkdir()
                began = time.monotonic()
                # As the supervisor does: memory is read while CRIU gets ready and fills the tasks.
                late = resume.late(repository, made)
                names = [file.name for file in made.files if file.name not in late]
                repository.extract(made.id, folder, names=names, progress=lambda _: None)
                with repository.stream(made.id) as content:
                    content.begin(sorted(late, key=late.__getitem__, reverse=True))
                    pages = {os.path.basename(name): functools.partial(content.read, name) for name in late}
                    streamed = msgspec.structs.replace(options, pages=pages)
                    program.root = restore.restore(folder / "images", folder / "work", streamed, self._criu).tree
                wall_s = time.monotonic() - began
                if turn < self._rounds:
                    program.end()
                if turn:
                    ours.append(wall_s)
        ratio = summary.median(ours) / summary.median(plain)
        return Figure(
            "restored from the store, against criu restore from the page cache", ratio, "x", "≤ 1.3", ratio <= 1.3,
            f"{summary.median(ours):.3f} s and {summary.median(plain):.3f} s, medians of {len(ours)}",
        )  # fmt: skip


def _store(repository: Repository, dumped: dump.Dumped, previous: Manifest | None, number: int) -> tuple[Manifest, float]:
    began = time.monotonic()
    runs = runs_of(dumped.images)
    with repository.writer(previous=previous, progress=lambda _: None) as writer:
        for path in sorted(dumped.images.iterdir()):
            writer.add(f"images/{path.name}", path, part=Part.MEMORY if path.name in runs else Part.IMAGES, runs=runs.get(path.name))
        made = writer.commit(
            lambda sizes, files: Manifest(
                id=CheckpointId("bench", 1, number),
                created_ns=time.time_ns(),
                trigger=Trigger.REQUEST,
                reason="bench",
                command=(),
                working_directory="/",
                processes=dumped.processes,
                streams=dumped.streams,
                sizes=sizes,
                files=files,
                host=HostFact("", "", "", "", "", (), BLOCK_BYTES, "", "", 0),
            )
        )
    return made, time.monotonic() - began


def _changed_bytes(first: Path, second: Path) -> int:
    """Return the bytes of the pages of `second` that `first` does not hold at the same address."""
    former: dict[tuple[str, int], tuple[Path, int]] = {}
    for path, at, run_ in _stretches(first):
        for block in range(run_.blocks):
            former[run_.space, run_.address + block * BLOCK_BYTES] = (path, at + block * BLOCK_BYTES)
    handles = {path: open(path, "rb") for path in {path for path, _ in former.values()}}  # noqa: SIM115
    changed = 0
    for path, at, run_ in _stretches(second):
        with open(path, "rb") as handle:
            handle.seek(at)
            for block in range(run_.blocks):
                page = handle.read(BLOCK_BYTES)
                known = former.get((run_.space, run_.address + block * BLOCK_BYTES))
                changed += known is None or os.pread(handles[known[0]].fileno(), BLOCK_BYTES, known[1]) != page
    for handle in handles.values():
        handle.close()
    return changed * BLOCK_BYTES


def _stretches(images: Path) -> Iterator[tuple[Path, int, Run]]:
    for name, runs in runs_of(images).items():
        at = 0
        for one in runs:
            yield images / name, at, one
            at += one.blocks * BLOCK_BYTES


def main() -> None:
    """Print the figures."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(0 if print_figures(report(sys.argv[1:])) else 1)


if __name__ == "__main__":
    main()
