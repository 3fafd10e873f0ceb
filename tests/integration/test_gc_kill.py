"""Collections killed with -9 at random instants, on a real directory and beside a process that checkpoints."""

from __future__ import annotations

import os
import random
import signal
import time

from children import exit_status, in_child
from stores import content, new_repository, noise, save

from perdure.model.checkpoint import CheckpointId
from perdure.store import gc, layout, locks, prune
from perdure.store.backends.local import LocalBackend
from perdure.store.owners import Linux
from perdure.store.repository import Repository

KILLS = 40
BLOCKS = 4096 * 40


def opened(tmp_path) -> Repository:
    return Repository.open(LocalBackend(tmp_path / "store"), key=None, cache=tmp_path / f"cache-{os.getpid()}", threads=2)


def test_killed_at_any_instant_nothing_is_lost_and_the_next_run_finishes(tmp_path, monkeypatch):
    monkeypatch.setattr(gc, "BATCH", 2)
    draw = random.Random(7)
    repository = new_repository(tmp_path / "cache", backend=LocalBackend(tmp_path / "store"))
    killed = 0
    for number in range(1, KILLS + 1):
        with locks.shared(repository, purpose="test", surroundings=Linux()):
            for part in range(3):
                blocks = noise(BLOCKS, number // 5) + noise(BLOCKS, 1000 + 3 * number + part)
                save(repository, f"w@{number}.{part + 1}", {"a": blocks}, folder=tmp_path)
        for one in repository.checkpoints("w")[:-2]:
            prune.remove(repository, one)
        child = in_child(lambda: gc.collect(opened(tmp_path), surroundings=Linux()))
        time.sleep(draw.uniform(0, 0.06))  # the instant
        os.kill(child, signal.SIGKILL)
        killed += exit_status(child) == -signal.SIGKILL
        for one in repository.checkpoints("w"):
            assert repository.packs_of(one) <= {info.key for info in repository.backend.list(layout.PACKS)}
    assert killed > KILLS / 4
    gc.collect(repository, surroundings=Linux(), wait_s=0)
    needed = frozenset[str]().union(*(repository.packs_of(one) for one in repository.checkpoints("w")))
    assert {info.key for info in repository.backend.list(layout.PACKS)} == needed
    assert list(repository.backend.list(layout.LOCKS)) == []
    newest = CheckpointId("w", KILLS, 3)
    assert content(repository, str(newest))["a"] == noise(BLOCKS, KILLS // 5) + noise(BLOCKS, 1000 + 3 * KILLS + 2)
