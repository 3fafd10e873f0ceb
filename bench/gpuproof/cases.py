"""The cases: each runs something real on a GPU and says what came of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.gpuproof import hand
from bench.gpuproof.place import Case, CaseFailed, NotRun, Place, Program
from perdure.base import units
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.host import gpu, gpu_canary

_TRAIN_STEPS = 400


def attempt(name: str, run: Callable[[], tuple[dict[str, float], list[dict[str, Any]]]]) -> Case:
    """Run one case and return what became of it; nothing it meets ends the proof."""
    try:
        figures, runs = run()
    except NotRun as reason:
        return Case(name=name, outcome="not run", why=str(reason))
    except (CaseFailed, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        return Case(
            name=name, outcome="failed", why=f"{type(error).__name__}: {error}" if not isinstance(error, CaseFailed) else str(error)
        )
    return Case(name=name, outcome="passed", figures=figures, runs=runs)


def canary(place: Place) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """A tiny process on each GPU goes through lock, checkpoint, restore, unlock."""
    runs = []
    # Where NVML tells of none, the first one that CUDA finds.
    for uuid in [device.uuid for device in place.gpus.devices] or ["-"]:
        outcome = gpu_canary.run(uuid)
        runs.append({"gpu": uuid, "step": outcome.step, "failure": outcome.failure, **outcome.durations_s})
        if outcome.failure is not None:
            raise CaseFailed(f"{uuid}: {outcome.step}: {outcome.failure}")
    slowest = {f"{name}_s": max(run[name] for run in runs) for name in outcome.durations_s}
    return slowest, runs


class Managed:
    """A program that `perdure run` keeps."""

    def __init__(self, place: Place, name: str, argv: list[str]) -> None:
        prefix = [sys.executable, "-m", "perdure", "run", "--name", name, "--every", "never", "--"]
        self.program = Program(place, name, argv, prefix=prefix)
        self._place = place
        self.name = name

    def checkpoint(self) -> dict[str, Any]:
        """Save it; returns what was measured."""
        saved = self._place.told("checkpoint", self.name, limit_s=3600.0)
        shown = self._place.told("store", "show", saved["id"])
        return {
            "id": saved["id"],
            "stopped_s": saved["stopped_s"],
            "whole_s": saved["cost_s"],
            "logical_bytes": saved["logical_bytes"],
            "bytes": saved["stored_bytes"],
            "new_bytes": saved["new_bytes"],
            "durations_s": shown.get("durations_s", {}),
        }

    def end(self) -> None:
        """End it, and remove what was saved of it."""
        try:
            self._place.clear("stop", self.name)
        finally:
            self.program.kill()
            self._place.clear("rm", self.name, "--checkpoints")


def buffers(place: Place, size_bytes: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Save, suspend, resume, kill and bring back a process with `size_bytes` on the GPU, and do the same by hand."""
    if size_bytes > place.room_bytes():
        raise NotRun(f"GPU, memory or disk have room for {units.format_size(max(place.room_bytes(), 0))} here")
    ours = _ours(place, size_bytes)
    theirs = _by_hand(place, size_bytes)
    figures = hand.figures(ours, theirs)
    figures |= {"restore_to_cold_start_x": ours["restore_s"] / ours["cold_start_s"]}
    figures |= {name: ours[name] for name in ("stopped_s", "restore_s", "cold_start_s", "suspend_s", "resume_s")}
    return figures, [{"how": "perdure", **ours}, {"how": "by hand", **theirs}]


