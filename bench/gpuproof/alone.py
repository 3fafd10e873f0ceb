"""The driver's own steps on one process, with neither CRIU nor a store: what any machine with a driver can tell.

It needs no right that a container usually lacks, so that it still runs where nothing else of the proof does.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench.gpuproof.place import CaseFailed, NotRun, Place, Program
from perdure.base import units
from perdure.base.proc import process
from perdure.checkpoint.cuda.contract import Operation, Region, Request, State
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.host import gpu

_ROUNDS = 3
_LIMIT_S = 900.0
_LOCK_MS = 60_000
_STEPS = (
    (Operation.LOCK, State.LOCKED),
    (Operation.CHECKPOINT, State.CHECKPOINTED),
    (Operation.RESTORE, State.LOCKED),
    (Operation.UNLOCK, State.RUNNING),
)


def steps(place: Place, size_bytes: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Lock, checkpoint, restore and unlock a process with `size_bytes` on the GPU, some times over, and compare its content each time.

    Where the driver hands GPU memory out (custom storage), that way is gone too.
    """
    if size_bytes > place.room_bytes(on_disk=0):
        raise NotRun(f"GPU or memory have room for {units.format_size(max(place.room_bytes(on_disk=0), 0))} here")
    name = f"alone-{size_bytes >> 20}"
    program = Program(place, name, place.argv_of(name, size_bytes))
    runs: list[dict[str, Any]] = []
    with Helper() as helper:
        try:
            program.start()
            program.wait_ready()
            program.ask("step 1")
            digest = program.ask("digest", size_bytes)
            facts = helper.facts()
            ways = ["host"] * _ROUNDS
            if facts.driver.has_custom_storage and size_bytes < place.disk_bytes():
                ways += ["files"] * _ROUNDS
            for way in ways:
                runs.append({"way": way, **_round(place, program, helper, direct=way == "files")})
                if program.ask("digest", size_bytes) != digest:
                    raise CaseFailed(f"GPU memory is not what it was after it was moved away and back ({way})")
        finally:
            program.kill()
    return _figures(runs, size_bytes), runs


def _round(place: Place, program: Program, helper: Helper, *, direct: bool) -> dict[str, float]:
    pid = program.process.pid if program.process else 0
    ticks = process.stat(pid).start_ticks
    folder = place.folder / "handed-out"
    regions: tuple[Region, ...] = ()
    found: dict[str, float] = {}
    before = _free(place)
    for operation, wanted in _STEPS:
        if operation is Operation.CHECKPOINT and direct:
            folder.mkdir(mode=0o700)
        request = Request(
            number=0,
            operation=operation,
            pid=pid,
            start_ticks=ticks,
            time_limit_ms=_LOCK_MS if operation is Operation.LOCK else 0,
            folder=str(folder) if operation is Operation.CHECKPOINT and direct else None,
            regions=regions if operation is Operation.RESTORE else (),
        )
        began_s = time.monotonic()
        (answer,) = helper.ask((request,), place.within_s(_LIMIT_S))
        found[f"{operation.value}_s"] = time.monotonic() - began_s
        if answer.problem is not None:
            raise CaseFailed(f"{operation.value}: {answer.problem.message}")
        if answer.state is not wanted:
            raise CaseFailed(f"after {operation.value} the driver says {answer.state}, not {wanted}")
        regions = answer.regions or regions
        if operation is Operation.CHECKPOINT:
            found["freed_bytes"] = float(_free(place) - before)
    for region in regions:
        (folder / region.path).unlink()
    if direct:
        folder.rmdir()
    return found


def _free(place: Place) -> int:
    uuid = place.gpus.devices[0].uuid
    return next((device.free_bytes for device in gpu.look().devices if device.uuid == uuid), 0)


def _figures(runs: list[dict[str, Any]], size_bytes: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for way in dict.fromkeys(run["way"] for run in runs):
        ours = [run for run in runs if run["way"] == way]
        for operation, _ in _STEPS:
            found[f"{way}_{operation.value}_s"] = statistics.median(run[f"{operation.value}_s"] for run in ours)
        for operation in (Operation.CHECKPOINT, Operation.RESTORE):
            found[f"{way}_{operation.value}_gb_per_s"] = size_bytes / 1e9 / max(found[f"{way}_{operation.value}_s"], 1e-9)
    return found
