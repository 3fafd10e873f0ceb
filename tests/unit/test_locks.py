"""Locks: who excludes whom, what is left behind, what is lost, and that over simulated hours nobody is in with one who is alone."""

from __future__ import annotations

import hashlib
import os
import threading

import pytest
from children import exit_status, in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Process, SlowBackend, World
from stores import Still, new_repository, reopened

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import documents, layout, lock_records, locks
from perdure.store.backends.contract import ObjectInfo
from perdure.store.backends.local import LocalBackend
from perdure.store.lock_records import Kind
from perdure.store.locks import Lock
from perdure.store.owners import Linux

SHARED, EXCLUSIVE = Kind.SHARED, Kind.EXCLUSIVE


@pytest.fixture
def repository(tmp_path):
    return new_repository(tmp_path)


def lock(repository, kind, here, **more) -> Lock:
    return Lock(repository, kind, purpose="test", surroundings=here, **more)


def keys(repository) -> list[str]:
    return [info.key for info in repository.backend.list(layout.LOCKS)]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [(SHARED, SHARED, True), (SHARED, EXCLUSIVE, False), (EXCLUSIVE, SHARED, False), (EXCLUSIVE, EXCLUSIVE, False)],
)
def test_who_excludes_whom(repository, first, second, both):
    held = lock(repository, first, Still(pid=1))
    held.acquire(wait_s=0)
    other = lock(repository, second, Still(pid=2, alive={1}))
    if both:
        other.acquire(wait_s=0)
        assert len(keys(repository)) == 2
        other.release()
    else:
        with pytest.raises(errors.StoreLocked, match=r"in use: process 1 on here \(test\)") as caught:
            other.acquire(wait_s=0)
        assert caught.value.retryable
    assert len(keys(repository)) == 1
    held.release()
    assert keys(repository) == []


def test_waiting_ends_when_the_other_does(repository):
    held = lock(repository, EXCLUSIVE, Still(pid=1))
    held.acquire()
    told = []
    here = Still(pid=2, alive={1}, on_pause=lambda: held.release() if here.paused_s > 5 else None)
    lock(repository, SHARED, here).acquire(wait_s=60, waiting=lambda owner, waited_s: told.append((owner.pid, waited_s)))
    assert 5 < here.paused_s < 8
    assert told[0] == (1, 0.0)


def test_one_that_wants_to_be_alone_gets_in_where_somebody_always_is(repository):
    """Others come every second and stay for five: without a word to newcomers it would wait for ever."""
    inside: list[tuple[float, Lock]] = []
    refused = []

    def come_and_go() -> None:
        now_s = here.now_s()
        for entered_s, one in tuple(inside):
            if now_s - entered_s >= 5:
                one.release()
                inside.remove((entered_s, one))
        other = lock(repository, SHARED, Still(host="there", pid=int(now_s * 100)))
        try:
            other.acquire(wait_s=0)
        except errors.StoreLocked:
            refused.append(now_s)
        else:
            inside.append((now_s, other))

    here = Still(on_pause=come_and_go)
    come_and_go()
    alone = lock(repository, EXCLUSIVE, here)
    alone.acquire(wait_s=60)
    assert inside == []
    assert 5 <= here.paused_s < 10
    alone.release()
    come_and_go()
    assert len(inside) == 1


def test_it_does_not_keep_newcomers_out_for_long(repository):
    lock(repository, SHARED, Still(host="there")).acquire()
    held_out_s = []

    def newcomer() -> None:
        other = lock(repository, SHARED, Still(host="elsewhere"))
        try:
            other.acquire(wait_s=0)
        except errors.StoreLocked:
            held_out_s.append(here.now_s())
        else:
            other.release()

    here = Still(on_pause=newcomer)
    with pytest.raises(errors.StoreLocked, match="on there"):
        lock(repository, EXCLUSIVE, here).acquire(wait_s=40)
    assert 10 < len(held_out_s) < 35
    assert 39 < here.paused_s < 60


def test_waiting_has_an_end(repository):
    lock(repository, EXCLUSIVE, Still(pid=1)).acquire()
    here = Still(pid=2, alive={1})
    with pytest.raises(errors.StoreLocked):
        lock(repository, SHARED, here).acquire(wait_s=10)
    assert 10 <= here.paused_s < 12


def test_a_lock_of_a_process_that_died_here_is_removed_at_once(repository):
    lock(repository, EXCLUSIVE, Still(pid=1)).acquire()
    here = Still(pid=2, alive=set())
    lock(repository, EXCLUSIVE, here).acquire(wait_s=0)
    assert here.paused_s == 0
    assert len(keys(repository)) == 1


