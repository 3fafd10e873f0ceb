"""How much may be asked of the agent: each user's share, everybody's, and root's, by a clock that the test holds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.agent.limits import Bounds, Ledger

_BOUNDS = Bounds(connections_of_user=3, connections=5, requests_at_once_of_user=2, requests_at_once=3, burst=4, per_minute=60.0, idle_s=1.0)
ALICE, BOB, ROOT = 1000, 1001, 0


def test_a_user_has_so_many_connections_and_another_user_their_own():
    ledger = Ledger(_BOUNDS)
    assert [ledger.open(ALICE) for _ in range(3)] == [""] * 3
    assert "user 1000 has 3 connections" in ledger.open(ALICE)
    assert ledger.open(BOB) == ""
    ledger.close(ALICE)
    assert ledger.open(ALICE) == ""


def test_all_together_have_so_many_and_root_is_let_in_all_the_same():
    ledger = Ledger(_BOUNDS)
    assert [ledger.open(uid) for uid in range(1, 6)] == [""] * 5
    assert "5 connections" in ledger.open(6)
    assert ledger.open(ROOT) == ""


def test_requests_at_once_are_bounded_and_come_back_when_one_ends():
    ledger = Ledger(_BOUNDS)
    assert [ledger.begin(ALICE, 0.0) for _ in range(2)] == [""] * 2
    assert "going on already" in ledger.begin(ALICE, 0.0)
    assert ledger.begin(BOB, 0.0) == ""
    assert "3 requests" in ledger.begin(BOB, 0.0)
    assert ledger.begin(ROOT, 0.0) == ""
    ledger.end(ALICE)
    assert ledger.begin(ALICE, 0.0) == ""


def test_after_the_burst_there_is_one_a_second():
    ledger = Ledger(_BOUNDS)
    for _ in range(4):
        assert ledger.begin(ALICE, 0.0) == ""
        ledger.end(ALICE)
    assert "60 times a minute" in ledger.begin(ALICE, 0.9)
    assert ledger.begin(ALICE, 1.9) == ""
    ledger.end(ALICE)
    assert "times a minute" in ledger.begin(ALICE, 1.9)
    assert ledger.begin(BOB, 1.9) == ""


def test_who_has_not_asked_for_long_is_forgotten_and_has_all_again():
    ledger = Ledger(_BOUNDS)
    for _ in range(4):
        ledger.begin(ALICE, 0.0)
        ledger.end(ALICE)
    ledger.forget(3.9)
    assert ledger.begin(ALICE, 3.9) == ""
    ledger.end(ALICE)
    ledger.forget(100.0)
    for _ in range(4):
        assert ledger.begin(ALICE, 100.0) == ""
        ledger.end(ALICE)


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "begin", "end"]), st.integers(1, 3), st.floats(0, 1)), max_size=60))
def test_no_bound_is_ever_passed(steps):
    ledger = Ledger(_BOUNDS)
    now_s = 0.0
    opened, busy = {}, {}
    for kind, uid, pause_s in steps:
        now_s += pause_s
        if kind == "open" and not ledger.open(uid):
            opened[uid] = opened.get(uid, 0) + 1
        elif kind == "begin" and not ledger.begin(uid, now_s):
            busy[uid] = busy.get(uid, 0) + 1
        elif kind == "close" and opened.get(uid):
            opened[uid] -= 1
            ledger.close(uid)
        elif kind == "end" and busy.get(uid):
            busy[uid] -= 1
            ledger.end(uid)
        assert max(opened.values(), default=0) <= 3
        assert sum(opened.values()) <= 5
        assert max(busy.values(), default=0) <= 2
        assert sum(busy.values()) <= 3
