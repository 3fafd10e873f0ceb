"""What it costs that a workload is an ordinary user's: its start and its restore, beside root's own, in turn on this machine.

The workload is `sleep`: all that is measured is Perdure and CRIU. Needs root and a CRIU that works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import Figure, print_figures
from perdure import errors
from perdure.base import settings
from perdure.checkpoint import dump, launch, restore, tree
from perdure.checkpoint.criu import locate
from perdure.model.checkpoint import Owner

_OWNER = Owner(uid=12345, gid=12345, groups=())
_SMALL_BYTES = 1 << 24


class _Bench:
    def __init__(self, folder: Path) -> None:
        places = locate.places(settings.load({}, working_directory=Path("/")), os.environ)
        self._criu = locate.find(places)
        self._folder = folder
        (folder / "live").mkdir()
        self._init = launch.install_init(locate.find_init(places, beside=self._criu), folder / "init")
        self._runs = 0

    def once(self, owner: Owner | None) -> tuple[float, float]:
        """Start, save, end and bring back one workload; return the seconds of the start and of the restore."""
        null = os.open(os.devnull, os.O_RDWR)
        try:
            spec = launch.LaunchSpec(
                argv=("sleep", "600"),
                environment={"PATH": "/usr/bin:/bin"},
                working_directory="/",
                init=self._init,
                stdin=null,
                stdout=null,
                stderr=null,
                first_pid=launch.first_pid("bench"),
                owner=owner,
                folder=str(self._folder / "live"),
            )
            began = time.perf_counter()
            root = launch.launch(spec)
            start_s = time.perf_counter() - began
        finally:
            os.close(null)
        self._runs += 1
        staging = self._folder / f"staging-{self._runs}"
        staging.mkdir(mode=0o700)
        dumped = dump.dump(root, staging, dump.DumpOptions(expected_bytes=_SMALL_BYTES, owner=owner), lambda: None, self._criu)
        _end(root)
        work = staging / "restore"
        work.mkdir(mode=0o700)
        options = restore.RestoreOptions(streams=dumped.streams, descriptors={}, expected_bytes=_SMALL_BYTES, owner=owner)
        began = time.perf_counter()
        restored = restore.restore(dumped.images, work, options, self._criu)
        restore_s = time.perf_counter() - began
        _end(restored.tree)
        return start_s, restore_s


def _end(root: tree.Tree) -> None:
    tree.kill(root)
    tree.reap(root, wait=True)


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure both in turn; the figures are medians of the differences and of root's own times."""
    parser = argparse.ArgumentParser(prog="owner")
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args(arguments).runs
    if os.geteuid() != 0:
        return [Figure("start of a user's workload", None, "ms", note="needs root")]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o755)
        try:
            bench = _Bench(Path(name))
        except errors.EnvironmentUnfit as error:
            return [Figure("start of a user's workload", None, "ms", note=str(error))]
        bench.once(None)  # fills caches
        pairs = [(bench.once(None), bench.once(_OWNER)) for _ in range(runs)]
    figures = []
    for at, what in enumerate(("start", "restore")):
        more_ms = statistics.median(1000 * (user[at] - root[at]) for root, user in pairs)
        own_ms = statistics.median(1000 * root[at] for root, _ in pairs)
        note = f"more than root's {own_ms:.0f} ms; median of {runs} pairs"
        figures.append(Figure(f"{what} of a user's workload", more_ms, "ms", note=note))
    return figures


def main() -> None:
    """Print the figures."""
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
