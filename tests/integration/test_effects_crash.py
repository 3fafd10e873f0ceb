"""Killed, rolled back, copied, cut off from its ledger: every effect happens once, or is listed as in doubt. Real processes and servers.

The engine's restore is stood in for by forked snapshots: a child that was forked before effects were done has the memory of that
moment, old connections and old environment included, and goes on after the original was killed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from children import exit_status, in_child, wait_for
from recorder import Recorder

from perdure import errors
from perdure.effects import NOT_DONE, Done, Ledger, State

LEASE_S = 0.25
"""Longer than the recording server takes for a request of a sender that is gone."""
SURE_TO_STRIKE = 80
"""Of so many kills some strike in the middle of an effect, however busy the machine is."""
LIMIT_S = 120.0
"""For what takes moments, on a machine that is busy with something else."""


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    running = Recorder(dedupes=getattr(request, "param", False))
    yield running
    running.close()


# -- killed at random instants ------------------------------------------------------------------------------------------------


def options_for(mode: str, recorder: Recorder) -> dict:
    """What a step of the worker offers for doubt."""

    def look(key: str):
        number = recorder.find(key)
        return NOT_DONE if number is None else Done(number)

    return {"lookup": {"lookup": look}, "idempotent": {"provider_idempotent": True}, "neither": {}}[mode]


def replace(file: Path, text: str) -> None:
    """Write `file` so that a kill leaves the old text or the new one."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)


def work(place: str, recorder: Recorder, mode: str, life: int, keys: Iterable[str], progress: Path) -> None:
    """Do the effects of `keys`, from a little before where the last life was: what a job that restarts from its own notes does."""
    start = max(0, int(progress.read_text()) - 3) if progress.exists() else 0
    with Ledger(place, lease_s=LEASE_S, workload="w", epoch=life) as ledger:
        for index, key in enumerate(keys):
            if index < start:
                continue
            replace(progress, str(index))
            try:
                ledger.once(key, lambda key=key: recorder.send(key), inputs=key, **options_for(mode, recorder))
            except errors.EffectInDoubt:
                assert mode == "neither"


def kill_often(place: str, recorder: Recorder, mode: str, *, kills: int, effects: int, folder: Path, seed: int) -> None:
    """Kill a worker at `kills` random instants, let the last one end, and compare what happened with what is recorded."""
    chance = random.Random(seed)
    progress = folder / "progress"
    for life in range(kills):
        child = in_child(lambda life=life: work(place, recorder, mode, life, (f"k{number}" for number in itertools.count()), progress))
        # Some instants fall into the wait for the dead one's lease and the lookup after it.
        time.sleep(chance.uniform(0.0, 0.12) + (LEASE_S if mode == "lookup" and chance.random() < 0.7 else 0))
        os.kill(child, signal.SIGKILL)
        assert exit_status(child) == -signal.SIGKILL
    keys = [f"k{number}" for number in range(max(effects, (int(progress.read_text()) if progress.exists() else 0) + 1))]
    progress.unlink(missing_ok=True)
    assert exit_status(in_child(lambda: work(place, recorder, mode, kills, keys, progress))) == 0

    happened = recorder.counts()
    with Ledger(place, lease_s=LEASE_S) as ledger:
        found = {row.key: seen for row, seen in ledger.rows()}
        results = {row.key: json.loads(row.result) for row, seen in ledger.rows(State.DONE)}
    assert set(happened.values()) <= {1}, "an effect happened twice"
    assert set(found) == set(keys), "an effect was skipped"
    assert set(found.values()) <= {State.DONE, State.IN_DOUBT}
    assert {key for key, state in found.items() if state is State.DONE} <= set(happened)
    assert all(result == recorder.find(key) for key, result in results.items()), "a result is another effect's"
    if mode != "neither":
        assert set(found.values()) == {State.DONE}
        assert set(happened) == set(keys)
    elif kills >= SURE_TO_STRIKE:
        assert State.IN_DOUBT in found.values(), "none of so many kills struck between doing and recording"


MODES = [
    pytest.param("lookup", False, id="lookup"),
    pytest.param("idempotent", True, id="idempotent"),
    pytest.param("neither", False, id="neither"),
]


@pytest.mark.parametrize(("mode", "recorder"), MODES, indirect=["recorder"])
def test_a_worker_killed_at_random_instants_does_everything_once(place, recorder, mode, tmp_path):
    kill_often(place, recorder, mode, kills=12, effects=40, folder=tmp_path, seed=1)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("mode", "recorder"), MODES, indirect=["recorder"])
def test_a_worker_killed_at_500_random_instants_does_a_thousand_effects_once(place, recorder, mode, tmp_path):
    """500 kills and 1,000 effects over the three ways to settle doubt and the two ledgers."""
    kill_often(place, recorder, mode, kills=84, effects=167, folder=tmp_path, seed=2)


# -- rolled back, copied ------------------------------------------------------------------------------------------------------


