"""Lives: what each state of an older life allows, and that two lives never both believe they live, over simulated years."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec
import pytest
from children import in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Process, SlowBackend, World
from stores import Still, new_repository, reopened

from perdure import errors
from perdure.model.checkpoint import CheckpointId, Life, LifeEnd
from perdure.store import documents, layout, life_records, lives
from perdure.store.owners import Linux

DONE = LifeEnd(at_ns=1, completed=True, status=0, reason="it ended by itself")


@pytest.fixture
def repository(tmp_path):
    return new_repository(tmp_path)


@pytest.fixture
def again(repository, tmp_path):
    """Open the same store once more."""
    return functools.partial(reopened, repository, tmp_path / "again")


def begin(repository, surroundings, **more):
    return lives.begin(repository, "w", restored_from=None, surroundings=surroundings, ttl_s=30, **more)


def test_epochs_grow_and_what_is_recorded_comes_back(repository):
    assert lives.latest(repository, "w") is None
    here = Still()
    first = begin(repository, here)
    assert lives.latest(repository, "w") == first.life
    first.end(DONE)
    second = lives.begin(repository, "w", restored_from=CheckpointId("w", 1, 4), surroundings=here)
    assert (first.life.epoch, second.life.epoch, second.life.restored_from) == (1, 2, CheckpointId("w", 1, 4))
    assert [life.end for life in lives.every(repository, "w")] == [DONE, None]
    assert lives.latest(repository, "v") is None


def test_a_living_one_here_is_named_at_once(repository):
    begin(repository, Still(pid=7))
    with pytest.raises(errors.WorkloadBusy, match=r"w is running already: life 1, process 7 on here") as caught:
        begin(repository, Still(pid=8, alive={7}))
    assert "perdure stop w" in caught.value.hint
    assert caught.value.retryable


def test_one_that_died_here_is_ended_and_followed_at_once(repository):
    dead = begin(repository, Still(pid=7))
    here = Still(pid=8, alive=set())
    assert begin(repository, here).life.epoch == 2
    assert here.paused_s == 0
    assert lives.every(repository, "w")[0].end.reason == "its supervisor died"
    with pytest.raises(errors.StaleLife, match="life 2 has begun"):
        dead.renew()


def test_one_elsewhere_is_watched_for_longer_than_its_lease(repository):
    begin(repository, Still(host="there"))
    here, told = Still(), []
    held = begin(repository, here, waiting=lambda life, left_s: told.append((life.hostname, left_s)))
    assert held.life.epoch == 2
    assert here.paused_s > 30
    assert told[0] == ("there", 37.5)
    assert [left for _, left in told] == sorted((left for _, left in told), reverse=True)
    assert "the lease ran out" in lives.every(repository, "w")[0].end.reason


def test_one_elsewhere_that_renews_is_left_alone(repository):
    there = begin(repository, Still(host="there"))
    here = Still(on_pause=there.renew)
    with pytest.raises(errors.WorkloadBusy, match="on there"):
        begin(repository, here)
    assert [life.epoch for life in lives.every(repository, "w")] == [1]
    there.renew()


def test_one_elsewhere_that_ends_meanwhile_is_followed_at_once(repository):
    there = begin(repository, Still(host="there"))
    here = Still(on_pause=lambda: there.end(DONE))
    assert begin(repository, here).life.epoch == 2
    assert here.paused_s < 10
    assert lives.every(repository, "w")[0].end == DONE


def test_a_renewal_that_crosses_the_taking_over_makes_the_newer_withdraw(repository, again):
    """The older renews after the last look and before the newer's life is written: the newer sees it and gives way."""
    there = begin(repository, Still(host="there"))
    crossing = again(before_put=lambda key: there.renew() if key == layout.life_key("w", 2) else None)
    with pytest.raises(errors.WorkloadBusy, match="on there"):
        begin(crossing, Still())
    there.renew()  # a newer life that was withdrawn does not make it stale
    assert lives.latest(repository, "w") == there.life
    there.end(DONE)
    assert begin(repository, Still()).life.epoch == 3


