"""What every ledger promises, on SQLite and on a real PostgreSQL: one suite, run unchanged on both."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from children import exit_status, in_child, wait_for

from perdure import errors
from perdure.effects import NOT_DONE, UNKNOWN, Done, Ledger, State, current
from perdure.effects.identity import Linux, Process


class Elsewhere(Linux):
    """Another machine: its own boot, and a clock that only the test moves."""

    def __init__(self, name: str, boot_s: float = 1000.0) -> None:
        self.name = name
        self.now_s = boot_s
        self.wall_shift_s = 0.0
        self.looks = 0
        """How often the clock was read: by one that waits, three times for each look at a step."""

    def process(self) -> Process:
        return dataclasses.replace(super().process(), host=self.name, boot=self.name)

    def boot_s(self) -> float:
        self.looks += 1
        return self.now_s

    def wall_s(self) -> float:
        return super().wall_s() + self.wall_shift_s


@pytest.fixture
def open_ledger(place: str) -> Iterator[Callable[..., Ledger]]:
    """Open the ledger, as often as a test likes; all are closed at the end."""
    opened: list[Ledger] = []

    def open_(**options) -> Ledger:
        # Patient, however long others hold the file of a ledger on a slow disk.
        opened.append(Ledger(place, **{"lease_s": 0.3, "patience_s": 120.0} | options))
        return opened[-1]

    yield open_
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger) -> Ledger:
    return open_ledger()


class Calls:
    """A step that counts."""

    def __init__(self, result: object = "ok", error: BaseException | None = None) -> None:
        self.number = 0
        self.result = result
        self.error = error

    def __call__(self):
        self.number += 1
        if self.error is not None:
            raise self.error
        return self.result


def put_in_doubt(ledger: Ledger, key: str, **options) -> None:
    with pytest.raises(TimeoutError):
        ledger.once(key, Calls(error=TimeoutError()), **options)
    assert states(ledger)[key] is State.IN_DOUBT


def states(ledger: Ledger) -> dict[str, State]:
    return {row.key: seen for row, seen in ledger.rows()}


def wait_until_it_waits(ledger: Ledger) -> None:
    """Wait until a call of another thread has seen a holder and waits for it."""
    wait_for(lambda: bool(ledger.metrics().get("waited")))


def wait_until_it_looks(surroundings: Elsewhere, waiter: threading.Thread) -> None:
    """Wait until `waiter` has looked twice from here on, from the row to the clock; or has ended, which its result tells."""
    looks = surroundings.looks
    wait_for(lambda: surroundings.looks > looks + 6 or not waiter.is_alive())


# -- once -------------------------------------------------------------------------------------------------------------------


def test_a_step_runs_once_and_gives_the_same_result_ever_after(ledger, open_ledger):
    step = Calls(result={"id": (1, 2), "name": "é\ud800\x00"})
    assert ledger.once("a", step) == {"id": [1, 2], "name": "é\ud800\x00"}
    assert ledger.once("a", step) == ledger.once("a", step) == {"id": [1, 2], "name": "é\ud800\x00"}
    assert open_ledger().once("a", step) == {"id": [1, 2], "name": "é\ud800\x00"}
    assert step.number == 1
    assert ledger.metrics() == {"ran": 1, "replayed": 2}


def test_none_is_a_result(ledger):
    step = Calls(result=None)
    assert ledger.once("a", step) is None
    assert ledger.once("a", step) is None
    assert step.number == 1


def test_the_intent_is_recorded_before_the_step_runs_and_the_result_before_it_returns(ledger, open_ledger):
    other = open_ledger()
    assert ledger.once("a", lambda: other.look("a")[1].value) == "running"
    assert other.look("a")[1] is State.DONE


def test_another_way_of_writing_the_result(ledger):
    def once(step):
        return ledger.once("a", step, encode=lambda value: value.hex(), decode=bytes.fromhex)

    assert once(lambda: b"\x00\xff") == b"\x00\xff"
    assert once(Calls(error=AssertionError())) == b"\x00\xff"


def test_the_same_key_with_other_inputs_is_refused(ledger):
    step = Calls()
    ledger.once("a", step, inputs={"to": "x", "sum": 1})
    assert ledger.once("a", step, inputs={"sum": 1.0, "to": "x"}) == "ok"
    for again in ({"to": "x", "sum": 2}, [], 0):
        with pytest.raises(errors.EffectChanged) as caught:
            ledger.once("a", step, inputs=again)
        assert caught.value.exit_status == 2
        assert caught.value.key == "a"
    assert step.number == 1
    assert ledger.metrics()["changed"] == 3


@pytest.mark.parametrize("key", ["", "two words", "é", "x" * 256, "new\nline", None, 7])
def test_a_key_must_fit_into_a_header(ledger, key):
    with pytest.raises(errors.UsageError):
        ledger.once(key, Calls(error=AssertionError()))


def test_a_step_inside_itself_is_refused_and_another_is_not(ledger):
    def outer():
        with pytest.raises(errors.UsageError, match="inside itself"):
            ledger.once("outer", Calls())
        return ledger.once("inner", lambda: current().key)

    assert ledger.once("outer", outer) == "inner"
    with pytest.raises(errors.UsageError, match="no step"):
        current()


# -- doubt ------------------------------------------------------------------------------------------------------------------


def test_an_exception_leaves_the_step_in_doubt_and_it_is_not_run_again(ledger):
    put_in_doubt(ledger, "a")
    step = Calls()
    with pytest.raises(errors.EffectInDoubt) as caught:
        ledger.once("a", step)
    assert "raised TimeoutError" in str(caught.value)
    assert "perdure effects resolve a" in caught.value.hint
    assert caught.value.exit_status == 75
    assert not caught.value.retryable
    assert step.number == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_so_does_everything_else_that_ends_it(ledger, error):
    with pytest.raises(type(error)):
        ledger.once("a", Calls(error=error))
    assert states(ledger) == {"a": State.IN_DOUBT}


def test_a_step_that_says_that_nothing_happened_may_run_again(ledger):
    with pytest.raises(errors.EffectNotDone):
        ledger.once("a", Calls(error=errors.EffectNotDone("the queue was closed")))
    with pytest.raises(ConnectionRefusedError):
        ledger.once("a", Calls(error=ConnectionRefusedError()), not_done=(ConnectionRefusedError,))
    assert states(ledger) == {"a": State.NOT_DONE}
    assert ledger.once("a", Calls()) == "ok"


def test_a_refusal_now_says_nothing_about_an_attempt_before(ledger):
    put_in_doubt(ledger, "a")
    with pytest.raises(ConnectionRefusedError):
        ledger.once("a", Calls(error=ConnectionRefusedError()), provider_idempotent=True, not_done=(ConnectionRefusedError,))
    assert states(ledger) == {"a": State.IN_DOUBT}


def test_a_lookup_that_finds_it_gives_the_result_without_running(ledger):
    put_in_doubt(ledger, "a")
    step = Calls()
    assert ledger.once("a", step, lookup=lambda key: Done({"found": key})) == {"found": "a"}
    assert ledger.once("a", step) == {"found": "a"}
    assert step.number == 0
    assert ledger.look("a")[0].settled_by == "lookup"


def test_a_lookup_that_does_not_find_it_lets_it_run(ledger):
    put_in_doubt(ledger, "a")
    step = Calls()
    assert ledger.once("a", step, lookup=lambda _: NOT_DONE) == "ok"
    assert step.number == 1
    assert ledger.look("a")[0].attempt == 2


def test_after_a_lookup_a_refusal_is_one(ledger):
    put_in_doubt(ledger, "a")
    with pytest.raises(errors.EffectNotDone):
        ledger.once("a", Calls(error=errors.EffectNotDone("closed")), lookup=lambda _: NOT_DONE)
    assert states(ledger) == {"a": State.NOT_DONE}


@pytest.mark.parametrize(
    ("lookup", "error"), [(lambda _: UNKNOWN, errors.EffectInDoubt), (lambda _: None, errors.UsageError), (Calls(error=OSError()), OSError)]
)
def test_a_lookup_that_cannot_tell_leaves_it_in_doubt(ledger, lookup, error):
    put_in_doubt(ledger, "a")
    step = Calls()
    with pytest.raises((error, TypeError)):
        ledger.once("a", step, lookup=lookup)
    assert step.number == 0
    assert states(ledger) == {"a": State.IN_DOUBT}


def test_a_lookup_is_asked_only_after_a_request_on_its_way_has_had_time_to_arrive(open_ledger):
    ledger = open_ledger(lease_s=0.6)
    failed_s, asked_s = [], []

    def fail():
        failed_s.append(time.monotonic())  # here, since what follows may take longer than it should
        raise TimeoutError

    with pytest.raises(TimeoutError):
        ledger.once("a", fail)
    ledger.once("a", Calls(), lookup=lambda _: asked_s.append(time.monotonic()) or NOT_DONE)
    assert asked_s[0] - failed_s[0] >= 0.59


def test_where_the_other_side_deduplicates_it_runs_again_with_the_same_key(ledger):
    put_in_doubt(ledger, "a")
    assert ledger.once("a", lambda: [current().key, current().attempt], provider_idempotent=True) == ["a", 2]
    assert ledger.metrics()["repeated"] == 1


def test_an_unknown_answer_falls_back_on_the_other_side(ledger):
    put_in_doubt(ledger, "a")
    assert ledger.once("a", Calls(), lookup=lambda _: UNKNOWN, provider_idempotent=True) == "ok"


def test_a_person_says_that_it_happened(ledger):
    put_in_doubt(ledger, "a")
    ledger.resolve("a", done=True, result='{"id":1}', person="alice")
    assert ledger.once("a", Calls(error=AssertionError())) == {"id": 1}
    assert ledger.look("a")[0].settled_by == "person:alice"
    with pytest.raises(errors.UsageError, match="nothing to resolve"):
        ledger.resolve("a", done=False)


def test_a_person_says_that_it_happened_and_not_with_what_result(ledger):
    put_in_doubt(ledger, "a")
    ledger.resolve("a", done=True)
    with pytest.raises(errors.EffectUnkept):
        ledger.once("a", Calls(error=AssertionError()))
    ledger.resolve("a", done=True, result="7")
    assert ledger.once("a", Calls(error=AssertionError())) == 7


def test_a_person_says_that_it_did_not_happen(ledger):
    put_in_doubt(ledger, "a")
    ledger.resolve("a", done=False)
    assert ledger.once("a", Calls()) == "ok"
    with pytest.raises(errors.InputMissing):
        ledger.resolve("unknown", done=True)


@pytest.mark.parametrize("result", ["x" * 70_000, "\x00", "\udcff"], ids=["large", "zero", "surrogate"])
def test_a_result_that_cannot_be_kept_is_not_taken_from_a_person_either(ledger, result):
    put_in_doubt(ledger, "a")
    with pytest.raises(errors.UsageError, match="not a result"):
        ledger.resolve("a", done=True, result=result)


def test_a_call_can_wait_for_a_person(ledger, open_ledger):
    put_in_doubt(ledger, "a")
    other = open_ledger()
    person = threading.Timer(0.3, lambda: other.resolve("a", done=True, result="1"))
    person.start()
    assert ledger.once("a", Calls(error=AssertionError()), person_wait_s=120) == 1
    person.join()


def test_a_person_cannot_decide_over_a_living_holder(ledger, open_ledger):
    other = open_ledger()

    def step():
        time.sleep(0.5)  # longer than the lease
        with pytest.raises(errors.EffectBusy):
            other.resolve("a", done=False)
        return 1

    assert ledger.once("a", step) == 1


# -- results ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["x" * 70_000, float("nan"), object(), {1, 2}], ids=["large", "nan", "object", "set"])
def test_a_result_that_cannot_be_kept_is_told_and_the_step_is_not_repeated(ledger, result):
    step = Calls(result=result)
    with pytest.raises(errors.EffectUnkept) as caught:
        ledger.once("a", step)
    assert caught.value.result is result
    assert states(ledger) == {"a": State.DONE}
    with pytest.raises(errors.EffectUnkept):
        ledger.once("a", step)
    assert step.number == 1


def raising(error: Exception):
    raise error


@pytest.mark.parametrize(
    "encode",
    [lambda result: result["id"], lambda result: raising(UnicodeError()), lambda _: "\udcff", lambda _: "\x00", lambda _: b"bytes"],
    ids=["key-error", "error", "surrogate", "zero", "bytes"],
)
def test_whatever_its_writer_does_the_step_happened(ledger, encode):
    result = {"name": "x"}
    with pytest.raises(errors.EffectUnkept) as caught:
        ledger.once("a", Calls(result=result), encode=encode)
    assert caught.value.result is result
    assert states(ledger) == {"a": State.DONE}


def test_whatever_the_function_that_tells_the_epoch_does_the_step_is_recorded(open_ledger):
    epochs = [1]
    with pytest.raises(IndexError):
        open_ledger(workload="w", epoch=epochs.pop, lease_s=600).once("a", Calls())
    assert states(open_ledger()) == {"a": State.DONE}


# -- the ledger fails at the end of a step ------------------------------------------------------------------------------------


class Fault:
    """Ends what this thread does at the ledger with `error`, from when it is armed until it is mended."""

    def __init__(self, ledger: Ledger, error: BaseException, *, times: int = 1, committed: bool = False) -> None:
        self.left = 0
        self._times = times
        self._error = error
        self._committed = committed
        backend = ledger._steps.backend
        self._transact, backend.transact = backend.transact, self
        self._thread = threading.current_thread()

    def arm(self) -> str:
        """Be the step: it succeeds, and the ledger fails after it."""
        self.left = self._times
        return "ok"

    def __call__(self, *arguments):
        if not self.left or threading.current_thread() is not self._thread:
            return self._transact(*arguments)
        self.left -= 1
        if self._committed:
            self._transact(*arguments)
        raise self._error


FAULTS = [
    errors.LedgerError("cannot be opened"),
    errors.LedgerUnsafe("everybody may write to it"),
    errors.LedgerUnavailable("does not answer"),
    OSError(24, "too many open files"),
]
"""How a ledger fails; the last as what reads the file's place does."""


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_however_the_ledger_fails_the_caller_keeps_the_result_and_it_is_recorded_later(open_ledger, error):
    ledger = open_ledger(patience_s=0)
    fault = Fault(ledger, error)
    with pytest.raises(errors.EffectUnrecorded) as caught:
        ledger.once("a", fault.arm)
    assert caught.value.result == "ok"
    assert caught.value.__cause__ is error
    wait_for(lambda: states(ledger) == {"a": State.DONE})
    assert ledger.once("a", Calls(error=AssertionError())) == "ok"