class Snapshots:
    """Copies of a process's memory that sleep until they are woken, as a checkpoint does on disk."""

    def __init__(self) -> None:
        self._gates: list[int] = []
        self.children: list[int] = []

    def take(self, run: Callable[[], object]) -> None:
        """Keep this moment: `run` is what the process would do from here on."""
        entry, gate = os.pipe()

        def sleep_then_run() -> None:
            os.close(gate)
            for other in self._gates:
                os.close(other)
            os.read(entry, 1)
            run()

        self.children.append(in_child(sleep_then_run))
        os.close(entry)
        self._gates.append(gate)

    def wake(self, index: int) -> int:
        """Bring the moment back to life, and return its process id."""
        os.write(self._gates[index], b"!")
        return self.children[index]

    def drop(self, index: int) -> None:
        os.kill(self.children[index], signal.SIGKILL)
        exit_status(self.children[index])


def begin_life(file: Path, epoch: int) -> None:
    """Do what the supervisor does before each start and restore."""
    replace(file, f"{epoch}\nw\n")


@pytest.mark.parametrize(("mode", "recorder"), MODES, indirect=["recorder"])
def test_a_process_rolled_back_in_memory_repeats_nothing(place, recorder, mode, tmp_path, monkeypatch):
    """Taken after effects 0, 3, 6 … of 12; each time the copy is a later life with the memory of an earlier moment."""
    epoch = tmp_path / "epoch"
    monkeypatch.setenv("PERDURE_EPOCH_FILE", str(epoch))
    begin_life(epoch, 1)
    keys = [f"k{number}" for number in range(12)]

    def job() -> None:
        done = 0  # the memory that a restore brings back
        snapshots = Snapshots()
        with Ledger(place, lease_s=LEASE_S) as ledger:

            def go_on() -> None:
                nonlocal done
                for key in keys[done:]:
                    ledger.once(key, lambda key=key: recorder.send(key), **options_for(mode, recorder))
                    done += 1

            for stop in (3, 6, 9, 12):
                snapshots.take(go_on)
                for key in keys[stop - 3 : stop]:
                    ledger.once(key, lambda key=key: recorder.send(key), **options_for(mode, recorder))
                    done += 1
            for life, index in enumerate((3, 1, 0, 2), 2):
                begin_life(epoch, life)
                assert exit_status(snapshots.wake(index)) == 0

    assert exit_status(in_child(job)) == 0
    assert recorder.counts() == dict.fromkeys(keys, 1)


@pytest.mark.parametrize("recorder", [True], indirect=True)
def test_a_process_rolled_back_into_the_midst_of_a_step_ends_it_with_what_is_recorded(place, recorder, tmp_path, monkeypatch):
    """It sends again, since it knows of nothing; the other side deduplicates, and both know the same result."""
    epoch, told = tmp_path / "epoch", tmp_path / "told"
    monkeypatch.setenv("PERDURE_EPOCH_FILE", str(epoch))
    begin_life(epoch, 1)

    def job() -> None:
        snapshots = Snapshots()
        ledger = Ledger(place, lease_s=LEASE_S)

        def tell(result: int) -> None:
            with open(told, "a") as handle:
                handle.write(f"{result}\n")

        effect = ledger.effect("k", provider_idempotent=True)
        with effect as step:
            snapshots.take(lambda: tell(step.done(recorder.send("k"))))
            tell(step.done(recorder.send("k")))
        begin_life(epoch, 2)
        assert exit_status(snapshots.wake(0)) == 0

    assert exit_status(in_child(job)) == 0
    assert recorder.counts() == {"k": 1}
    assert told.read_text() == "1\n1\n"


def test_of_two_living_copies_the_older_cannot_act(place, recorder, tmp_path, monkeypatch):
    epoch, stale = tmp_path / "epoch", tmp_path / "stale"
    monkeypatch.setenv("PERDURE_EPOCH_FILE", str(epoch))
    begin_life(epoch, 1)

    def job() -> None:
        snapshots = Snapshots()
        with Ledger(place, lease_s=LEASE_S, epoch=1, workload="w") as ledger:  # a copy on a node that lost touch reads an old file
            ledger.once("before", lambda: recorder.send("before"))
            snapshots.take(lambda: Ledger(place).once("after", lambda: recorder.send("after")))
            begin_life(epoch, 2)
            assert exit_status(snapshots.wake(0)) == 0
            for key in ("after", "more"):
                with pytest.raises(errors.StaleLife):
                    ledger.once(key, lambda key=key: recorder.send(key))
            stale.touch()

    assert exit_status(in_child(job)) == 0
    assert stale.exists()
    assert recorder.counts() == {"before": 1, "after": 1}


# -- the ledger itself fails --------------------------------------------------------------------------------------------------


