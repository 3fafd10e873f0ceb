"""Brought back by the engine: memory goes back to the checkpoint, the world does not; every effect happens once all the same."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apps.harness import PROGRAMS, Managed
from children import wait_for
from postgres import Server
from recorder import Recorder

from perdure.effects import Ledger, State

WORKER = PROGRAMS / "effects_worker.py"
STEPS = 1500
LIVES = 4


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    running = Recorder(dedupes=False)
    yield running
    running.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def ledger_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "effects.db")
        return
    server = Server(loopback=True)
    try:
        server.start()
        yield server.url()
    finally:
        server.remove()


@pytest.mark.criu
def test_a_job_killed_and_restored_again_and_again_does_everything_once(ledger_place: str, recorder: Recorder, tmp_path: Path) -> None:
    chance = random.Random(7)
    folder = tmp_path / "job"
    folder.mkdir()
    job = Managed(folder, "effects", [sys.executable, str(WORKER), ledger_place, str(recorder.port), str(STEPS)], ["--every", "never"])
    try:
        job.start()
        for life in range(2, LIVES + 1):
            job.wait_lines(job.log().count(b"\n") + 20)
            # Anywhere in a step: between intent and effect, within the request, before the record.
            time.sleep(chance.uniform(0, 0.05))
            job.checkpoint()
            job.wait_lines(job.log().count(b"\n") + 20)
            job.kill_all()
            job.start()
            wait_for(lambda life=life: f", life {life}" in job.said(), 240)
        assert job.finish() == 0, job.said()
    finally:
        job.close()
    keys = {f"k{step}" for step in range(STEPS)}
    assert recorder.counts() == dict.fromkeys(keys, 1)
    with Ledger(ledger_place, lease_s=0.25) as ledger:
        assert {row.key for row, _ in ledger.rows(State.DONE)} == keys
    # Standard output is of one undisturbed run: each step once, in order, with the number that the outside gave it.
    assert [line.split()[0] for line in job.output().decode().splitlines()] == [f"k{step}" for step in range(STEPS)]