@pytest.mark.parametrize("alive", [None, True], ids=["elsewhere", "here"])
def test_a_lock_that_is_silent_for_too_long_is_removed(repository, alive):
    silent = lock(repository, SHARED, Still(pid=1, host="here" if alive else "there"))
    silent.acquire()
    here = Still(pid=2, alive={1})
    lock(repository, EXCLUSIVE, here).acquire()
    assert here.paused_s > locks.TTL_S
    with pytest.raises(errors.StoreLocked, match="was lost"):
        silent.require()
    assert not silent.still_held()
    assert len(keys(repository)) == 1


def test_a_lock_of_another_machine_that_is_renewed_stays(repository):
    held = lock(repository, SHARED, Still(host="there"))
    held.acquire()
    here = Still(on_pause=held.refresh)
    with pytest.raises(errors.StoreLocked, match="on there"):
        lock(repository, EXCLUSIVE, here).acquire(wait_s=300)
    assert held.still_held()
    assert len(keys(repository)) == 2  # the one before goes a turn later
    held.release()
    assert keys(repository) == []


def test_a_lock_that_cannot_be_read_is_waited_for(repository):
    repository.backend.put(layout.lock_key("0" * 32), b"nonsense")
    with pytest.raises(errors.StoreLocked, match="cannot be read"):
        lock(repository, SHARED, Still()).acquire(wait_s=0)
    here = Still()
    lock(repository, SHARED, here).acquire()
    assert here.paused_s > locks.TTL_S


def test_of_two_that_cross_both_see_it_and_only_one_gets_in(repository, tmp_path):
    """The second writes its lock between the first one's look and its lock."""
    second = lock(repository, EXCLUSIVE, Still(pid=2, alive={1}))
    crossing = []

    def cross(key: str) -> None:
        if not crossing:
            crossing.append(key)
            second.acquire(wait_s=0)

    first = lock(reopened(repository, tmp_path, before_put=cross), EXCLUSIVE, Still(pid=1, alive={2}))
    with pytest.raises(errors.StoreLocked):
        first.acquire(wait_s=0)
    assert second.still_held()
    assert len(keys(repository)) == 1


def test_a_holder_that_stood_still_knows_whether_somebody_was_let_in(repository):
    here = Still()
    held = lock(repository, SHARED, here)
    held.acquire()
    here.pass_time(10 * locks.TTL_S)
    held.require()  # nobody was
    other = lock(repository, EXCLUSIVE, Still(host="there"))
    other.acquire()
    other.release()
    here.pass_time(10 * locks.TTL_S)
    with pytest.raises(errors.StoreLocked, match="somebody else was let in"):
        held.require()
    with pytest.raises(errors.StoreLocked):
        held.refresh()
    assert keys(repository) == []


def test_a_holder_that_stood_still_gives_way_to_one_who_is_in(repository):
    here = Still()
    held = lock(repository, SHARED, here)
    held.acquire()
    here.pass_time(10 * locks.TTL_S)
    other = lock(repository, EXCLUSIVE, Still(host="there"))
    other.acquire()
    assert not held.still_held()
    other.require()


def test_a_refresh_that_takes_too_long_does_not_bring_the_lock_back(repository, tmp_path):
    """While it is under way, the lock is taken for left behind, and somebody is let in and leaves."""
    here, begun = Still(), []

    def stall(_key: str) -> None:
        if begun:
            begun.clear()
            here.pass_time(locks.TTL_S + 1)
            other = lock(repository, EXCLUSIVE, Still(host="there"))
            other.acquire()
            other.release()

    held = lock(reopened(repository, tmp_path, before_put=stall), SHARED, here)
    held.acquire()
    begun.append(True)
    with pytest.raises(errors.StoreLocked):
        held.refresh()
    assert keys(repository) == []


def test_an_answer_that_takes_too_long_says_nothing_of_now(repository, tmp_path):
    """Between the look at the lock and its answer somebody is let in."""
    here = Still()

    class Stalling:
        def __init__(self, backend):
            self.backend, self.stall = backend, False

        def __getattr__(self, name):
            return getattr(self.backend, name)

        def size(self, key):
            found = self.backend.size(key)
            if self.stall:
                self.stall = False
                here.pass_time(locks.TTL_S + 1)
                lock(repository, EXCLUSIVE, Still(host="there")).acquire()
            return found

    own = reopened(repository, tmp_path, backend=Stalling(repository.backend))
    held = lock(own, SHARED, here)
    held.acquire()
    own.backend.stall = True
    with pytest.raises(errors.StoreLocked):
        held.require()


