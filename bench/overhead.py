"""What a workload pays between its checkpoints: the same work with and without `perdure run`, in turns.

Two processes do the same, one of them managed; each turn is given to one and then to the other, in alternating order, so that what else
happens on the machine and how warm it is count for both. They are started anew several times: where memory came to lie counts once for each
start, and the interval is that of the starts. Needs root and a working CRIU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics as summary
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import Figure, print_figures
from perdure.base.proc import process

_WORK = Path(__file__).parent / "programs" / "work.py"
_SOURCE = Path(__file__).resolve().parent.parent / "src"
_DRAWS = 2000
_GOAL = 0.5


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure; about two and a half minutes for the numbers that are the default."""
    parser = argparse.ArgumentParser(prog="overhead", description=__doc__)
    parser.add_argument("--starts", type=int, default=12, help="how often both are started")
    parser.add_argument("--pairs", type=int, default=16, help="pairs of turns for each start")
    parser.add_argument("--blocks", type=int, default=512, help="MiB hashed in one turn")
    chosen = parser.parse_args(list(arguments))
    if os.geteuid() != 0:
        return [Figure("overhead between checkpoints", None, "", note="needs root")]
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        starts = [_start(Path(folder), chosen.pairs, chosen.blocks) for _ in range(chosen.starts)]
    return list(_figures(starts))


class _Start:
    """What one start of both was measured to pay, in per cent: pair by pair, and the supervisor's own processor time beside it."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.supervisor = 0.0


class _Worker:
    """One process that works when it is told."""

    def __init__(self, command: list[str], folder: Path) -> None:
        environment = os.environ | {
            "PERDURE_STATE": f"{folder}/state", "PERDURE_RUN_DIR": f"{folder}/run", "PYTHONPATH": str(_SOURCE),
        }  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._hear("ready")

    def turn(self, blocks: int) -> tuple[float, float]:
        """Let it work; return the seconds that took, of wall and of processor time."""
        if self.process.stdin is None:
            raise AssertionError("it cannot be told anything")
        self.process.stdin.write(f"{blocks}\n")
        self.process.stdin.flush()
        wall_s, processor_s = self._hear("took").split()[1:]
        return float(wall_s), float(processor_s)

    def close(self) -> None:
        """Let it end."""
        self.process.communicate(timeout=60)

    def _hear(self, word: str) -> str:
        for line in self.process.stdout or ():
            if line.startswith(word):
                return line
        raise SystemExit(f"bench: {self.process.args} ended: {self.process.communicate()[1]}")


def _start(folder: Path, pairs: int, blocks: int) -> _Start:
    alone = [sys.executable, str(_WORK)]
    managed = [sys.executable, "-m", "perdure", "run", "-q", "--fresh", "--name", "bench", "--every", "1h", "--", *alone]
    found = _Start()
    with contextlib.closing(_Worker(managed, folder)) as ours, contextlib.closing(_Worker(alone, folder)) as plain:
        for worker in (ours, plain):
            worker.turn(blocks)  # until the supervisor rests and the caches are warm
        before_s, began_s = _processor_s(ours.process.pid), time.monotonic()
        for pair in range(pairs):
            order = (ours, plain) if pair % 2 else (plain, ours)
            took = {worker: worker.turn(blocks) for worker in order}
            wall, processor = (100.0 * (took[ours][kind] / took[plain][kind] - 1.0) for kind in (0, 1))
            found.wall.append(wall)
            found.processor.append(processor)
        found.supervisor = 100.0 * (_processor_s(ours.process.pid) - before_s) / (time.monotonic() - began_s)
    return found


def _processor_s(pid: int) -> float:
    """Return the processor time of the process `pid` alone, in seconds."""
    return process.stat(pid).ticks / os.sysconf("SC_CLK_TCK")


def _figures(starts: Sequence[_Start]) -> Iterator[Figure]:
    told = f"{len(starts)} starts of {len(starts[0].wall)} pairs"
    own = summary.mean(start.supervisor for start in starts)
    yield Figure("the supervisor's own processor time", own, "%", note="of one core, while the workload works and says ten words a second")
    for kind in ("wall", "processor"):
        value, low, high = _estimate([getattr(start, kind) for start in starts])
        goal = f"< {_GOAL}" if kind == "processor" else ""
        yield Figure(
            f"overhead between checkpoints, {kind} time", value, "%", goal, high < _GOAL if goal else None,
            f"90 % interval {low:.2f} to {high:.2f}, {told}",
        )  # fmt: skip


def _estimate(starts: list[list[float]]) -> tuple[float, float, float]:
    """Return the mean over the starts of each one's median, and its 90 % interval by drawing starts, and pairs in them, again."""
    generator = random.Random(1)
    draws = sorted(
        summary.mean(summary.median(generator.choices(start, k=len(start))) for start in generator.choices(starts, k=len(starts)))
        for _ in range(_DRAWS)
    )
    return summary.mean(map(summary.median, starts)), draws[_DRAWS // 20], draws[-_DRAWS // 20]


def main() -> None:
    """Print the figures."""
    sys.exit(0 if print_figures(report(sys.argv[1:])) else 1)


if __name__ == "__main__":
    main()