def test_without_room_nothing_runs_and_what_ran_is_not_lost(tmp_path):
    """A limit on file sizes stands in for a full disk: the kernel refuses the same writes."""

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def job() -> None:
        ran: list[str] = []
        with Ledger(tmp_path / "effects.db", lease_s=0.3, patience_s=0) as ledger:
            ledger.once("before", lambda: None)

            limit(1)
            with pytest.raises(errors.LedgerUnavailable) as caught:
                ledger.once("a", lambda: ran.append("a"))
            assert caught.value.exit_status == 75
            assert ran == []
            limit(resource.RLIM_INFINITY)

            def step() -> dict:
                ran.append("b")
                limit(1)
                return {"id": 1}

            with pytest.raises(errors.EffectUnrecorded) as lost:
                ledger.once("b", step)
            assert lost.value.result == {"id": 1}
            limit(resource.RLIM_INFINITY)
            # Recorded in the background, now that there is room.
            assert ledger.once("b", step, wait_s=LIMIT_S) == {"id": 1}
            ledger.once("a", lambda: ran.append("a"))
        assert ran == ["b", "a"]

    assert exit_status(in_child(job)) == 0


def open_to_all(file: Path) -> Callable[[], None]:
    file.chmod(0o666)
    return lambda: file.chmod(0o600)


def take_all_descriptors(_file: Path) -> Callable[[], None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    above = max(map(int, os.listdir("/proc/self/fd"))) + 8  # who starts us may have many open
    resource.setrlimit(resource.RLIMIT_NOFILE, (above, before[1]))
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))

    def give_back() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in taken:
            os.close(descriptor)

    return give_back


@pytest.mark.parametrize("cause", [open_to_all, take_all_descriptors])
def test_a_file_that_cannot_be_used_after_the_step_is_told_and_the_result_is_recorded_when_it_can(cause, tmp_path):
    def job() -> None:
        mend = []

        def step() -> str:
            mend.append(cause(tmp_path / "effects.db"))
            return "receipt"

        with Ledger(tmp_path / "effects.db", lease_s=0.3, patience_s=0) as ledger:
            with pytest.raises(errors.EffectUnrecorded) as lost:
                ledger.once("a", step)
            assert lost.value.result == "receipt"
            mend[0]()
            wait_for(lambda: ledger.look("a")[0].state is State.DONE)
            assert ledger.once("a", lambda: pytest.fail("must not run")) == "receipt"

    assert exit_status(in_child(job)) == 0


@pytest.mark.postgres
def test_a_server_that_takes_no_writes_is_waited_for_and_asked_over_a_new_connection(server):
    """As the old primary after a failover: a connection to it stays read-only, and a new one leads to the new primary."""
    import psycopg

    def make(readonly: str) -> None:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE postgres SET default_transaction_read_only = {readonly}")
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure-effects'")

    ran = []
    server.empty()
    try:
        with Ledger(server.url(), lease_s=0.3, patience_s=0) as ledger:
            with pytest.raises(errors.EffectUnrecorded) as lost:
                ledger.once("a", lambda: make("on") or "receipt")
            assert lost.value.result == "receipt"
            with pytest.raises(errors.LedgerUnavailable):
                ledger.once("b", lambda: ran.append("b"))
            with psycopg.connect(server.url(), autocommit=True) as connection:  # the connections stay
                connection.execute("SET default_transaction_read_only = off")
                connection.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
            wait_for(lambda: ledger.look("a")[0].state is State.DONE)
            assert ledger.once("a", lambda: ran.append("a")) == "receipt"
            ledger.once("b", lambda: ran.append("b"))
    finally:
        make("off")
    assert ran == ["b"]


@pytest.mark.postgres
def test_a_server_that_restarts_is_waited_for(server):
    ledger = Ledger(server.empty(), lease_s=20, patience_s=LIMIT_S)

    def step() -> int:
        server.stop()
        restart.start()
        return 7

    restart = threading.Timer(0.5, server.start)
    ran = []
    assert ledger.once("a", lambda: ran.append(1) or step()) == 7
    restart.join()
    server.stop(signal.SIGQUIT)  # a crash loses nothing that was said to be done
    server.start()
    assert ledger.once("a", lambda: ran.append(2)) == 7
    assert ran == [1]
    ledger.close()


@pytest.mark.postgres
def test_a_server_that_stays_away_is_told_and_the_result_is_recorded_when_it_is_back(server):
    ledger = Ledger(server.empty(), lease_s=0.3, patience_s=0.3)

    def step() -> int:
        server.stop()
        return 7

    with pytest.raises(errors.EffectUnrecorded) as lost:
        ledger.once("a", step)
    assert lost.value.result == 7
    assert lost.value.retryable
    with pytest.raises(errors.LedgerUnavailable):
        ledger.once("b", lambda: pytest.fail("must not run"))
    server.start()
    assert ledger.once("a", lambda: pytest.fail("must not run"), wait_s=LIMIT_S) == 7
    wait_for(lambda: ledger.counts()["running"] == 0)  # nor is `b` left behind
    assert ledger.once("b", lambda: 1) == 1
    ledger.close()