def test_a_life_whose_begin_was_lost_by_this_process_is_given_up(repository):
    here = Still()
    begin(repository, here)
    assert begin(repository, here).life.epoch == 2


def test_two_that_begin_at_once(repository, again):
    here, there = Still(pid=1), Still(host="there")
    second = []
    crossing = again(
        before_put=lambda key: second.append(begin(repository, there)) if key == layout.life_key("w", 1) and not second else None
    )
    with pytest.raises(errors.WorkloadBusy, match="another process"):
        begin(crossing, here)
    second[0].renew()


def test_one_lives_of_two_that_saw_each_other_begin(repository, monkeypatch):
    """The older was begun while the newer chose its epoch, sees the newer, and withdraws only after the newer has seen it."""
    epochs = life_records.epochs
    there = Still(host="there").owner("run")
    life = Life(
        workload="w",
        epoch=1,
        started_ns=1,
        restored_from=None,
        hostname=there.host,
        boot_id=there.boot_id,
        supervisor_pid=there.pid,
        supervisor_start_ticks=there.start_ticks,
    )
    older = life_records.Begun(life, there, 30)

    def cross(*arguments):
        found = epochs(*arguments)
        if not found:
            documents.write(repository, layout.life_key("w", 1), older, replace=False)
        return found

    def withdraw() -> None:
        end = life_records.Ended(LifeEnd(at_ns=1, completed=False, status=None, reason="withdrawn"), withdrawn=True)
        life_records.write_end(repository, "w", 1, end)

    monkeypatch.setattr(life_records, "epochs", cross)
    held = begin(repository, Still(on_pause=withdraw))
    assert held.life.epoch == 3
    held.renew()
    assert [life.epoch for life in lives.every(repository, "w")] == [3], "the others never ran"


def test_the_lease_that_cannot_be_renewed(again):
    here = Still()
    failing = []
    opened = again(before_put=lambda key: failing and here.fail())
    held = begin(opened, here)
    assert held.remaining_s == 30
    failing.append(True)
    here.pass_time(20)
    with pytest.raises(errors.StoreUnavailable):
        held.renew()
    assert held.remaining_s == 10
    here.pass_time(11)
    with pytest.raises(errors.StaleLife, match="could not renew"):
        held.renew()
    failing.clear()
    held.renew()  # nobody took over meanwhile: nothing is lost
    assert held.remaining_s == 30


def test_only_the_first_end_counts(repository):
    held = begin(repository, Still())
    held.end(DONE)
    held.end(LifeEnd(at_ns=2, completed=False, status=None, reason="later"))
    assert lives.latest(repository, "w").end == DONE


def spoil(repository, *keys: str) -> None:
    for key in keys:
        content = repository.backend.get(key)
        repository.backend.put(key, content[:-1] + bytes([content[-1] ^ 1]))


LIFE, LEASE, END = layout.life_key("w", 1), layout.lease_key("w", 1), layout.end_key("w", 1)


@pytest.mark.parametrize(("keys", "least_s"), [([LIFE], 0), ([LEASE], 0), ([LIFE, LEASE], 300)])
def test_a_damaged_record_makes_it_wait_at_most(repository, keys, least_s):
    begin(repository, Still())
    spoil(repository, *keys)
    here = Still(pid=9, alive=set())
    assert begin(repository, here).life.epoch == 2
    assert here.paused_s >= least_s
    assert least_s or not here.paused_s


@pytest.mark.parametrize("keys", [[LIFE], [END], [LEASE], [LIFE, END]])
def test_damage_does_not_change_what_is_known_of_a_life(repository, keys):
    held = lives.begin(repository, "w", restored_from=CheckpointId("w", 7, 7), surroundings=Still())
    held.end(DONE)
    before = lives.latest(repository, "w")
    spoil(repository, *keys)
    assert lives.latest(repository, "w") == before
    assert lives.every(repository, "w") == (before,)


