"""GPU state on a real GPU: stop, restore and bytes beside the vendor's order of steps by hand, and the cost of being managed.

The whole proof with its report is ``make bench-gpu`` and ``scripts/gpu-proof``; this part has the figures of two sizes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import Figure, print_figures
from bench.gpuproof import cases, overhead
from bench.gpuproof.__main__ import what_forbids
from bench.gpuproof.place import Case, Place
from perdure.base import units
from perdure.checkpoint.host import gpu

_UNITS = {"_x": "x", "_s": "s", "_percent": "%"}


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure buffers of some sizes and a microbenchmark that launches kernels as fast as it can."""
    parser = argparse.ArgumentParser(prog="gpu", description=__doc__)
    parser.add_argument("--sizes", default="1G,8G")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0)
    chosen = parser.parse_args(list(arguments))
    gpus = gpu.look()
    why = "needs root" if os.geteuid() != 0 else what_forbids(gpus)
    if why is not None:
        return [Figure("GPU state", None, "", note=why)]
    with tempfile.TemporaryDirectory(prefix="perdure-bench-gpu-") as folder:
        place = Place(Path(folder).resolve(), gpus)
        found = [cases.attempt(size, lambda size=size: cases.buffers(place, units.parse_size(size))) for size in chosen.sizes.split(",")]
        found.append(cases.attempt("launches", lambda: overhead.launches(place, chosen.pairs, chosen.seconds)))
    return [figure for case in found for figure in _figures(case)]


def _figures(case: Case) -> list[Figure]:
    if case.outcome != "passed":
        return [Figure(case.name, None, "", met=False if case.outcome == "failed" else None, note=case.why)]
    return [_figure(case.name, name, value) for name, value in case.figures.items()]


def _figure(case: str, name: str, value: float) -> Figure:
    ending = next(ending for ending in _UNITS if name.endswith(ending))
    return Figure(f"{case} {name.removesuffix(ending).replace('_', ' ')}", value, _UNITS[ending])


def main() -> None:
    """Print the figures."""
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
