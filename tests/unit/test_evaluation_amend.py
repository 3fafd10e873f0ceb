"""Amendments: what changed after the lock, why, and whether there were data; each stands on what was written before it."""

from __future__ import annotations

import json
import shutil

import dying
import evaluations
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.evaluation import amend, canonical, folder, lock, paper, plan, standing, status
from perdure.evaluation.folder import Folder
from perdure.evaluation.paper import Change
from perdure.evaluation.this_machine import Signature
from perdure.model.evaluation import Arm, Event, EventKind

SIGNED = Signature(1_764_460_000.0, "maria", "login1")
WHY = "the board moved the deadline of the night"


def edit(there: Folder, **replaced: str) -> None:
    there.plan.write_text(evaluations.text(there.path, **replaced))


def record(there: Folder, reason: str = WHY) -> paper.Amendment:
    return amend.record(there, reason=reason, signed=SIGNED)


@pytest.fixture
def locked(tmp_path) -> Folder:
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    lock.fix(there, signed=SIGNED)
    return there


def test_a_change_is_recorded_key_by_key_and_the_lock_stays(locked):
    before = locked.lock.read_bytes()
    old = canonical.plan_hash(plan.load(locked.plan))
    edit(locked, ratio_at_most="at_most = 0.5", seed="seed = 8\ngrace_s = 10", duration_s="start = 2026-12-01T08:00:00Z\nduration_s = 3600")
    made = record(locked)
    assert made.changes == (
        Change("faults.grace_s", msgspec.UNSET, 10),
        Change("faults.seed", 7, 8),
        Change("site.window.start", msgspec.UNSET, "2026-12-01T08:00:00Z"),
        Change("success.work-lost.at_most", msgspec.UNSET, 0.5),
        Change("success.work-lost.ratio_at_most", 0.2, msgspec.UNSET),
    )
    assert (made.old_sha256, made.new_sha256) == (old, canonical.plan_hash(plan.load(locked.plan)))
    assert (made.number, made.reason, made.signed, made.data_existed, made.managed_runs) == (1, WHY, SIGNED, False, 0)
    assert locked.lock.read_bytes() == before
    assert locked.amendments.stat().st_mode & 0o777 == 0o600
    found = standing.require_locked(locked)
    assert found.amendments == (made,)
    assert found.plan_hashes() == (made.old_sha256, made.new_sha256)


def test_amendments_follow_each_other_and_one_may_take_another_back(locked):
    edit(locked, seed="seed = 8")
    first = record(locked)
    edit(locked)
    second = record(locked)
    assert (second.number, second.old_sha256, second.new_sha256) == (2, first.new_sha256, first.old_sha256)
    assert standing.require_locked(locked).is_sound


def test_it_says_whether_there_were_data_already(locked):
    folder.append_run(locked, evaluations.run(locked, 1, purpose="arms"))
    folder.append_run(locked, evaluations.run(locked, 1, purpose="arms", arm=Arm.MANAGED))
    edit(locked, at_most="at_most = 900")
    made = record(locked)
    assert (made.data_existed, made.managed_runs) == (True, 2)
    assert status.summarise(standing.look(locked)).amended_after_data == 1


def test_a_changed_workload_is_recorded_with_what_its_baseline_lacks(locked):
    edit(locked, command='command = ["sh", "-c", "echo step 2"]')
    made = record(locked)
    assert made.lacks == ("baseline: 0 of 2 runs were measured; 2 more do not count: of another workload, [workload] was changed since",)
    assert standing.require_locked(locked).is_sound
    assert status.summarise(standing.look(locked)).steps[1].state == "open"


def test_what_is_refused(locked, tmp_path):
    with pytest.raises(errors.UsageError, match="nothing to amend"):
        record(locked)
    edit(locked, seed="seed = 8")
    for reason in ("", "TODO: ask them first", "because"):
        with pytest.raises(errors.UsageError, match="--reason"):
            record(locked, reason)
    edit(locked, who='who = "nobody"', owner="")
    with pytest.raises(errors.PlanUnfinished, match="owner") as caught:
        record(locked)
    assert caught.value.lacks
    assert not locked.amendments.exists()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with pytest.raises(errors.UsageError, match="not locked"):
        record(evaluations.begin(fresh))


def test_an_edited_or_removed_amendment_is_found(locked):
    edit(locked, at_most="at_most = 900")
    record(locked)
    edit(locked, at_most="at_most = 901")
    record(locked)
    good = locked.amendments.read_bytes()
    first, second = good.splitlines(keepends=True)

    def forged(line: bytes, **changed: object) -> bytes:
        return json.dumps(json.loads(line) | changed).encode() + b"\n"

    for content, says in (
        (second, "amendment 1 does not follow"),
        (second + first, "amendment 1 does not follow"),
        (forged(first, reason="it was always so"), "amendment 1 was edited"),
        (first + forged(second, data_existed=True), "amendment 2 was edited"),
        (forged(first, reason="it was always so") + second, "amendment 1 was edited"),
        (forged(first, data_existed=True) + second, "amendment 1 was edited"),
        (first + forged(second, changes=[]), "amendment 2 was edited"),
        (first + forged(second, new_sha256="0" * 64), "amendment 2 was edited"),
        (first + first, "amendment 2 does not follow"),
    ):
        locked.amendments.write_bytes(content)
        with pytest.raises(errors.PlanChanged, match=says):
            standing.require(locked)
        with pytest.raises(errors.PlanChanged):
            record(locked)
    locked.amendments.write_bytes(good)
    assert standing.require(locked).is_sound
    locked.amendments.write_bytes(first)
    with pytest.raises(errors.PlanChanged, match="no amendment says why"):
        standing.require(locked)
    locked.lock.unlink()
    with pytest.raises(errors.PlanChanged, match="lock is gone"):
        standing.require(locked)


