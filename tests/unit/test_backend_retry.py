"""What is tried again, how often, with which pauses, and what a lost answer comes to. Time and chance are given."""

from __future__ import annotations

import pytest

from perdure import errors
from perdure.store.backends.faulty import READS, WRITES, Fault, FaultyBackend, Rule
from perdure.store.backends.memory import MemoryBackend
from perdure.store.backends.retry import Patience, RetryingBackend


class Clock:
    """Time that passes only by sleeping, and with each call by `call_s`."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def place(clock):
    """A retrying backend over a faulty one over memory that holds one object; `arrange` sets what fails."""
    memory = MemoryBackend()
    memory.create()
    memory.put("old", b"there")
    faulty = FaultyBackend(memory)
    return RetryingBackend(faulty, Patience(), clock=lambda: clock.now_s, sleep=clock.sleep, random=lambda: 1.0)


def arrange(place, fault, *, times=1, calls=(), after=0):
    place.inner.schedule = (Rule(fault=fault, times=times, calls=calls, after=after),)
    place.inner.history.clear()


CALLS = {
    "create": lambda place: place.create(),
    "exists": lambda place: place.exists(),
    "put": lambda place: place.put("new", b"content"),
    "put_if_absent": lambda place: place.put_if_absent("new", b"content"),
    "get": lambda place: place.get("old"),
    "size": lambda place: place.size("old"),
    "list": lambda place: list(place.list("")),
    "delete": lambda place: place.delete("old"),
}


@pytest.mark.parametrize("fault", [Fault.TIMEOUT, Fault.SERVER_ERROR, Fault.IO_ERROR, Fault.LOST_ANSWER, Fault.PARTIAL])
@pytest.mark.parametrize("name", CALLS)
def test_a_passing_fault_is_not_noticed(place, clock, name, fault):
    arrange(place, fault, times=3, calls=(name,))
    CALLS[name](place)
    # The second try of a conditional write meets what the first wrote, and needs no third.
    tries = 2 if (name, fault) == ("put_if_absent", Fault.LOST_ANSWER) else 4
    assert place.inner.count(name) == tries
    assert clock.pauses == [0.25, 0.5, 1.0][: tries - 1]


@pytest.mark.parametrize("name", CALLS)
def test_patience_ends(place, clock, name):
    arrange(place, Fault.SERVER_ERROR, times=None)
    with pytest.raises(errors.StoreUnavailable, match="500"):
        CALLS[name](place)
    assert place.inner.count(name) == 6
    assert clock.pauses == [0.25, 0.5, 1.0, 2.0, 4.0]


@pytest.mark.parametrize(("fault", "kind"), [(Fault.FULL, errors.StoreFull), (Fault.READ_ONLY, errors.StoreError)])
@pytest.mark.parametrize("name", ["put", "put_if_absent"])
def test_what_a_second_try_cannot_mend_is_said_at_once(place, clock, name, fault, kind):
    arrange(place, fault, times=None)
    with pytest.raises(kind):
        CALLS[name](place)
    assert place.inner.count() == 1
    assert clock.pauses == []


def test_pauses_are_drawn_from_the_upper_half_and_are_bounded(clock):
    drawn = iter([0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0])
    patience = Patience(tries=8, first_pause_s=1.0, longest_pause_s=5.0, total_s=1000.0)
    faulty = FaultyBackend(MemoryBackend(), (Rule(fault=Fault.TIMEOUT, times=None),))
    place = RetryingBackend(faulty, patience, clock=lambda: clock.now_s, sleep=clock.sleep, random=lambda: next(drawn))
    with pytest.raises(errors.StoreUnavailable):
        place.exists()
    assert clock.pauses == [0.5, 1.5, 4.0, 2.5, 2.5, 2.5, 2.5]


def test_no_try_begins_after_all_the_time_has_passed(clock):
    faulty = FaultyBackend(MemoryBackend(), (Rule(fault=Fault.SLOW, times=None),), sleep=clock.sleep, slow_s=0.0)
    patience = Patience(tries=100, first_pause_s=8.0, total_s=60.0)

    class Slow(MemoryBackend):
        def exists(self) -> bool:
            clock.now_s += 20.0
            raise errors.StoreUnavailable("no answer in time")

    place = RetryingBackend(Slow(), patience, clock=lambda: clock.now_s, sleep=clock.sleep, random=lambda: 1.0)
    with pytest.raises(errors.StoreUnavailable):
        place.exists()
    assert clock.pauses == [8.0, 8.0]  # begun at 0, 28 and 56 s; the next would begin at 84
    assert faulty.count() == 0


def test_what_was_written_before_its_answer_was_lost_is_ours(place):
    arrange(place, Fault.LOST_ANSWER, calls=("put_if_absent",))
    place.put_if_absent("new", memoryview(b"content"))
    assert place.inner.inner.get("new") == b"content"
    assert place.inner.count("put_if_absent") == 2


def test_what_somebody_else_wrote_in_the_meantime_is_not_ours(place):
    arrange(place, Fault.TIMEOUT, calls=("put_if_absent",))
    inner = place.inner.inner
    put = inner.put_if_absent

    def meanwhile(key, content):
        inner.put(key, b"others!")
        put(key, content)

    inner.put_if_absent = meanwhile
    with pytest.raises(errors.ObjectExists):
        place.put_if_absent("new", b"content")
    assert inner.get("new") == b"others!"


def test_equal_content_without_an_uncertain_try_is_still_somebody_elses(place):
    with pytest.raises(errors.ObjectExists):
        place.put_if_absent("old", b"there")
    assert place.inner.count() == 1


def test_the_look_after_a_lost_answer_is_tried_again_too(place, clock):
    place.inner.schedule = (
        Rule(fault=Fault.LOST_ANSWER, calls=("put_if_absent",)),
        Rule(fault=Fault.SERVER_ERROR, calls=("size",), times=2),
        Rule(fault=Fault.TIMEOUT, calls=("get",)),
    )
    place.put_if_absent("new", b"content")
    assert place.inner.inner.get("new") == b"content"
    assert len(clock.pauses) == 4


def test_what_was_written_and_deleted_again_is_written_again(place):
    arrange(place, Fault.LOST_ANSWER, calls=("put_if_absent",))
    inner, looked = place.inner.inner, []
    size = inner.size

    def vanish(key):
        if not looked:
            looked.append(key)
            inner.delete(key)
        return size(key)

    inner.size = vanish
    place.put_if_absent("new", b"content")
    assert inner.get("new") == b"content"


def test_a_listing_that_breaks_off_goes_on_where_it_was(place):
    for number in range(10):
        place.inner.inner.put(f"k/{number}", b"")
    arrange(place, Fault.PARTIAL, times=2, calls=("list",))
    assert [info.key for info in place.list("k/")] == [f"k/{number}" for number in range(10)]
    assert place.inner.count("list") == 3


def test_a_listing_that_gets_on_has_new_patience(place, clock):
    """It may break off as often as it likes as long as each try gives something new; not when none does."""
    memory = place.inner.inner
    for number in range(64):
        memory.put(f"k/{number:02}", b"")

    class Stumbling(MemoryBackend):
        given = 0

        def list(self, prefix):
            self.given += 5
            for number, info in enumerate(memory.list(prefix)):
                if number == min(self.given, 50):
                    raise errors.StoreUnavailable("broke off")
                yield info

    stumbling = Stumbling()
    listing = RetryingBackend(stumbling, Patience(), clock=lambda: clock.now_s, sleep=clock.sleep, random=lambda: 1.0)
    seen = []
    with pytest.raises(errors.StoreUnavailable):
        for info in listing.list("k/"):
            seen.append(info.key)  # noqa: PERF401  # what was seen before it gave up counts
    assert seen == [f"k/{number:02}" for number in range(50)]
    assert stumbling.given == 5 * (10 + 5)


def test_every_call_is_covered():
    assert set(CALLS) == {"create", "exists", *READS, *WRITES}


def test_a_delete_that_is_to_be_tried_once_is(place, clock):
    arrange(place, Fault.TIMEOUT)
    with pytest.raises(errors.StoreUnavailable):
        place.delete("old", once=True)
    place.delete("old", once=True)
    assert place.inner.count("delete") == 2
    assert clock.pauses == []
