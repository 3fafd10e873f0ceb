"""Where a run takes place, read on that host before it starts. Called by `harness`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from typing import Any

import msgspec

from perdure._version import __version__
from perdure.base.proc import machine
from perdure.evaluation import this_machine
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Environment
from perdure.model.finding import Severity

_LONGEST_S = 120.0
_LONGEST_LINE = 300


def read(plan: Plan) -> Environment:
    """Return what this host is and which versions it has. A command that gives no answer is recorded as such.

    Raises `errors.EnvironmentUnfit` when /proc cannot be read.
    """
    gpus, driver, cuda = _gpus()
    return Environment(
        host=this_machine.hostname(),
        boot_id=machine.boot_id(),
        kernel=os.uname().release,
        cpu_model=machine.processor().model,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=machine.memory().total_bytes,
        perdure_version=__version__,
        criu_version=_criu(),
        gpus=gpus,
        driver_version=driver,
        cuda_version=cuda,
        gpu_findings=_gpu_findings() if gpus else (),
        versions={name: _first_line(argv, plan.workload.working_directory) for name, argv in sorted(plan.versions.items())},
    )


def _criu() -> str | None:
    """Ask our own command line which CRIU it would take, as a run does."""
    found = _doctor().get("criu")
    return str(found["version"]) if found else None


def _gpu_findings() -> tuple[str, ...]:
    """Ask our own command line what of this machine's GPUs, or of their driver, stands in the way."""
    found = _doctor("--gpu").get("findings", ())
    return tuple(f"{one['code']}: {one['subject']}" for one in found if one["severity"] != Severity.INFO)


def _doctor(*options: str) -> dict[str, Any]:
    answer = _output((sys.executable, "-P", "-m", "perdure", "doctor", *options, "--json"), None)
    with contextlib.suppress(msgspec.DecodeError):
        return dict(msgspec.json.decode(answer or b""))
    return {}


def _gpus() -> tuple[tuple[str, ...], str | None, str | None]:
    """Return the GPUs by model and UUID, the driver's version, and the newest CUDA that it knows."""
    rows = _output(("nvidia-smi", "--query-gpu=name,uuid,driver_version", "--format=csv,noheader"), None)
    if rows is None:
        return (), None, None
    cells = [[cell.strip() for cell in row.split(",")] for row in rows.decode("utf-8", "replace").splitlines()]
    known = [row for row in cells if len(row) == 3]
    shown = re.search(rb"CUDA Version: *([0-9.]+)", _output(("nvidia-smi",), None) or b"")
    return tuple(f"{row[0]} {row[1]}" for row in known), known[0][2] if known else None, shown[1].decode() if shown else None


def _first_line(argv: tuple[str, ...], working_directory: str | None) -> str:
    answer = _output(argv, working_directory)
    if answer is None:
        return "(no answer)"
    first = answer.decode("utf-8", "replace").strip().partition("\n")[0]
    return first[:_LONGEST_LINE] or "(nothing printed)"


def _output(argv: tuple[str, ...], working_directory: str | None) -> bytes | None:
    """Return what a command prints, stderr where it prints nothing else; None when it cannot be run or takes too long."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, cwd=working_directory, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout or done.stderr if done.returncode == 0 or done.stdout else None
