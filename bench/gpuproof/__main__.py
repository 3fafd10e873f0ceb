"""Run the whole proof: ``python -m bench.gpuproof --out FOLDER``. Called by ``scripts/gpu-proof`` and ``make bench-gpu``.

The report is there from the first moment and is written again after each case, so that whoever ends the proof still has what was done by
then. Ends with 0 when all that was run passed, 4 when something failed, 20 where this machine lacks what it needs, 22 where its driver or
GPUs cannot save GPU state.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpuproof import alone, cases, overhead, surroundings, writing
from bench.gpuproof.place import Case, Place
from perdure import errors
from perdure.base import settings, units
from perdure.checkpoint.criu import locate
from perdure.checkpoint.host import gpu
from perdure.checkpoint.host.gpu import Gpus
from perdure.checkpoint.preflight import gpu_machine
from perdure.model.finding import Finding, problems

SIZES = "1G,2G,4G,8G,16G,32G,64G"
WORK = "/var/tmp"
_UNFIT = frozenset({"gpu-no-driver", "gpu-driver-silent", "gpu-driver-mismatch", "gpu-no-device", "gpu-no-bindings"})
_UNFIT_STATUS, _UNSUPPORTED_STATUS, _FAILED_STATUS, _ENDED_STATUS = 20, 22, 4, 143
_ENDED = "the proof was ended"
_SHORTEST_S = 15.0
"""With less time left no case is begun."""
_SAFETY = 1.5
"""What two cases of a kind say of a third is taken so many times."""
_BYTES_S = {"alone": 150e6, "buffers": 60e6}
"""What is believed of a kind before two of it were seen: all of it is hashed several times over."""

Outcome = tuple[dict[str, float], list[dict[str, Any]]]


class Planned(NamedTuple):
    """A case that is to be run."""

    name: str
    run: Callable[[], Outcome]
    kind: str = ""
    """Cases of one kind take as long as their sizes say."""
    size_bytes: int = 0
    why_not: str = ""
    """Why it cannot be run here, where that is known before."""


class EndedError(Exception):
    """Somebody ended the proof by SIGTERM or SIGINT."""


def main(arguments: list[str]) -> int:
    """Run the proof that `arguments` describe. Returns the exit status."""
    chosen = _parse(arguments)
    if os.geteuid() != 0:
        return _refuse("this needs root: sudo scripts/gpu-proof", _UNFIT_STATUS)
    gpus = gpu.look()
    findings = gpu_machine.judge(gpus)
    forbidden = None if chosen.anyway else next(iter(problems(findings)), None)
    if not gpus.has_driver and forbidden is not None:
        return _refuse(f"{_told(forbidden)}. Nothing was run.", _UNFIT_STATUS)
    chosen.out.mkdir(parents=True, exist_ok=True)
    chosen.work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="gpu-proof-", dir=chosen.work)).resolve()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    ends_s = time.monotonic() + units.parse_duration(chosen.limit, name="--limit") if chosen.limit else None
    try:
        place = Place(folder, gpus, criu=chosen.criu, python=chosen.python, ends_s=ends_s)
        version, why_no_criu = _criu(place)
        report = Report(chosen.out, gpus, findings, version or f"none that works ({why_no_criu})", surroundings.look(folder))
        why_not = _told(forbidden) if forbidden else ""
        found = run(_plan(place, chosen, why_not, why_no_criu), report, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{report.text}\nreport: {report.paths[1]} and {report.paths[0]}")
    if any(case.why == _ENDED for case in found):
        return _ENDED_STATUS
    if forbidden is not None:
        return _refuse(f"{why_not}. Nothing but a canary was run.", _UNFIT_STATUS if forbidden.code in _UNFIT else _UNSUPPORTED_STATUS)
    return _FAILED_STATUS if any(case.outcome == "failed" for case in found) else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-proof", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-proof"), help="folder for the report")
    parser.add_argument(
        "--work", type=Path, default=Path(WORK), help=f"folder for checkpoints, with room for twice the largest size (default: {WORK})"
    )
    parser.add_argument("--limit", help="begin nothing that would take longer than this in all, such as 9m (default: no limit)")
    parser.add_argument("--sizes", default=SIZES, help=f"GPU memory of the buffers (default: {SIZES})")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of runs for the overhead (default: 10)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each such run (default: 10)")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--criu", default=os.environ.get("PERDURE_CRIU"), help="a CRIU or a prefix with one")
    parser.add_argument("--only", default="", help="only cases whose names contain one of these words, separated by commas")
    parser.add_argument("--anyway", action="store_true", help="run it although something here is known to prevent it")
    return parser.parse_args(arguments)


def _plan(place: Place, chosen: argparse.Namespace, why_not: str, why_no_criu: str) -> list[Planned]:
    """Return all cases, what tells most first: a proof that is ended early has still told it."""
    sizes = sorted(units.parse_size(word) for word in chosen.sizes.split(","))
    no_criu = f"no CRIU works here: {why_no_criu}" if why_no_criu else ""

    def buffers(size: int) -> list[Planned]:
        words = units.format_size(size)
        return [
            Planned(f"the driver alone, {words}", lambda: alone.steps(place, size), "alone", size),
            Planned(f"buffers of {words}", lambda: cases.buffers(place, size), "buffers", size, no_criu),
        ]

    planned = [
        *buffers(sizes[0]),
        Planned(
            "kernel launches, managed and alone",
            lambda: overhead.launches(place, chosen.pairs, chosen.seconds),
            why_not=no_criu,
        ),
        Planned("onto another GPU", lambda: cases.other_gpu(place, sizes[0]), why_not=no_criu),
        *(one for size in sizes[1:] for one in buffers(size)),
        Planned("a PyTorch training, bit for bit", lambda: cases.training(place), why_not=no_criu),
        Planned("a language model that serves", lambda: cases.server(place), why_not=no_criu),
    ]
    words = [word for word in chosen.only.split(",") if word]
    left = [one._replace(why_not=why_not or one.why_not) for one in planned]
    all_of_them = [Planned("a canary on each GPU", lambda: cases.canary(place)), *left]
    return [one for one in all_of_them if not words or any(word in one.name for word in words)]


class Report:
    """The report, written again whenever it changes."""

    def __init__(self, folder: Path, gpus: Gpus, findings: tuple[Finding, ...], criu: str, around: dict[str, Any]) -> None:
        self._folder = folder
        self._about = (gpus, findings)
        self._criu, self._around = criu, around
        self.text = ""
        self.paths = (folder, folder)

    def write(self, done: list[Case], left: list[str]) -> None:
        """Write it with what is `done`, and with the names of what is `left`."""
        waiting = [Case(name=name, outcome="not run", why="it was not come to") for name in left]
        told = writing.document(*self._about, [*done, *waiting], self._criu, self._around)
        self.paths = writing.write(self._folder, told)
        self.text = writing.text(told)


def run(planned: list[Planned], report: Report, place: Place) -> list[Case]:
    """Run all that is `planned` and can be; returns what became of each."""
    done: list[Case] = []
    took: dict[str, list[tuple[int, float]]] = {}
    report.write(done, [one.name for one in planned])
    for number, one in enumerate(planned):
        print(f"… {one.name}", file=sys.stderr, flush=True)
        began_s = time.monotonic()
        try:
            case = _attempt(one, place, took)
        except EndedError:
            done += [Case(name=other.name, outcome="not run", why=_ENDED) for other in planned[number:]]
            report.write(done, [])
            break
        if one.size_bytes and case.outcome == "passed":
            took.setdefault(one.kind, []).append((one.size_bytes, time.monotonic() - began_s))
        print(f"{case.outcome}: {case.name}{': ' + case.why if case.why else ''}", file=sys.stderr, flush=True)
        done.append(case)
        report.write(done, [other.name for other in planned[number + 1 :]])
    return done


def expected_s(size_bytes: int, before: list[tuple[int, float]], bytes_s: float) -> float:
    """Return how long a case of a size may take, from sizes and seconds of those of its kind `before`: all have a fixed part."""
    if not before:
        return _SHORTEST_S
    last_bytes, last_s = before[-1]
    each_s = 1 / bytes_s
    if before[1:] and last_bytes > before[-2][0]:
        each_s = _SAFETY * max(last_s - before[-2][1], 0.0) / (last_bytes - before[-2][0])
    return max(_SHORTEST_S, last_s + each_s * max(size_bytes - last_bytes, 0))


def _attempt(one: Planned, place: Place, took: dict[str, list[tuple[int, float]]]) -> Case:
    if one.why_not:
        return Case(name=one.name, outcome="not run", why=one.why_not)
    wanted_s = expected_s(one.size_bytes, took.get(one.kind, []), _BYTES_S.get(one.kind, math.inf))
    left_s = place.left_s()
    if left_s is not None and left_s < wanted_s:
        return Case(name=one.name, outcome="not run", why=f"{max(left_s, 0):.0f} s of the limit were left, it takes about {wanted_s:.0f}")
    return cases.attempt(one.name, one.run)


def _end(_number: int, _frame: object) -> None:
    raise EndedError


def _criu(place: Place) -> tuple[str | None, str]:
    """Return the version of the CRIU that works here, or why none does."""
    environ = place.environment
    try:
        return locate.find(locate.places(settings.load(environ, working_directory=place.folder), environ)).version, ""
    except errors.EnvironmentUnfit as error:
        return None, f"{error} ({error.hint})"


def _told(finding: Finding) -> str:
    return f"{finding.code}: {finding.subject}: {finding.message} ({finding.remedy})"


def _refuse(why: str, status: int) -> int:
    print(f"gpu-proof: {why}", file=sys.stderr)
    return status


def what_forbids(gpus: Gpus) -> str | None:
    """Return in words what keeps the proof from being run here; None: nothing."""
    forbidden = problems(gpu_machine.judge(gpus))
    return f"{forbidden[0].code}: {forbidden[0].message}" if forbidden else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