def test_a_store_that_is_away_for_a_while_does_not_lose_the_lock(repository, tmp_path):
    here, away = Still(), []
    held = lock(reopened(repository, tmp_path, before_put=lambda _key: here.fail() if away else None), SHARED, here)
    held.acquire()
    away.append(True)
    here.pass_time(20)
    with pytest.raises(errors.StoreUnavailable):
        held.require()
    away.clear()
    held.require()


def test_what_is_used_is_told_until_its_user_is_gone(repository):
    one = CheckpointId("w", 1, 1)
    lock(repository, SHARED, Still(pid=1), using=[one]).acquire()
    assert lock_records.in_use(repository, Still(pid=2, alive={1})) == {one}
    assert lock_records.in_use(repository, Still(host="there")) == {one}
    assert lock_records.in_use(repository, Still(pid=2, alive=set())) == set()


def test_the_heartbeat_of_a_block_ends_with_it(repository):
    others = set(threading.enumerate())

    def beats() -> bool:
        return any(thread.name == "perdure-store-lock" for thread in set(threading.enumerate()) - others)

    with locks.shared(repository, purpose="test", surroundings=Linux()) as held:
        assert held.still_held()
        assert beats()
    assert not beats()
    assert keys(repository) == []
    with pytest.raises(ZeroDivisionError), locks.exclusive(repository, purpose="test", surroundings=Linux()):
        raise ZeroDivisionError
    assert keys(repository) == []


def test_a_killed_process_leaves_nothing_in_the_way(tmp_path):
    repository = new_repository(tmp_path / "cache", backend=LocalBackend(tmp_path / "store"))

    def die() -> None:
        Lock(repository, EXCLUSIVE, purpose="test", surroundings=Linux()).acquire()
        os.kill(os.getpid(), 9)

    assert exit_status(in_child(die)) == -9
    assert len(keys(repository)) == 1
    with locks.exclusive(repository, purpose="test", surroundings=Linux(), wait_s=0):
        assert len(keys(repository)) == 1


class Crowd:
    """A store in which many hosts hold shared locks, each of which replaces its own in turns, as time passes with every call."""

    parallel = 1

    def __init__(self, repository, here: Still, hosts: int, call_s: float) -> None:
        self._repository = repository
        self._here = here
        self._call_s = call_s
        self._turn_s = locks.TTL_S / locks.BEATS_A_TTL
        self._hosts = [Still(host=f"h{number}") for number in range(hosts)]
        self._keys: list[list[str]] = [[] for _ in range(hosts)]
        self._due_s = [here.now_s() + self._turn_s * number / hosts for number in range(hosts)]
        self.reads = 0
        for number in range(hosts):
            self._replace(number)
            self._replace(number)

    def _replace(self, number: int) -> None:
        host = self._hosts[number]
        self._keys[number].append(layout.lock_key(self._drawn(number)))
        record = lock_records.Record(SHARED, host.owner("checkpoint"), (), locks.TTL_S)
        documents.write(self._repository, self._keys[number][-1], record, replace=True)
        for key in self._keys[number][:-2]:
            self._repository.backend.delete(key)
        del self._keys[number][:-2]

    def _drawn(self, number: int) -> str:
        # Mixed, so that new ones do not come behind old ones in a listing.
        return hashlib.sha256(f"{number} {self._hosts[number].token()}".encode()).hexdigest()[:32]

    def _catch_up(self) -> None:
        for number, due_s in enumerate(self._due_s):
            if due_s <= self._here.now_s():
                self._replace(number)
                self._due_s[number] += self._turn_s

    def __getattr__(self, name):
        act = getattr(self._repository.backend, name)

        def call(*arguments, **more):
            self._here.pass_time(self._call_s)
            self._catch_up()
            self.reads += name == "get"
            return iter(list(act(*arguments, **more))) if name == "list" else act(*arguments, **more)

        return call


def test_many_who_hold_and_renew_shared_locks_let_another_in(repository, tmp_path):
    """While all locks are read once, at 10 ms each, a fifth of them are replaced."""
    here = Still()
    crowd = Crowd(repository, here, hosts=300, call_s=0.01)
    own = reopened(repository, tmp_path, backend=crowd)
    began_s = here.now_s()
    lock(own, SHARED, here).acquire()
    assert here.now_s() - began_s < 15
    assert crowd.reads < 2 * 600
    assert {one.owner.host for one in lock_records.held(own)} == {"here", *(f"h{number}" for number in range(300))}


