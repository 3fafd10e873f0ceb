"""A store's whole life in a real bucket: two hosts, lives and locks, checkpoints, garbage, damage, and one carried to a folder."""

from __future__ import annotations

import contextlib
import json
import os
import threading

import pytest
from stores import Still, content, noise, save

from perdure import errors
from perdure.cli import app
from perdure.model.checkpoint import CheckpointId, LifeEnd
from perdure.store import gc, layout, lives, locks
from perdure.store.backends.s3 import Bucket, S3Backend
from perdure.store.lock_records import Kind
from perdure.store.owners import Linux
from perdure.store.repository import Repository

pytestmark = pytest.mark.s3
BLOCKS = 4096 * 40
HOSTS = 6


@pytest.fixture
def url(object_store, monkeypatch, tmp_path) -> str:
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_store.endpoint)
    monkeypatch.setenv("PERDURE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return f"s3://{object_store.bucket()}/team"


@pytest.fixture
def hosts(object_store, url, tmp_path):
    """Two hosts that have the same store open."""
    bucket = Bucket(bucket=url.split("/")[2], prefix="team", endpoint=object_store.endpoint)
    first, second = S3Backend(bucket), S3Backend(bucket)
    here = Repository.create(first, key=None, secret=os.urandom(32), repository_id="0" * 32, cache=tmp_path / "here")
    there = Repository.open(second, key=None, cache=tmp_path / "there")
    yield here, there
    first.close()
    second.close()


def test_lives_and_locks_of_two_hosts(hosts):
    here, there = hosts
    held = lives.begin(here, "w", restored_from=None, surroundings=Still(host="here"))
    with pytest.raises(errors.WorkloadBusy, match="on here"):
        lives.begin(there, "w", restored_from=None, surroundings=Still(host="there", on_pause=held.renew))
    newer = lives.begin(there, "w", restored_from=None, surroundings=Still(host="there"))
    with pytest.raises(errors.StaleLife, match="life 2"):
        held.renew()
    newer.end(LifeEnd(at_ns=0, completed=True, status=0, reason="done"))
    assert lives.latest(here, "w").end.completed
    lock = locks.Lock(here, Kind.SHARED, purpose="checkpoint", surroundings=Still(host="here"))
    lock.acquire()
    with pytest.raises(errors.StoreLocked, match="on here"):
        gc.collect(there, surroundings=Still(host="there"), wait_s=0)
    lock.release()
    gc.collect(there, surroundings=Still(host="there"), wait_s=0)


class WouldWait(Exception):
    """It saw a life that lives, and would watch it until its lease has run out."""


class Contest:
    """Hosts that all begin a life of one workload at once. Who has to wait does so until no other one is at work any more."""

    def __init__(self, hosts: tuple[Repository, ...], name: str) -> None:
        self.held: list[lives.HeldLife] = []
        self._hosts, self._name = hosts, name
        self._start = threading.Barrier(HOSTS)
        self._changed = threading.Condition()
        self._at_work = HOSTS

    def run(self) -> None:
        threads = [threading.Thread(target=self._begin, args=(number,)) for number in range(HOSTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _begin(self, number: int) -> None:
        here = Still(host=f"host{number}", on_pause=self._wait)
        self._start.wait()
        try:
            with contextlib.suppress(errors.WorkloadBusy, WouldWait):
                self.held.append(lives.begin(self._hosts[number % 2], self._name, restored_from=None, surroundings=here))
        finally:
            self._count(-1)

    def _wait(self) -> None:
        self._count(-1)
        with self._changed:
            self._changed.wait_for(lambda: self._at_work == 0)
        self._count(1)
        if self.held:
            raise WouldWait

    def _count(self, change: int) -> None:
        with self._changed:
            self._at_work += change
            self._changed.notify_all()


def test_of_many_that_begin_at_once_one_lives(hosts):
    for name in ("u", "v", "w"):
        contest = Contest(hosts, name)
        contest.run()
        (only,) = contest.held
        only.renew()


def test_checkpoints_garbage_and_the_command_line(hosts, url, tmp_path, capsys):
    here, there = hosts
    for number in range(1, 5):
        with locks.shared(here, purpose="checkpoint", surroundings=Linux()) as lock:
            save(here, f"w@1.{number}", {"a": noise(BLOCKS, 0) + noise(BLOCKS, number)}, folder=tmp_path)
            lock.require()
    assert content(there, "w@1.4")["a"] == noise(BLOCKS, 0) + noise(BLOCKS, 4)

    def run(*arguments: str) -> tuple[int, dict]:
        capsys.readouterr()
        status = app.run(["store", *arguments, "--store", url, "--json"])
        out, err = capsys.readouterr()
        return status, json.loads(out or err)

    assert [one["id"] for one in run("ls")[1]["checkpoints"]] == ["w@1.1", "w@1.2", "w@1.3", "w@1.4"]
    assert run("prune", "--keep-last", "1")[1]["removed"] == ["w@1.1", "w@1.2", "w@1.3"]
    freed = run("gc")[1]
    assert freed["removed_packs"] == 2
    assert run("verify")[0] == 0
    assert run("stats")[1]["orphan_packs"] == 0
    (tmp_path / "key").write_bytes(b"k" * 32)
    assert run("export", "w", "-o", str(tmp_path / "w.perdure"), "--file-key", str(tmp_path / "key"))[0] == 0
    status = app.run(
        ["store", "import", str(tmp_path / "w.perdure"), "--file-key", str(tmp_path / "key"), "--store", str(tmp_path / "local")]
    )
    assert status == 0
    key = min(here.packs_of(CheckpointId("w", 1, 4)))
    here.backend.put(key, here.backend.get(key)[:-1])
    status, told = run("verify")
    assert (status, told["damages"][0]["key"], told["lost"]) == (13, key, ["w@1.4"])
    assert [info.key for info in here.backend.list(layout.LOCKS)] == []