@pytest.mark.parametrize("committed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError()], ids=lambda error: type(error).__name__)
def test_what_is_interrupted_while_it_is_recorded_is_recorded_later(open_ledger, error, committed):
    ledger = open_ledger(patience_s=0)
    with pytest.raises(type(error)):
        ledger.once("a", Fault(ledger, error, committed=committed).arm)
    wait_for(lambda: states(ledger) == {"a": State.DONE})
    assert ledger.once("a", Calls(error=AssertionError())) == "ok"


def test_what_could_not_be_recorded_is_recorded_when_the_ledger_is_closed(open_ledger):
    """It was interrupted, and the program ends: there is no later sign of life."""
    ledger = open_ledger(lease_s=3600)
    with pytest.raises(KeyboardInterrupt), ledger:
        ledger.once("a", Fault(ledger, KeyboardInterrupt()).arm)
    assert states(open_ledger()) == {"a": State.DONE}


def test_a_block_whose_end_could_not_be_recorded_is_not_in_doubt(open_ledger):
    """Not even when the ledger is back before the block is left."""
    ledger = open_ledger(patience_s=0, lease_s=3600)
    for key, end, state in (("a", "done", State.DONE), ("b", "not_done", State.NOT_DONE)):
        with pytest.raises(errors.EffectUnrecorded), ledger.effect(key) as effect:
            Fault(ledger, errors.LedgerUnavailable("does not answer")).arm()
            getattr(effect, end)()
        ledger.close()
        assert ledger.look(key)[0].state is state
    with ledger.effect("c") as effect:
        Fault(ledger, errors.LedgerUnavailable("does not answer")).arm()
        with pytest.raises(errors.EffectUnrecorded):
            effect.done(1)
        assert effect.done(1) == 1


def test_a_step_that_is_interrupted_between_its_end_and_the_record_is_in_doubt(open_ledger):
    def interrupt(_result):
        raise KeyboardInterrupt

    ledger = open_ledger(lease_s=3600)
    with pytest.raises(KeyboardInterrupt):
        ledger.once("a", Calls(), encode=interrupt)
    assert ledger.look("a")[0].state is State.IN_DOUBT


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_a_claim_that_could_not_be_given_up_is_given_up_later(open_ledger, error):
    """It is known that nothing happened under it; the lookup failed, and then the ledger."""
    ledger = open_ledger(patience_s=0)
    put_in_doubt(ledger, "a")
    fault = Fault(ledger, error)

    def look(_key):
        fault.arm()
        raise ZeroDivisionError

    with pytest.raises((ZeroDivisionError, OSError)):
        ledger.once("a", Calls(error=AssertionError()), lookup=look)
    wait_for(lambda: ledger.look("a")[0].state is State.IN_DOUBT)


# -- many -------------------------------------------------------------------------------------------------------------------


def test_of_64_processes_one_runs_and_all_get_its_result(place, tmp_path):
    ran = tmp_path / "ran"

    def step():
        with open(ran, "a") as handle:
            handle.write(f"{os.getpid()}\n")
        time.sleep(0.2)
        return os.getpid()

    def work():
        with Ledger(place, lease_s=30) as ledger:
            result = ledger.once("one", step)
        assert ran.read_text() == f"{result}\n"

    children = [in_child(work) for _ in range(64)]
    assert [exit_status(child) for child in children] == [0] * 64
    assert len(ran.read_text().splitlines()) == 1


def test_threads_share_a_ledger(ledger):
    step = Calls(result=1)
    results: list[int] = []
    threads = [threading.Thread(target=lambda number=number: results.append(ledger.once(f"k{number % 4}", step))) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 16
    assert step.number == 4


def test_a_forked_child_shares_nothing_with_its_parent(ledger):
    ledger.once("before", Calls())

    def work():
        assert ledger.once("before", Calls(error=AssertionError())) == "ok"
        ledger.once("child", Calls(result=2))

    assert exit_status(in_child(work)) == 0
    assert ledger.once("child", Calls(error=AssertionError())) == 2


def test_a_child_that_is_forked_while_another_thread_is_in_a_transaction_can_work(ledger):
    """As a data loader is, at any moment: it must not inherit a lock that nobody will give back."""
    stop = threading.Event()

    def write() -> None:
        for number in range(10_000):
            ledger.once(f"parent{number}", Calls())
            if stop.wait(0.001):  # else a child may find the file taken at each of its looks for as long as it is patient
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(12):
            child = in_child(lambda number=number: ledger.once(f"child{number}", Calls()))
            assert exit_status(child) == 0
    finally:
        stop.set()
        writer.join()
    assert sum(key.startswith("child") for key in states(ledger)) == 12


def test_a_waiter_times_out(ledger, open_ledger):
    other = open_ledger()

    def step():
        with pytest.raises(errors.EffectBusy) as caught:
            other.once("a", Calls(), wait_s=0.2)
        assert caught.value.retryable
        return 1

    assert ledger.once("a", step) == 1


def test_a_step_may_take_longer_than_its_lease(ledger, open_ledger):
    """A waiter on another machine, which knows nothing but the signs of life, does not replace the holder.

    Its clock goes on by less than a lease with each of them: a busy machine that gives one late has not fallen silent.
    """
    elsewhere = Elsewhere("far")
    other = open_ledger(surroundings=elsewhere)
    waiter_result = []
    waiter = threading.Thread(target=lambda: waiter_result.append(other.once("a", Calls(error=AssertionError()), provider_idempotent=True)))

    def step():
        waiter.start()
        wait_until_it_waits(other)
        for _ in range(6):
            before = ledger.look("a")[0].beat
            wait_for(lambda before=before: ledger.look("a")[0].beat > before)
            elsewhere.now_s += 0.25
            wait_until_it_looks(elsewhere, waiter)
        return "slow"

    assert ledger.once("a", step) == "slow"
    waiter.join()
    assert waiter_result == ["slow"]
    assert ledger.look("a")[0].attempt == 1


def test_a_dead_holder_is_replaced_after_its_lease(ledger):
    child = in_child(lambda: ledger.once("a", lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert exit_status(child) == -signal.SIGKILL
    assert states(ledger) == {"a": State.IN_DOUBT}
    with pytest.raises(errors.EffectInDoubt):
        ledger.once("a", Calls(error=AssertionError()))
    assert ledger.once("a", Calls(), provider_idempotent=True) == "ok"


def test_a_stopped_holder_on_this_machine_is_not_replaced(ledger, tmp_path):
    """It is alive, and would do the step when it goes on: a second one must not begin."""
    began = tmp_path / "began"

    def step():
        began.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        return "late"

    child = in_child(lambda: ledger.once("a", step))
    wait_for(began.exists)
    with pytest.raises(errors.EffectBusy):
        ledger.once("a", Calls(error=AssertionError()), provider_idempotent=True, wait_s=1.0)
    os.kill(child, signal.SIGCONT)
    assert exit_status(child) == 0
    assert ledger.once("a", Calls(error=AssertionError())) == "late"


def test_a_holder_elsewhere_that_fell_silent_is_replaced_and_its_late_result_is_refused(place, open_ledger, tmp_path):
    began, here = tmp_path / "began", Elsewhere("near")
    near = open_ledger(surroundings=here, lease_s=30)

    def step():
        began.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
        return "old"

    def work():
        with Ledger(place, surroundings=Elsewhere("far")) as far, pytest.raises(errors.EffectLost) as caught:
            far.once("a", step)
        assert caught.value.result == "old"

    child = in_child(work)
    wait_for(began.exists)
    results = []
    waiter = threading.Thread(target=lambda: results.append(near.once("a", lambda: "new", provider_idempotent=True)))
    waiter.start()
    wait_until_it_waits(near)
    time.sleep(0.3)
    assert not results  # the waiter must see for itself that nothing moves for a whole lease
    here.now_s += 31
    waiter.join()
    assert results == ["new"]
    os.kill(child, signal.SIGCONT)
    assert exit_status(child) == 0
    assert near.once("a", Calls(error=AssertionError())) == "new"


@pytest.mark.parametrize("jump_s", [-3e8, 3e8])
def test_wall_clocks_that_jump_replace_nobody(open_ledger, jump_s):
    surroundings = Elsewhere("near")
    holder, other = open_ledger(), open_ledger(surroundings=surroundings)

    def step():
        surroundings.wall_shift_s = jump_s
        surroundings.now_s += 10  # nothing was observed yet, so this says nothing about the holder
        waiter_error = []

        def wait():
            try:
                other.once("a", Calls(error=AssertionError()), provider_idempotent=True, wait_s=0)
            except errors.EffectBusy as error:
                waiter_error.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        assert len(waiter_error) == 1
        return 1

    assert holder.once("a", step) == 1


def test_a_waiter_that_is_brought_back_elsewhere_begins_to_watch_anew(open_ledger):
    """The clock of the new machine may be days ahead: that is not silence."""
    surroundings = Elsewhere("first")
    holder, other = open_ledger(lease_s=30), open_ledger(surroundings=surroundings, lease_s=30)
    results = []

    def step():
        waiter = threading.Thread(target=lambda: results.append(other.once("a", Calls(error=AssertionError()), provider_idempotent=True)))
        waiter.start()
        wait_until_it_waits(other)
        surroundings.name, surroundings.now_s = "second", 1e7
        wait_until_it_looks(surroundings, waiter)
        assert not results
        return waiter

    waiter = []
    holder.once("a", lambda: waiter.append(step()))
    waiter[0].join()
    assert results == [None]


# -- lives ------------------------------------------------------------------------------------------------------------------


def test_an_older_life_cannot_act_and_is_told_so(open_ledger):
    # A lease so long that no late sign of life of the first step is counted below.
    old, new = open_ledger(workload="w", epoch=1, lease_s=30), open_ledger(workload="w", epoch=2)
    assert old.once("a", Calls()) == "ok"
    assert new.once("b", lambda: current().token) == 2
    for key in ("a", "c"):
        with pytest.raises(errors.StaleLife) as caught:
            old.once(key, Calls(error=AssertionError()))
    assert caught.value.exit_status == 11
    assert "life 1 of w is over: life 2 has begun" in str(caught.value)
    assert open_ledger(workload="other", epoch=0).once("c", Calls()) == "ok"
    assert old.metrics()["stale"] == 2


def test_the_epoch_is_read_at_every_use(open_ledger, tmp_path):
    """A restored process has its old memory and environment; the file has the truth."""
    file = tmp_path / "epoch"
    file.write_text("4\njob-9\n")
    ledger = open_ledger(epoch=file)
    assert ledger.once("a", lambda: current().token) == 4
    open_ledger(workload="job-9", epoch=5).once("b", Calls())
    with pytest.raises(errors.StaleLife):
        ledger.once("c", Calls())
    file.write_text("6\njob-9\n")
    assert ledger.token == 6
    assert ledger.once("c", lambda: current().token) == 6


def test_what_an_older_life_had_begun_is_recorded_and_it_learns_that_it_is_over(open_ledger):
    old, new = open_ledger(workload="w", epoch=1), open_ledger(workload="w", epoch=2)

    def step():
        new.once("other", Calls())
        with pytest.raises(errors.StaleLife):
            current().check()
        time.sleep(0.2)  # long enough for a sign of life to be refused
        return "done all the same"

    with pytest.raises(errors.StaleLife):
        old.once("a", step)
    assert new.once("a", Calls(error=AssertionError())) == "done all the same"


def test_an_unreadable_epoch_stops_a_step_before_it_runs_and_loses_no_result_after(open_ledger, tmp_path):
    file = tmp_path / "epoch"
    ledger = open_ledger(epoch=file)
    with pytest.raises(errors.InputMissing):
        ledger.once("a", Calls(error=AssertionError()))
    file.write_text("1\nw\n")
    with pytest.raises(errors.InputMissing):
        ledger.once("a", file.unlink)
    assert states(ledger) == {"a": State.DONE}


# -- other forms --------------------------------------------------------------------------------------------------------------


def test_a_block(ledger):
    for _ in range(2):
        with ledger.effect("a", inputs=[1]) as effect:
            if effect.needed:
                effect.check()
                assert effect.done({"n": 1}) == {"n": 1}
        assert effect.result == {"n": 1}
    with pytest.raises(errors.UsageError):
        effect.done(2)


def test_a_block_that_ends_without_done_is_in_doubt(ledger):
    with pytest.raises(errors.UsageError, match="without done"), ledger.effect("a"):
        pass
    with pytest.raises(ZeroDivisionError), ledger.effect("b"):
        raise ZeroDivisionError
    assert states(ledger) == {"a": State.IN_DOUBT, "b": State.IN_DOUBT}


def test_a_block_may_say_not_done(ledger):
    with ledger.effect("a") as effect:
        effect.not_done()
    assert states(ledger) == {"a": State.NOT_DONE}


def test_an_error_after_done_changes_nothing(ledger):
    with pytest.raises(ZeroDivisionError), ledger.effect("a") as effect:
        effect.done(1)
        raise ZeroDivisionError
    assert ledger.once("a", Calls(error=AssertionError())) == 1


def test_a_decorated_function(ledger):
    calls = []

    @ledger.step()
    def mail(to: str, subject: str = "hello") -> int:
        calls.append((to, subject))
        return len(calls)

    @ledger.step(key=lambda order: f"charge-{order}")
    def charge(order: int) -> str:
        return current().key

    assert (mail("a"), mail("a", "hello"), mail(subject="hello", to="a"), mail("b")) == (1, 1, 1, 2)
    assert calls == [("a", "hello"), ("b", "hello")]
    assert charge(7) == charge(7) == "charge-7"
    with pytest.raises(errors.UsageError):
        mail(object())


def test_tasks(ledger):
    calls = []

    async def step() -> str:
        calls.append(current().key)
        await asyncio.sleep(0.1)
        return "ok"

    @ledger.step()
    async def decorated(number: int) -> int:
        calls.append(number)
        return number

    async def look(_key: str) -> object:
        await asyncio.sleep(0)
        return Done("found")

    async def main() -> None:
        assert await asyncio.gather(*(ledger.aonce("a", step) for _ in range(8))) == ["ok"] * 8
        assert await decorated(3) == await decorated(3) == 3
        async with ledger.effect("b") as effect:
            assert effect.needed
            await effect.adone(1)
        with pytest.raises(ZeroDivisionError):
            await ledger.aonce("c", Calls(error=ZeroDivisionError()))
        assert await ledger.aonce("c", step, lookup=look) == "found"

    asyncio.run(main())
    assert calls == ["a", 3]
    with pytest.raises(errors.UsageError, match="asynchronous"):
        ledger.once("d", step)


def test_a_cancelled_task_leaves_its_step_in_doubt(ledger):
    async def main() -> None:
        began = asyncio.Event()

        async def step() -> None:
            began.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(ledger.aonce("a", step))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert states(ledger) == {"a": State.IN_DOUBT}


def test_a_task_that_is_cancelled_before_its_step_began_leaves_nothing_behind(ledger):
    """Wherever the cancellation strikes, the step either runs later at once, or was begun and is in doubt; nobody waits for ever."""

    async def main() -> None:
        for number in range(20):
            step = Calls()
            task = asyncio.create_task(ledger.aonce(f"k{number}", step))
            await asyncio.sleep(number * 0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if step.number == 0:
                assert await ledger.aonce(f"k{number}", step, wait_s=0) == "ok"

    asyncio.run(main())
    assert State.RUNNING not in states(ledger).values()


# -- keeping ------------------------------------------------------------------------------------------------------------------


def test_rows_counts_and_pruning(ledger):
    for number in range(3):
        ledger.once(f"done{number}", Calls())
    put_in_doubt(ledger, "doubt")
    with pytest.raises(errors.EffectNotDone):
        ledger.once("refused", Calls(error=errors.EffectNotDone("no")))
    assert ledger.counts() == {"running": 0, "in_doubt": 1, "not_done": 1, "done": 3}
    assert [row.key for row, _ in ledger.rows(State.RUNNING, State.IN_DOUBT, State.NOT_DONE)] == ["doubt", "refused"]
    assert ledger.prune(3600) == 0
    assert ledger.prune(0, dry_run=True) == 4
    assert ledger.prune(0) == 4
    assert states(ledger) == {"doubt": State.IN_DOUBT}


def test_many_rows_are_read_in_order(ledger, monkeypatch):
    ledger.once("first", Calls())
    row = ledger.look("first")[0]
    monkeypatch.setattr("perdure.effects.sqlite._PAGE", 4)
    monkeypatch.setattr("perdure.effects.postgres._PAGE", 4)
    for number in range(10):
        key = f"k{number}"
        ledger._steps.backend.transact(key, None, lambda seen, key=key: (dataclasses.replace(row, key=key), None))
    assert [row.key for row, _ in ledger.rows()] == ["first", *(f"k{number}" for number in range(10))]


def test_an_absent_ledger_is_not_made_by_looking(open_ledger):
    with pytest.raises(errors.LedgerMissing):
        open_ledger(create=False).counts()
    open_ledger().counts()
    assert open_ledger(create=False).counts()["done"] == 0


def test_many_processes_may_make_the_ledger_at_once(place):
    def work():
        with Ledger(place) as ledger:
            ledger.once(f"k{os.getpid()}", Calls())

    children = [in_child(work) for _ in range(8)]
    assert [exit_status(child) for child in children] == [0] * 8
    with Ledger(place) as ledger:
        assert ledger.counts()["done"] == 8


def test_outside_of_postgresql_a_shared_transaction_is_unsupported_and_on_it_only_with_a_connection(ledger, place):
    error = errors.UsageError if place.startswith("postgresql") else errors.Unsupported
    with pytest.raises(error):
        ledger.once("a", Calls(error=AssertionError()), connection=object())