def test_what_is_no_amendment_is_named(locked):
    locked.amendments.write_bytes(b'{"number": 1}\n')
    with pytest.raises(errors.InputFormat, match="line 1 is no amendment"):
        standing.look(locked)


def test_a_crash_at_every_step_records_it_whole_or_not_at_all(tmp_path):
    place = tmp_path / "evaluation"
    there = Folder(place)
    outcomes = set()

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        evaluations.begin(place)
        evaluations.measure_baseline(there)
        lock.fix(there, signed=SIGNED)
        edit(there, seed="seed = 8")

    for _ in dying.crashes(lambda: record(there), prepare):
        found = standing.look(there)
        outcomes.add(found.is_sound)
        if not found.is_sound:
            record(there)
        assert [each.number for each in standing.require_locked(there).amendments] == [1]
    assert outcomes == {True, False}


def test_an_amendment_that_tore_never_was(locked):
    edit(locked, seed="seed = 8")
    record(locked)
    whole = locked.amendments.read_bytes()
    locked.amendments.write_bytes(whole[: len(whole) // 2])
    assert not standing.look(locked).is_sound
    record(locked)
    found = standing.require_locked(locked)
    assert [each.number for each in found.amendments] == [1]
    assert status.summarise(found).runs.torn == 1


# What changed ---------------------------------------------------------------------------------------------------------

_leaf = st.one_of(st.booleans(), st.integers(-3, 3), st.text(max_size=3), st.lists(st.integers(0, 2), max_size=2))
_data = st.recursive(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), _leaf, max_size=3),
    lambda below: st.dictionaries(st.sampled_from(["a", "b", "c"]), st.one_of(_leaf, below), max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(_data, _data)
def test_no_change_is_missed_and_none_is_invented(old, new):
    changes = paper.diff(old, new)
    assert (changes == ()) == (json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True))
    assert paper.diff(new, old) == tuple(Change(each.key, each.new, each.old) for each in changes)
    assert msgspec.json.decode(msgspec.json.encode(changes), type=tuple[Change, ...]) == changes


# How far it is --------------------------------------------------------------------------------------------------------


def states(there: Folder) -> tuple[dict[str, str], str]:
    found = status.summarise(standing.look(there))
    return {step.name: step.state for step in found.steps}, found.next


def test_it_says_what_is_next_from_the_first_line_to_the_report(tmp_path):
    there = evaluations.begin(tmp_path, owner="")
    assert states(there) == ({"plan": "open", "baseline": "open", "lock": "open", "runs": "open", "report": "open"}, f"edit {there.plan}")
    edit(there)
    assert states(there)[1] == "perdure eval baseline"
    evaluations.measure_baseline(there)
    assert states(there)[1] == "perdure eval lock"
    lock.fix(there, signed=SIGNED)
    assert states(there)[1] == "perdure eval run"
    for pair in range(3):
        for arm in Arm:
            events = (Event(1.0, EventKind.FAULT_INJECTED, 10.0, {"kind": "kill"}),)
            folder.append_run(there, evaluations.run(there, pair, purpose="arms", arm=arm, events=events))
    found = status.summarise(standing.look(there))
    assert (found.runs.pairs, found.runs.managed, found.runs.unmanaged, found.runs.faults) == (3, 3, 3, 6)
    assert found.next == "perdure eval report"
    there.report.mkdir()
    (there.report / "report.html").write_text("x")
    assert set(states(there)[0].values()) == {"done"}
    edit(there, seed="seed = 8")
    assert states(there) == (
        {"plan": "done", "baseline": "done", "lock": "broken", "runs": "done", "report": "done"},
        "perdure eval amend --reason '…'",
    )


def test_a_pair_needs_both_sides_whole(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    lock.fix(there, signed=SIGNED)
    for number, changed in enumerate(({}, {"finished": False}, {"excluded": "the node's disk failed"})):
        folder.append_run(there, evaluations.run(there, number, purpose="arms"))
        folder.append_run(there, evaluations.run(there, number, purpose="arms", arm=Arm.MANAGED, **changed))
    runs = status.summarise(standing.look(there)).runs
    assert (runs.pairs, runs.unmanaged, runs.managed, runs.unfinished) == (1, 3, 1, 1)
    assert runs.excluded == ("arms-managed-2: the node's disk failed",)


def test_numbers_that_come_after_data_need_another_folder(tmp_path):
    there = evaluations.begin(tmp_path)
    folder.append_run(there, evaluations.run(there, 1, purpose="coldstart", arm=Arm.MANAGED))
    assert states(there)[1] == "perdure eval init --dir NEW"
