"""Run the whole proof: ``python -m bench.gpuproof --out FOLDER``. Called by ``scripts/gpu-proof`` and ``make bench-gpu``.

Ends with 0 when all that was run passed, 4 when something failed, 20 where this machine lacks what it needs, 22 where its driver or GPUs
cannot save GPU state.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.gpuproof import cases, overhead, writing
from bench.gpuproof.place import Case, Place
from perdure import errors
from perdure.base import settings, units
from perdure.checkpoint.criu import locate
from perdure.checkpoint.host import gpu
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight import gpu_machine
from perdure.model.finding import problems

SIZES = "1G,2G,4G,8G,16G,32G,64G"
_UNFIT = frozenset({"gpu-no-driver", "gpu-driver-silent", "gpu-driver-mismatch", "gpu-no-device", "gpu-no-bindings"})
_UNFIT_STATUS, _UNSUPPORTED_STATUS, _FAILED_STATUS = 20, 22, 4


def main(arguments: list[str]) -> int:
    """Run the proof that `arguments` describe. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpu-proof", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-proof"), help="folder for the report")
    parser.add_argument(
        "--work", type=Path, help="folder for checkpoints and images, with room for twice the largest size; default: beside the report"
    )
    parser.add_argument("--sizes", default=SIZES, help=f"GPU memory of the buffers (default: {SIZES})")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs for the overhead (default: 10)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each such run (default: 10)")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--criu", default=os.environ.get("PERDURE_CRIU"), help="a CRIU or a prefix with one")
    chosen = parser.parse_args(arguments)
    sizes = [units.parse_size(word) for word in chosen.sizes.split(",")]
    if os.geteuid() != 0:
        return _refuse("this needs root: sudo scripts/gpu-proof", _UNFIT_STATUS)
    gpus = gpu.look()
    forbidden = problems(gpu_machine.judge(gpus))
    if forbidden:
        first = forbidden[0]
        return _refuse(
            f"{first.code}: {first.subject}: {first.message} ({first.remedy}). Nothing was run.",
            _UNFIT_STATUS if first.code in _UNFIT else _UNSUPPORTED_STATUS,
        )
    chosen.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gpu-proof-", dir=chosen.work or chosen.out)).resolve()
    try:
        place = Place(folder, gpus, criu=chosen.criu, python=chosen.python)
        version = _criu(place)
        if version is None:
            return _refuse("no CRIU works here: perdure doctor says why. Nothing was run.", _UNFIT_STATUS)
        found = [_said(case) for case in _run(place, sizes, chosen)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = writing.document(gpus, gpu_machine.judge(gpus), found, version)
    as_json, as_text = writing.write(chosen.out, told)
    print(f"\n{as_text.read_text()}\nreport: {as_text} and {as_json}")
    return _FAILED_STATUS if any(case.outcome == "failed" for case in found) else 0


def _run(place: Place, sizes: list[int], chosen: argparse.Namespace) -> Iterator[Case]:
    planned: list[tuple[str, Callable[[], tuple[dict[str, float], list[dict[str, Any]]]]]] = [
        ("a canary on each GPU", lambda: cases.canary(place)),
        *((f"buffers of {units.format_size(size)}", lambda size=size: cases.buffers(place, size)) for size in sizes),
        ("onto another GPU", lambda: cases.other_gpu(place, sizes[0])),
        ("kernel launches, managed and alone", lambda: overhead.launches(place, chosen.pairs, chosen.seconds)),
        ("a PyTorch training, bit for bit", lambda: cases.training(place)),
        ("a language model that serves", lambda: cases.server(place)),
    ]
    for name, run in planned:
        print(f"… {name}", file=sys.stderr, flush=True)
        yield cases.attempt(name, run)


def _said(case: Case) -> Case:
    print(f"{case.outcome}: {case.name}{': ' + case.why if case.why else ''}", file=sys.stderr, flush=True)
    return case


def _criu(place: Place) -> str | None:
    environ = place.environment
    try:
        return locate.find(locate.places(settings.load(environ, working_directory=place.folder), environ)).version
    except errors.EnvironmentUnfit as error:
        print(f"gpu-proof: {error} ({error.hint})", file=sys.stderr)
        return None


def _refuse(why: str, status: int) -> int:
    print(f"gpu-proof: {why}", file=sys.stderr)
    return status


def what_forbids(gpus: Gpus) -> str | None:
    """Return in words what keeps the proof from being run here; None: nothing."""
    forbidden = problems(gpu_machine.judge(gpus))
    return f"{forbidden[0].code}: {forbidden[0].message}" if forbidden else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