def _ours(place: Place, size_bytes: int) -> dict[str, Any]:
    name = f"buffers-{size_bytes >> 20}"
    managed = Managed(place, name, place.argv_of(name, size_bytes))
    program = managed.program
    try:
        began_s = time.monotonic()
        program.start()
        program.wait_ready()
        found: dict[str, Any] = {"size_bytes": size_bytes, "cold_start_s": time.monotonic() - began_s}
        program.ask("step 1")
        first = program.ask("digest", size_bytes)
        found |= managed.checkpoint()
        _same(first, program.ask("digest", size_bytes), "after the checkpoint")
        found |= _aside(place, managed, size_bytes)
        _same(first, program.ask("digest", size_bytes), "after it was suspended")
        program.ask("step 2")
        second = program.ask("digest", size_bytes)
        found["second"] = managed.checkpoint()
        program.ask("step 3")
        program.kill()
        began_s = time.monotonic()
        program.start()
        answer = program.ask("digest", size_bytes)
        found["restore_and_digest_s"] = time.monotonic() - began_s
        _same(second, answer, "after it was killed and brought back")
        began_s = time.monotonic()
        program.ask("digest", size_bytes)
        # What reading it all back takes is no part of the restore.
        found["restore_s"] = max(found["restore_and_digest_s"] - (time.monotonic() - began_s), 1e-3)
        return found
    finally:
        managed.end()


def _aside(place: Place, managed: Managed, size_bytes: int) -> dict[str, Any]:
    """Suspend and resume it, and see that the GPU is free in between."""
    before = _free(place)
    suspended = place.told("suspend", managed.name, limit_s=1800.0)
    freed = _free(place) - before
    resumed = place.told("resume", managed.name, limit_s=1800.0)
    if freed < size_bytes:
        raise CaseFailed(f"suspended, and only {units.format_size(max(freed, 0))} of {units.format_size(size_bytes)} became free")
    return {"suspend_s": suspended["took_s"], "resume_s": resumed["took_s"], "freed_bytes": freed}


def _free(place: Place) -> int:
    uuid = place.gpus.devices[0].uuid
    return next(device.free_bytes for device in gpu.look().devices if device.uuid == uuid)


def _by_hand(place: Place, size_bytes: int) -> dict[str, Any]:
    name = f"hand-{size_bytes >> 20}"
    program = Program(place, name, place.argv_of(name, size_bytes))
    pid = 0
    with Helper() as helper:
        by_hand = hand.Hand(place, program, helper)
        try:
            began_s = time.monotonic()
            program.start()
            program.wait_ready()
            found: dict[str, Any] = {"size_bytes": size_bytes, "cold_start_s": time.monotonic() - began_s}
            program.ask("step 1")
            first = program.ask("digest", size_bytes)
            pid = program.process.pid if program.process else 0
            found["stopped_s"] = by_hand.save(pid)
            found["bytes"] = by_hand.stored_bytes
            program.ask("step 2")
            program.kill()
            program.process = None  # who comes back is nobody's child
            found["restore_s"] = by_hand.bring_back(pid)
            _same(first, program.ask("digest", size_bytes), "by hand, after it was killed and brought back")
            return found | {"durations_s": by_hand.durations_s}
        finally:
            program.kill()
            if pid:
                hand.end(pid)
            by_hand.clear()


def _same(wanted: str, found: str, when: str) -> None:
    if wanted != found:
        raise CaseFailed(f"GPU memory is not what it was {when}: {wanted[:12]}…, {found[:12]}…")


