"""Evaluations of small deterministic programs, run for real: plans, processes that carry a run's mark, and what the programs logged."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path

import evaluations

from perdure import errors
from perdure.base.proc import process
from perdure.evaluation import local
from perdure.evaluation.folder import Folder

COUNT = """
import os, sys, time
path = os.environ["TMPDIR"] + "/out" if "--write" in sys.argv else os.devnull
first = 1
if "--resume" in sys.argv:
    saved = sorted(int(name[5:]) for name in os.listdir("saved"))
    first = saved[-1] + 1 if saved else 1
if "--child" in sys.argv and os.fork() == 0:
    os.setsid()
    time.sleep(600)
with open(path, "ab", buffering=0) as out:
    for step in range(first, int(sys.argv[1]) + 1):
        time.sleep(float(sys.argv[2]))
        out.write(b"x" * 65536)
        print("step", step, flush=True)
        if "--resume" in sys.argv and step % 10 == 0:
            open(f"saved/step-{step:04}", "w").write(str(step))
"""
"""Counts: ARGV = how many steps, seconds a step, flags: --write to a file in TMPDIR, --resume from its own files, --child beside it."""


def begin(place: Path, *flags: str, steps: int = 30, step_s: float = 0.05, heartbeat_s: float = 2.0, **replaced: str) -> Folder:
    """Write a plan whose workload is `COUNT`, in a folder of its own."""
    place.mkdir(exist_ok=True)
    (place / "count.py").write_text(COUNT)
    (place / "saved").mkdir(exist_ok=True)
    words = ", ".join(f'"{word}"' for word in (sys.executable, "count.py", str(steps), str(step_s), *flags))
    there = Folder(place)
    lines = {"command": f"command = [{words}]", "pattern": f"pattern = 'step ([0-9]+)'\nheartbeat_s = {heartbeat_s}"} | replaced
    there.plan.write_text(evaluations.text(place, **lines))
    return there


def steps(raw: Path, life: int) -> list[int]:
    """Return the counters that a life of a run printed, from the raw log."""
    return [int(found) for found in re.findall(r"^step ([0-9]+)$", (raw / f"life-{life}-output.log").read_text(), re.MULTILINE)]


def marked() -> dict[int, str]:
    """Return the processes of this machine that belong to a run, with the run's id."""
    found = {}
    for pid in process.pids():
        with contextlib.suppress(errors.ProcessGone, errors.InputDenied):
            mark = process.environment(pid).get(local.MARK)
            if mark is not None and not process.stat(pid).is_dead:
                found[pid] = mark
    return found


def await_none(ids: set[str], *, limit_s: float = 120.0) -> None:
    """Wait until no process of the runs `ids` is left."""
    end_s = time.monotonic() + limit_s
    while left := {pid: mark for pid, mark in marked().items() if mark in ids}:
        assert time.monotonic() < end_s, f"left behind: {left}"
        time.sleep(0.02)
