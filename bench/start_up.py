"""How long a person waits for the command line itself, beside an empty Python."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import Figure, print_figures

_GOAL = 3.0
"""`perdure --help` in units of a bare interpreter."""


def _median_ratio(command: list[str], base: list[str], *, runs: int) -> tuple[float, float]:
    """Time both in turn and return the median of the pairwise ratios, and the base's median in seconds."""
    pairs = []
    for _ in range(runs):
        seconds = []
        for argv in (command, base):
            started = time.perf_counter()
            subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
            seconds.append(time.perf_counter() - started)
        pairs.append((seconds[0] / seconds[1], seconds[1]))
    return statistics.median(ratio for ratio, _ in pairs), statistics.median(base_s for _, base_s in pairs)


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure `perdure --help` and one real command against `python -c pass`, in the environment that runs this."""
    parser = argparse.ArgumentParser(prog="start_up")
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args(arguments).runs
    perdure = str(Path(sys.executable).parent / "perdure")
    base = [sys.executable, "-c", "pass"]
    for argv in ([perdure, "--help"], base):  # the first run compiles and fills caches
        subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    helped, base_s = _median_ratio([perdure, "--help"], base, runs=runs)
    decided, _ = _median_ratio([perdure, "decide", "--gpus", "8", "--work", "20h", "--mttf", "47.7d"], base, runs=max(3, runs // 6))
    note = f"median of {runs} pairs; bare Python {base_s * 1000:.0f} ms"
    return [
        Figure("perdure --help / python -c pass", helped, "x", f"≤ {_GOAL:g}", helped <= _GOAL, note),
        Figure("perdure decide / python -c pass", decided, "x", note="numerical libraries included"),
    ]


def main() -> None:
    """Print the figures."""
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