def other_gpu(place: Place, size_bytes: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Bring a process back on another GPU than it was saved from."""
    place.room_bytes()
    first = place.gpus.devices[0]
    others = [one for one in place.gpus.devices[1:] if (one.model, one.capability) == (first.model, first.capability)]
    if not others:
        raise NotRun("there is no second GPU of the same kind")
    managed = Managed(place, "moved", place.argv_of("moved", size_bytes))
    program = managed.program
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        program.start()
        program.wait_ready()
        digest = program.ask("digest", size_bytes)
        saved = managed.checkpoint()
        program.kill()
        os.environ["CUDA_VISIBLE_DEVICES"] = others[0].uuid
        program.start()
        _same(digest, program.ask("digest", size_bytes), "on another GPU")
        users = {use.uuid for use in gpu.look().uses if (use.memory_bytes or 0) >= size_bytes}
        if others[0].uuid not in users:
            raise CaseFailed(f"it came back, and NVML does not show it on {others[0].uuid}")
        return {}, [saved | {"from": first.uuid, "to": others[0].uuid}]
    finally:
        if before is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        managed.end()


def _require_torch(place: Place) -> None:
    done = subprocess.run(
        [place.python, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True, text=True, timeout=300.0, check=False
    )
    if done.returncode != 0:
        raise NotRun(f"{place.python} has no PyTorch")
    if done.stdout.strip() != "True":
        raise NotRun("PyTorch here sees no GPU")


def training(place: Place, device: str = "cuda") -> tuple[dict[str, float], list[dict[str, Any]]]:
    """A training that is saved, killed and brought back has the same loss to the last bit as one that is left alone."""
    if device == "cuda":
        _require_torch(place)
    argv = place.with_torch("gpu_train.py", device, str(_TRAIN_STEPS))
    alone = Program(place, "training-alone", argv)
    began_s = time.monotonic()
    alone.start()
    assert alone.process is not None
    if alone.process.wait(place.within_s(1800.0)) != 0:
        raise CaseFailed(f"left alone: {alone.said()}")
    alone_s = time.monotonic() - began_s
    managed = Managed(place, "training", argv)
    program = managed.program
    try:
        program.start()
        _grown(place, managed, _TRAIN_STEPS // 4)
        saved = managed.checkpoint()
        _grown(place, managed, _TRAIN_STEPS // 2)
        program.kill()
        program.start()
        assert program.process is not None
        if program.process.wait(place.within_s(1800.0)) != 0:
            raise CaseFailed(f"brought back: {program.said()}")
        told = place.perdure("logs", managed.name).stdout
    finally:
        managed.end()
    wanted = (alone.folder / "out").read_text()
    if told != wanted:
        apart = next((n for n, (a, b) in enumerate(zip(told.splitlines(), wanted.splitlines(), strict=False), 1) if a != b), 0)
        raise CaseFailed(f"the loss differs from line {apart} on ({len(told.splitlines())} lines, {len(wanted.splitlines())} wanted)")
    return {"stopped_s": saved["stopped_s"], "alone_s": alone_s}, [saved]


def _grown(place: Place, managed: Managed, lines: int) -> None:
    """Wait until the workload has written `lines` lines."""
    end_s = time.monotonic() + 900.0
    while place.perdure("logs", managed.name).stdout.count("\n") < lines:
        place.require_time()
        if time.monotonic() > end_s or (managed.program.process is not None and managed.program.process.poll() is not None):
            raise CaseFailed(f"{managed.name} does not go on: {managed.program.said()}")
        time.sleep(0.2)


def server(place: Place, device: str = "cuda") -> tuple[dict[str, float], list[dict[str, Any]]]:
    """A language model that serves answers the same after it was killed and brought back, and sooner than after a cold start."""
    if device == "cuda":
        _require_torch(place)
    folder = place.folder / "work" / "server"
    managed = Managed(place, "server", place.with_torch("gpu_serve.py", str(folder), device))
    try:
        began_s = time.monotonic()
        managed.program.start()
        wanted = _ask_server(managed.program, "3 1 4 1 5")
        cold_s = time.monotonic() - began_s
        saved = managed.checkpoint()
        managed.program.kill()
        began_s = time.monotonic()
        managed.program.start()
        answer = _ask_server(managed.program, "3 1 4 1 5")
        restore_s = time.monotonic() - began_s
        if answer != wanted:
            raise CaseFailed("it answers otherwise after it was brought back")
    finally:
        managed.end()
    return {"cold_start_s": cold_s, "restore_s": restore_s, "restore_to_cold_start_x": restore_s / cold_s}, [saved]


def _ask_server(program: Program, line: str) -> str:
    end_s = time.monotonic() + 600.0
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(300.0)
            try:
                connection.connect(os.path.relpath(program.folder / "server"))
            except OSError as error:
                if time.monotonic() > end_s or (program.process is not None and program.process.poll() is not None):
                    raise CaseFailed(f"the server does not answer: {error}: {program.said()}") from error
                time.sleep(0.05)
                continue
            with connection.makefile("rw") as stream:
                stream.write(line + "\n")
                stream.flush()
                return stream.readline()