def test_a_damaged_end_that_another_one_wrote_is_still_an_end(repository):
    begin(repository, Still(pid=7))
    begin(repository, Still(pid=8, alive=set())).end(DONE)
    spoil(repository, END)
    first, second = lives.every(repository, "w")
    assert (first.end.completed, second.end) == (False, DONE)
    assert begin(repository, Still(pid=9, alive={7, 8})).life.epoch == 3


@pytest.mark.parametrize("keys", [[END, LEASE], [LIFE, LEASE]])
def test_twofold_damage_is_told_since_a_completed_workload_must_not_be_resumed(repository, keys):
    begin(repository, Still()).end(DONE)
    spoil(repository, *keys)
    with pytest.raises(errors.StoreCorrupt) as caught:
        lives.latest(repository, "w")
    assert caught.value.object_key == keys[0]


@pytest.mark.parametrize(("workload", "ttl_s"), [("../x", 30), ("w", 0), ("w", 301)])
def test_what_cannot_be_is_refused(repository, workload, ttl_s):
    with pytest.raises(errors.UsageError):
        lives.begin(repository, workload, restored_from=None, surroundings=Still(), ttl_s=ttl_s)


def test_this_process_is_told_from_others():
    linux = Linux()
    here = linux.owner("test")
    assert here.pid == os.getpid()
    assert linux.is_alive(here)
    child = in_child(lambda: None)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    gone = msgspec.structs.replace(here, pid=child)
    assert linux.is_alive(gone) is False  # a zombie
    os.waitpid(child, 0)
    assert linux.is_alive(gone) is False
    assert linux.is_alive(msgspec.structs.replace(here, start_ticks=here.start_ticks - 1)) is False  # a recycled number
    assert linux.is_alive(msgspec.structs.replace(here, boot_id="other")) is None
    assert linux.is_alive(msgspec.structs.replace(here, namespaces="other")) is None


class Believers:
    """Who believes to be the living one, at any moment of true time."""

    def __init__(self, cache: Path, seed: int) -> None:
        self.world = World(seed, hosts=3)
        self.cache = cache
        repository = new_repository(cache)
        self.world.objects = repository.backend
        self.repository = repository
        self.held: dict[int, lives.HeldLife] = {}
        self.begun = 0

    def supervise(self, process: Process) -> None:
        """What a supervisor does: begin, renew, and stop when it must; then another one tries."""
        while True:
            try:
                repository = reopened(self.repository, self.cache, backend=SlowBackend(process))
                held = lives.begin(repository, "w", restored_from=None, surroundings=process, ttl_s=30)
            except (errors.WorkloadBusy, errors.StoreUnavailable):
                process.pause(process.world.random.uniform(1, 60))
                continue
            self.begun += 1
            self.held[process.pid] = held
            try:
                self._renew_for(process, held, process.world.random.expovariate(1 / 300))
                del self.held[process.pid]  # the workload ended by itself
                held.end(DONE)
            except (errors.StaleLife, errors.StoreUnavailable):
                self.held.pop(process.pid, None)

    def _renew_for(self, process: Process, held: lives.HeldLife, seconds: float) -> None:
        end_s = process.now_s() + seconds
        while process.now_s() < end_s:
            process.pause(10)
            try:
                held.renew()
            except errors.StoreUnavailable:
                continue

    def check(self) -> None:
        believers = [
            (pid, held.life.epoch)
            for (_, pid), process in self.world.processes.items()
            if not process.is_dead and (held := self.held.get(pid)) is not None and held.remaining_s > 0
        ]
        assert len(believers) <= 1, believers


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_two_never_both_believe_they_live(tmp_path_factory, seed):
    believers = Believers(tmp_path_factory.mktemp("cache"), seed)
    world = believers.world

    def start(host: str) -> None:
        world.start(host, believers.supervise, lives_s=world.random.expovariate(1 / 400))

    for host in world.clocks:
        start(host)
        start(host)
    world.run(2000, believers.check, on_end=lambda process: start(process.host))
    assert believers.begun > 1
