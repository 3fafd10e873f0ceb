"""What being managed costs a program that does nothing but launch kernels: pairs of runs, one after the other, in turned order."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from typing import Any

from bench.gpuproof.place import PROGRAMS, CaseFailed, NotRun, Place

_T_90 = (
    6.313752,
    2.919986,
    2.353363,
    2.131847,
    2.015048,
    1.943180,
    1.894579,
    1.859548,
    1.833113,
    1.812461,
    1.795885,
    1.782288,
    1.770933,
    1.761310,
    1.753050,
    1.745884,
    1.739607,
    1.734064,
    1.729133,
)
"""Student's t for a two-sided interval of 90 %, by degrees of freedom from 1."""
_AROUND_S = 5.0
"""What starting and ending a run takes beside it."""
_FEWEST = 2
_NO_COMPILER = "error 221"
"""CUDA_ERROR_JIT_COMPILER_NOT_FOUND: the driver's library that translates kernels is not here."""


def launches(place: Place, pairs: int, seconds: float) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Compare kernels launched a second with and without Perdure, in `pairs` of `seconds` each; in fewer where time is short."""
    runs = []
    left_s = place.left_s()
    if left_s is not None:
        pairs = min(pairs, int(left_s / (2 * (seconds + _AROUND_S))))
        if pairs < _FEWEST:
            raise NotRun(f"{left_s:.0f} s are left, too little for {_FEWEST} pairs of {seconds:g} s")
    for number in range(pairs):
        kinds = (("alone", False), ("managed", True)) if number % 2 == 0 else (("managed", True), ("alone", False))
        runs.append({name: _rate(place, seconds, number, managed=managed) for name, managed in kinds})
    return interval([run["managed"] / run["alone"] for run in runs]), runs


def _rate(place: Place, seconds: float, number: int, *, managed: bool) -> float:
    argv = [sys.executable, str(PROGRAMS / "gpu_launch.py"), f"{seconds}"]
    keep = [sys.executable, "-m", "perdure", "run", "--quiet", "--name", f"launch-{number}", "--every", "never", "--"] if managed else []
    try:
        done = subprocess.run(
            [*keep, *argv],
            capture_output=True,
            text=True,
            env=place.environment,
            cwd=place.folder,
            timeout=place.within_s(seconds + 300.0),
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        place.require_time()
        raise CaseFailed(f"{'managed' if managed else 'alone'}: no end after {expired.timeout:.0f} s") from expired
    if managed:
        place.clear("rm", f"launch-{number}")
    if "undefined symbol" in done.stderr or _NO_COMPILER in done.stderr:
        raise NotRun(f"this driver lacks what launches kernels: {done.stderr.strip().splitlines()[-1]}")
    if done.returncode != 0:
        raise CaseFailed(f"{'managed' if managed else 'alone'}: status {done.returncode}: {done.stderr[-400:].strip()}")
    return float(done.stdout.split()[-1])


def interval(ratios: list[float]) -> dict[str, float]:
    """Return the mean overhead in per cent, with its two-sided 90 % interval, from the ratios of paired rates.

    The logarithms of the ratios are taken for normal (Student, 1908). One pair has no interval.
    """
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    found = {"overhead_percent": _percent(mean)}
    if len(logs) > 1:
        half = _T_90[min(len(logs) - 2, len(_T_90) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
        found |= {"overhead_low_percent": _percent(mean + half), "overhead_high_percent": _percent(mean - half)}
    return found


def _percent(log_ratio: float) -> float:
    return (math.exp(-log_ratio) - 1.0) * 100.0
