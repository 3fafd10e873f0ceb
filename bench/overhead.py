"""What a workload pays between its checkpoints: the same work with and without `perdure run`, in turns.

Two processes do the same, one of them managed; each turn is given to one and then to the other, in alternating order, so that what else
happens on the machine and how warm it is count for both. They are started anew several times: where memory came to lie counts once for each
start, and the interval is that of the starts. That alone is worth some per cent; so the same managed process is compared with itself too,
while its supervisor is stopped: what is left out then, its namespaces and the pipes that it writes to, does nothing while it computes.
Needs root and a working CRIU.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import signal
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
_LONGEST_START_S = 120.0


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure; about nine minutes for the numbers that are the default."""
    parser = argparse.ArgumentParser(prog="overhead", description=__doc__)
    parser.add_argument("--starts", type=int, default=24, help="how often both are started")
    parser.add_argument("--pairs", type=int, default=12, help="pairs of turns for each start")
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
        self.wall_within: list[float] = []
        self.processor_within: list[float] = []
        self.supervisor = 0.0


class _Worker:
    """One process that works when it is told, by pipes that lead past whoever started it."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        environment = os.environ | {
            "PERDURE_STATE": f"{folder}/state", "PERDURE_RUN_DIR": f"{folder}/run", "PYTHONPATH": str(_SOURCE),
        }  # fmt: skip
        pipes = [str(folder / f"{name}-{end}") for end in ("orders", "times")]
        for pipe in pipes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(pipe)
            os.mkfifo(pipe)
        self._words = open(os.devnull, "w")  # noqa: SIM115
        self.process = subprocess.Popen([*command, *pipes], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=self._words)
        self._times = os.open(pipes[1], os.O_RDONLY | os.O_NONBLOCK)
        self._orders = open(self._when_read(pipes[0]), "w", buffering=1)  # noqa: SIM115
        os.set_blocking(self._times, True)

    def _when_read(self, pipe: str) -> int:
        """Return a descriptor that writes into `pipe`, once the program has it open."""
        deadline_s = time.monotonic() + _LONGEST_START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            try:
                descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                time.sleep(0.01)
            else:
                os.set_blocking(descriptor, True)
                return descriptor
        self.process.kill()
        raise SystemExit(f"bench: {self.process.args} did not come up")

    def turn(self, blocks: int) -> tuple[float, float]:
        """Let it work; return the seconds that took, of wall and of processor time."""
        print(blocks, file=self._orders)
        told = b""
        while not told.endswith(b"\n"):
            more = os.read(self._times, 1000)
            if not more:
                raise SystemExit(f"bench: {self.process.args} ended")
            told += more
        wall_s, processor_s = map(float, told.split())
        return wall_s, processor_s

    def let_supervisor(self, *, run: bool) -> None:
        """Stop the process that keeps it, or let that run on."""
        os.kill(self.process.pid, signal.SIGCONT if run else signal.SIGSTOP)

    def close(self) -> None:
        """Let it end."""
        self.let_supervisor(run=True)
        self._orders.close()
        self.process.wait(timeout=60)
        os.close(self._times)
        self._words.close()


def _start(folder: Path, pairs: int, blocks: int) -> _Start:
    alone = [sys.executable, str(_WORK)]
    managed = [sys.executable, "-m", "perdure", "run", "-q", "--fresh", "--name", "bench", "--every", "1h", "--", *alone]
    found = _Start()
    with contextlib.closing(_Worker(managed, folder, "ours")) as ours, contextlib.closing(_Worker(alone, folder, "plain")) as plain:
        for worker in (ours, plain):
            worker.turn(blocks)  # until the supervisor rests and the caches are warm
        before_s, began_s = _processor_s(ours.process.pid), time.monotonic()
        for pair in range(pairs):
            order = (ours, plain) if pair % 2 else (plain, ours)
            took = {worker: worker.turn(blocks) for worker in order}
            for values, kind in ((found.wall, 0), (found.processor, 1)):
                values.append(_more(took[ours][kind], took[plain][kind]))
        found.supervisor = 100.0 * (_processor_s(ours.process.pid) - before_s) / (time.monotonic() - began_s)
        for pair in range(pairs):
            kept = {}
            for run in (True, False) if pair % 2 else (False, True):
                ours.let_supervisor(run=run)
                kept[run] = ours.turn(blocks)
            for values, kind in ((found.wall_within, 0), (found.processor_within, 1)):
                values.append(_more(kept[True][kind], kept[False][kind]))
    return found


def _more(managed_s: float, plain_s: float) -> float:
    """Return how much longer it took, in per cent."""
    return 100.0 * (managed_s / plain_s - 1.0)


def _processor_s(pid: int) -> float:
    """Return the processor time of the process `pid` alone, in seconds."""
    return process.stat(pid).ticks / os.sysconf("SC_CLK_TCK")


def _figures(starts: Sequence[_Start]) -> Iterator[Figure]:
    told = f"{len(starts)} starts of {len(starts[0].wall)} pairs"
    own = summary.mean(start.supervisor for start in starts)
    yield Figure("the supervisor's own processor time", own, "%", note="of one core, while the workload works and says ten words a second")
    for kind in ("wall", "processor", "wall_within", "processor_within"):
        value, low, high = _estimate([getattr(start, kind) for start in starts])
        time_, _, within = kind.partition("_")
        what = "overhead of a supervisor that runs, not stands" if within else "overhead between checkpoints"
        yield Figure(
            f"{what}, {time_} time", value, "%", f"< {_GOAL}", high < _GOAL, f"90 % interval {low:.2f} to {high:.2f}, {told}",
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