def test_locks_that_go_before_they_can_be_read_are_told_as_that(repository, tmp_path):
    class Fleeting:
        def __getattr__(self, name):
            return getattr(repository.backend, name)

        def list(self, prefix):
            return iter([*repository.backend.list(prefix), ObjectInfo(layout.lock_key("0" * 32), 1)])

    own = reopened(repository, tmp_path, backend=Fleeting())
    with pytest.raises(errors.StoreLocked, match="come and go faster"):
        lock(own, SHARED, Still()).acquire(wait_s=5)
    with pytest.raises(errors.StoreLocked, match="come and go faster"):
        lock_records.in_use(own, Still())


def test_locks_are_read_as_many_at_once_as_pay_off(repository, tmp_path):
    class Together:
        parallel = 2

        def __init__(self) -> None:
            self._both = threading.Barrier(2, timeout=60)

        def __getattr__(self, name):
            return getattr(repository.backend, name)

        def get(self, key, **more):
            if key.startswith(layout.LOCKS):
                self._both.wait()
            return repository.backend.get(key, **more)

    for number in range(4):
        lock(repository, SHARED, Still(pid=number + 1)).acquire()
    assert len(lock_records.held(reopened(repository, tmp_path, backend=Together()))) == 4


class Workshop:
    """Processes of three hosts that come and go, share the store, or want it for themselves."""

    def __init__(self, cache, seed: int) -> None:
        self.world = World(seed, hosts=3, stall_s=100.0)
        repository = new_repository(cache)
        self.world.objects = repository.backend
        self.repository = repository
        self.cache = cache
        self.inside: dict[int, tuple[Kind, Lock]] = {}
        self.entered: dict[Kind, int] = dict.fromkeys(Kind, 0)

    def work(self, process: Process) -> None:
        random = process.world.random
        while True:
            kind = EXCLUSIVE if random.random() < 0.4 else SHARED
            try:
                repository = reopened(self.repository, self.cache, backend=SlowBackend(process))
                held = Lock(repository, kind, purpose="test", surroundings=process, ttl_s=30)
                held.acquire(wait_s=random.uniform(0, 200))
            except (errors.StoreLocked, errors.StoreUnavailable):
                process.pause(random.expovariate(1 / 20))
                continue
            self._stay(process, held, kind, random.expovariate(1 / 60))
            held.release()
            process.pause(random.expovariate(1 / 100))

    def _stay(self, process: Process, held: Lock, kind: Kind, seconds: float) -> None:
        end_s = process.now_s() + seconds
        while process.now_s() < end_s:
            try:
                held.require()
            except errors.StoreLocked:
                break
            except errors.StoreUnavailable:
                process.pause(1)
                continue
            # What is protected happens at once after it was asked: nobody else may be in now.
            # What the lock protects happens right after it was asked: nobody whom it excludes may believe in a lock now.
            self.entered[kind] += 1
            self.inside[process.pid] = (kind, held)
            others = [
                (other, pid)
                for pid, (other, theirs) in self.inside.items()
                if pid != process.pid and self.is_alive(pid) and theirs._is_believed()
            ]
            assert not others or (kind is SHARED and all(other is SHARED for other, _ in others)), (kind, others)
            process.pause(5)
        self.inside.pop(process.pid, None)

    def is_alive(self, pid: int) -> bool:
        return any(one.pid == pid and not one.is_dead for one in self.world.processes.values())


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_nobody_is_in_with_one_who_is_alone(tmp_path_factory, seed):
    workshop = Workshop(tmp_path_factory.mktemp("cache"), seed)
    world = workshop.world

    def start(host: str) -> None:
        world.start(host, workshop.work, lives_s=world.random.expovariate(1 / 500))

    for host in world.clocks:
        start(host)
    world.run(2000, lambda: None, on_end=lambda process: start(process.host))
    assert sum(workshop.entered.values()) > 0


def test_nothing_is_deleted_under_a_lock_that_is_lost(repository):
    repository.backend.put("packs/x", b"needed")
    held = lock(repository, EXCLUSIVE, Still())
    held.acquire()
    repository.backend.delete(*keys(repository))
    assert not held.still_held()
    with pytest.raises(errors.StoreLocked, match="was lost"):
        held.delete("packs/x")
    assert repository.backend.get("packs/x") == b"needed"


def test_a_lock_that_lasts_for_less_than_a_try_deletes_all_the_same(repository):
    repository.backend.put("packs/x", b"of nobody")
    held = lock(repository, EXCLUSIVE, Still(), ttl_s=1.0)
    held.acquire()
    held.delete("packs/x")
    assert [info.key for info in repository.backend.list(layout.PACKS)] == []
