"""Brought back by the engine: memory goes back to the checkpoint, the world does not; every effect happens once all the same."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apps.harness import PROGRAMS, Managed
from recorder import Recorder

from perdure.effects import Ledger, State

WORKER = PROGRAMS / "effects_worker.py"
STEPS = 120


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    running = Recorder(dedupes=False)
    yield running
    running.close()


@pytest.mark.criu
def test_a_job_killed_and_restored_again_and_again_does_everything_once(place: str, recorder: Recorder, tmp_path: Path) -> None:
    chance = random.Random(7)
    folder = tmp_path / "job"
    folder.mkdir()
    job = Managed(folder, "effects", [sys.executable, str(WORKER), place, str(recorder.port), str(STEPS)], ["--every", "never"])
    lives = 1
    try:
        job.start()
        for at in (10, 30, 55, 80):
            job.wait_lines(at)
            # Anywhere in a step: between intent and effect, within the request, before the record.
            time.sleep(chance.uniform(0, 0.05))
            job.checkpoint()
            job.wait_lines(at + 12)
            done_before = sum(recorder.counts().values())
            job.kill_all()
            job.start()
            lives += 1
            job.wait_lines(at + 3)
            assert sum(recorder.counts().values()) >= done_before
        assert job.finish() == 0, job.said()
    finally:
        job.close()
    keys = {f"k{step}" for step in range(STEPS)}
    assert recorder.counts() == dict.fromkeys(keys, 1)
    with Ledger(place, lease_s=0.25) as ledger:
        assert {row.key for row, _ in ledger.rows(State.DONE)} == keys
    # The log is of one undisturbed run: each step once, in order, with the number that the outside gave it.
    assert [line.split()[0] for line in job.log().decode().splitlines()] == [f"k{step}" for step in range(STEPS)]
    assert lives == 5
