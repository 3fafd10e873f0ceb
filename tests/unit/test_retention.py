"""Which checkpoints are kept: examples for each rule, and what no rule may ever break, over random stores."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.model.checkpoint import CheckpointId
from perdure.store import retention
from perdure.store.retention import Candidate, Rules

SECOND = 1_000_000_000


def candidates(workload: str = "a", number: int = 5, **changes) -> list[Candidate]:
    """Checkpoints 1 to `number`, made a second after each other."""
    return [Candidate(CheckpointId(workload, 1, n), n * SECOND, **changes) for n in range(1, number + 1)]


def kept(decisions) -> list[str]:
    return [str(one.id) for one in decisions if one.keep]


def test_without_a_rule_all_stay():
    assert len(kept(retention.choose(candidates(), Rules(), now_ns=10**18))) == 5


def test_the_last_ones_stay_of_each_workload_by_epoch_not_by_clock():
    backwards = [Candidate(CheckpointId("a", epoch, 1), -epoch * SECOND) for epoch in (3, 1, 2)]
    decisions = retention.choose(backwards + candidates("b", 2), Rules(keep_last=2), now_ns=0)
    assert kept(decisions) == ["a@2.1", "a@3.1", "b@1.1", "b@1.2"]
    assert decisions[0].reason == "not among the last 2"


def test_either_rule_keeps():
    rules = Rules(keep_last=1, keep_for_s=2.5)
    decisions = retention.choose(candidates(), rules, now_ns=5 * SECOND)
    assert kept(decisions) == ["a@1.3", "a@1.4", "a@1.5"]
    assert [one.reason for one in decisions] == ["not among the last 1, too old"] * 2 + ["young enough"] * 2 + [
        "newest good one of its workload"
    ]


def test_a_clock_that_jumps_ahead_leaves_the_newest():
    assert kept(retention.choose(candidates(), Rules(keep_for_s=60), now_ns=10**18)) == ["a@1.5"]


def test_damaged_ones_do_not_count_and_the_newest_good_one_stays():
    some = [Candidate(one.id, one.created_ns, damaged="flipped" if one.id.sequence > 3 else None) for one in candidates()]
    decisions = retention.choose(some, Rules(keep_last=1), now_ns=0)
    assert kept(decisions) == ["a@1.3", "a@1.4", "a@1.5"]
    assert decisions[-1].reason == "damaged, kept until that is asked to go: flipped"
    decisions = retention.choose(some, Rules(damaged=True), now_ns=0, pinned=[some[3].id])
    assert kept(decisions) == ["a@1.1", "a@1.2", "a@1.3", "a@1.4"]
    assert decisions[-1].reason == "damaged: flipped"


def hung(moved: int, still: int) -> list[Candidate]:
    """So many that were made while the workload ran, and so many made since it stands still."""
    return [Candidate(one.id, one.created_ns, one.packs, stood_still=one.id.sequence > moved) for one in candidates(number=moved + still)]


def test_one_that_stands_still_takes_no_place_but_that_of_the_one_before():
    decisions = retention.choose(hung(4, 3), Rules(keep_last=2), now_ns=0)
    assert kept(decisions) == ["a@1.3", "a@1.4", "a@1.7"]
    assert decisions[4].reason == "made while the workload stood still"
    assert [one.reason for one in decisions][3] == "newest good one from before the workload stood still"
    # However strict the rule is, the one before the hang stays.
    assert kept(retention.choose(hung(4, 3), Rules(keep_last=1), now_ns=0)) == ["a@1.4", "a@1.7"]
    assert kept(retention.choose(hung(4, 3), Rules(keep_for_s=0), now_ns=10**18)) == ["a@1.4", "a@1.7"]


def test_once_it_runs_again_it_is_as_if_it_had_never_stood_still():
    again = [*hung(3, 2), Candidate(CheckpointId("a", 2, 1), 0), Candidate(CheckpointId("a", 2, 2), 0)]
    assert kept(retention.choose(again, Rules(keep_last=3), now_ns=0)) == ["a@1.3", "a@2.1", "a@2.2"]


def test_for_size_those_made_while_it_stood_still_go_first():
    packs = {f"{n}": 10 for n in range(1, 8)}
    sized = [msgspec.structs.replace(one, packs=frozenset({str(one.id.sequence)})) for one in hung(4, 3)]
    assert kept(retention.choose(sized, Rules(max_bytes=40), now_ns=0, pack_bytes=packs)) == ["a@1.2", "a@1.3", "a@1.4", "a@1.7"]
    assert kept(retention.choose(sized, Rules(max_bytes=0), now_ns=0, pack_bytes=packs)) == ["a@1.4", "a@1.7"]


def test_what_a_newer_version_made_is_left_alone():
    some = [Candidate(one.id, one.created_ns, foreign=one.id.sequence > 3) for one in candidates()]
    decisions = retention.choose(some, Rules(keep_last=1, max_bytes=0, damaged=True), now_ns=0)
    assert kept(decisions) == ["a@1.3", "a@1.4", "a@1.5"]


def test_pinned_and_used_ones_stay():
    one, two, *_ = (candidate.id for candidate in candidates())
    decisions = retention.choose(candidates(), Rules(keep_last=1, max_bytes=0), in_use=[one], pinned=[two], now_ns=0)
    assert [(str(one.id), one.reason) for one in decisions if one.keep] == [
        ("a@1.1", "in use"),
        ("a@1.2", "pinned"),
        ("a@1.5", "newest good one of its workload"),
    ]


def test_shared_packs_count_once():
    shared = [Candidate(one.id, one.created_ns, frozenset({"base", f"own-{one.id.sequence}"})) for one in candidates()]
    sizes = {"base": 100} | {f"own-{n}": 10 for n in range(1, 6)}
    assert retention.kept_bytes(shared, sizes) == 150
    assert kept(retention.choose(shared, Rules(max_bytes=130), now_ns=0, pack_bytes=sizes)) == ["a@1.3", "a@1.4", "a@1.5"]
    assert len(kept(retention.choose(shared, Rules(max_bytes=150), now_ns=0, pack_bytes=sizes))) == 5


def test_what_would_free_nothing_stays():
    """The oldest shares its pack with the newest, which stays anyway."""
    some = [
        Candidate(CheckpointId("a", 1, 1), 1, frozenset({"x"})),
        Candidate(CheckpointId("a", 1, 2), 2, frozenset({"y"})),
        Candidate(CheckpointId("a", 1, 3), 3, frozenset({"x"})),
    ]
    assert kept(retention.choose(some, Rules(max_bytes=10), now_ns=0, pack_bytes={"x": 10, "y": 10})) == ["a@1.1", "a@1.3"]


@pytest.mark.parametrize("rules", [Rules(keep_last=0), Rules(keep_for_s=-1), Rules(max_bytes=-1)])
def test_a_rule_out_of_range_is_refused(rules):
    with pytest.raises(errors.UsageError):
        retention.choose([], rules, now_ns=0)


PACKS = st.frozensets(st.sampled_from("uvwxyz"), max_size=4)
IDS = st.builds(CheckpointId, st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 4))
STORES = st.dictionaries(
    IDS, st.builds(lambda *all_of_it: all_of_it, st.integers(0, 100), PACKS, st.sampled_from([None, None, "x"]), st.booleans()), max_size=12
)
RULES = st.builds(
    Rules,
    keep_last=st.none() | st.integers(1, 4),
    keep_for_s=st.none() | st.floats(0, 1e-7),
    max_bytes=st.none() | st.integers(0, 40),
    damaged=st.booleans(),
)


@given(STORES, RULES, st.sets(IDS), st.sets(IDS), st.integers(0, 200))
def test_what_no_rule_breaks(store, rules, in_use, pinned, now_ns):
    every = [Candidate(one, *rest) for one, rest in store.items()]
    sizes = {pack: 1 + 3 * n for n, pack in enumerate("uvwxyz")}
    decisions = retention.choose(every, rules, in_use=in_use, pinned=pinned, now_ns=now_ns, pack_bytes=sizes)
    assert [one.id for one in decisions] == sorted(store)
    stay = {one.id for one in decisions if one.keep}
    assert all(one.reason for one in decisions)
    assert (set(store) & (in_use | pinned)) <= stay
    for workload in "ab":
        good = sorted(one.id for one in every if one.id.workload == workload and one.is_good)
        assert not good or good[-1] in stay
        moved = sorted(one.id for one in every if one.id.workload == workload and one.is_good and not one.stood_still)
        assert not moved or moved[-1] in stay
    by_id = {one.id: one for one in every}
    if rules.max_bytes is None:
        if rules.keep_last is None and rules.keep_for_s is None:
            assert {one.id for one in every if one.is_good} <= stay
        return
    # Either it fits, or no more than the protected ones' packs are left.
    left = retention.kept_bytes([by_id[one] for one in stay], sizes)
    newest = {
        max(ids)
        for w in "ab"
        for of in (lambda one: True, lambda one: not one.stood_still)
        if (ids := [one.id for one in every if one.id.workload == w and one.is_good and of(one)])
    }
    protected = [one for one in every if one.id in in_use | pinned | newest or one.damaged]
    assert left <= max(rules.max_bytes, retention.kept_bytes(protected, sizes))
    # And nothing was removed for size that would still fit.
    for decision in decisions:
        if not decision.keep and "fit" in decision.reason:
            with_it = retention.kept_bytes([by_id[one] for one in stay | {decision.id}], sizes)
            assert with_it > rules.max_bytes


@given(STORES, st.integers(1, 4), st.sets(IDS), st.integers(0, 200))
def test_a_damaged_one_makes_no_other_go(store, count, in_use, now_ns):
    every = [Candidate(one, *rest) for one, rest in store.items()]
    whole = [msgspec.structs.replace(one, damaged=None) for one in every]
    gone, gone_if_whole = (
        {one.id for one in retention.choose(some, Rules(keep_last=count), in_use=in_use, now_ns=now_ns) if not one.keep}
        for some in (every, whole)
    )
    assert gone <= gone_if_whole
