"""The machine of checkpoints and restores, over long lists of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint import machine
from perdure.checkpoint.machine import Checkpoint, Event, Instruction, Restore, State

EVENTS = st.lists(st.sampled_from(Event), max_size=60)
STAGED = {State.FREEZING, State.FROZEN, State.DUMPED, State.COMMITTED, State.FETCHING, State.STAGED, State.RESTORED, State.VERIFIED}


def walk(step, now, events):
    """Feed what fits; yield each step that was taken."""
    for event in events:
        try:
            after, told = step(now, event)
        except AssertionError:
            continue
        yield now, event, after, told
        now = after


@given(EVENTS, st.booleans())
def test_a_tree_is_given_up_only_after_its_commit(events, give_up):
    committed = False
    for _before, event, after, told in walk(machine.checkpoint, Checkpoint(give_up=give_up), events):
        committed = committed or event is Event.STORE_COMMITTED
        if Instruction.KILL_TREE in told:
            assert committed
            assert give_up
        if after.state is State.GONE:
            assert committed or event is Event.TREE_ENDED
        if event is Event.BEGIN:
            committed = False


@given(EVENTS, st.booleans())
def test_each_failure_before_the_commit_lets_the_tree_run_on(events, give_up):
    for before, event, after, told in walk(machine.checkpoint, Checkpoint(give_up=give_up), events):
        if event in (Event.FAILED, Event.REFUSED):
            assert before.state is not State.COMMITTED
            assert after.state is State.RUNNING
            assert Instruction.KILL_TREE not in told
            assert (Instruction.RESUME_TREE in told) == (before.state is not State.CHECKED)


@given(EVENTS, st.booleans())
def test_what_was_staged_is_removed_once_and_not_before_it_was_stored(events, give_up):
    staged = False
    for _before, event, after, told in walk(machine.checkpoint, Checkpoint(give_up=give_up), events):
        if event is Event.ROOM:
            assert not staged
            staged = True
        if Instruction.REMOVE_STAGING in told:
            assert staged
            assert event in (Event.STORE_COMMITTED, Event.FAILED, Event.TREE_ENDED)
            staged = False
        if after.state in (State.RUNNING, State.CHECKED, State.GONE, State.COMMITTED):
            assert not staged


@given(EVENTS)
def test_running_is_told_only_of_a_restored_tree_that_was_seen_alive(events):
    seen = []
    for _before, event, after, told in walk(machine.restore, Restore(), events):
        seen.append(event)
        if Instruction.TELL_RUNNING in told or after.state is State.RUNNING:
            assert Event.SEEN_ALIVE in seen
        if after.state is State.ABSENT:
            assert Instruction.REMOVE_STAGING in told
            seen.clear()


@given(EVENTS)
def test_a_tree_that_was_restored_and_failed_is_ended(events):
    for before, _event, after, told in walk(machine.restore, Restore(), events):
        if after.state is State.ABSENT:
            assert (Instruction.KILL_TREE in told) == (before.state is State.RESTORED)


@given(EVENTS, st.booleans())
def test_the_same_events_lead_to_the_same_end(events, give_up):
    runs = [list(walk(machine.checkpoint, Checkpoint(give_up=give_up), events)) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("give_up", [False, True])
def test_the_straight_way_of_a_checkpoint(give_up):
    events = [Event.BEGIN, Event.ROOM, Event.TASKS_FROZEN, Event.DUMP_DONE, Event.STORE_COMMITTED]
    events.append(Event.TREE_ENDED if give_up else Event.SETTLED)
    steps = list(walk(machine.checkpoint, Checkpoint(give_up=give_up), events))
    assert [after.state for _, _, after, _ in steps] == [
        State.CHECKED,
        State.FREEZING,
        State.FROZEN,
        State.DUMPED,
        State.COMMITTED,
        State.GONE if give_up else State.RUNNING,
    ]
    assert [told for _, _, _, told in steps] == [
        (Instruction.MAKE_ROOM,),
        (Instruction.START_DUMP,),
        (Instruction.RECORD_FILES,),
        (Instruction.STORE_IMAGES,),
        (Instruction.KILL_TREE, Instruction.REMOVE_STAGING) if give_up else (Instruction.REMOVE_STAGING,),
        (),
    ]


def test_the_straight_way_of_a_restore():
    events = [Event.BEGIN, Event.IMAGES_STAGED, Event.CRIU_RESTORED, Event.SEEN_ALIVE, Event.SETTLED, Event.TREE_ENDED]
    assert [after.state for _, _, after, _ in walk(machine.restore, Restore(), events)] == [
        State.FETCHING,
        State.STAGED,
        State.RESTORED,
        State.VERIFIED,
        State.RUNNING,
        State.GONE,
    ]


def test_images_of_a_stopped_tree_are_stored_although_somebody_killed_it():
    dumped = Checkpoint(State.DUMPED, give_up=True)
    assert machine.checkpoint(dumped, Event.TREE_ENDED) == (dumped, ())


def test_a_tree_may_end_in_every_state_of_a_checkpoint():
    for state in (State.RUNNING, State.CHECKED, State.FREEZING, State.FROZEN, State.DUMPED, State.COMMITTED):
        after, _ = machine.checkpoint(Checkpoint(state), Event.TREE_ENDED)
        assert after.state is State.GONE


def test_an_event_that_cannot_be_is_refused():
    with pytest.raises(AssertionError, match="dump-done cannot happen to a checkpoint that is running"):
        machine.checkpoint(Checkpoint(), Event.DUMP_DONE)
    with pytest.raises(AssertionError, match="seen-alive cannot happen to a restore that is absent"):
        machine.restore(Restore(), Event.SEEN_ALIVE)
    with pytest.raises(AssertionError, match="a tree that is gone cannot end"):
        machine.checkpoint(Checkpoint(State.GONE), Event.TREE_ENDED)


def test_a_repair_removes_what_was_staged_in_exactly_the_states_that_have_it():
    assert {state for state in State if machine.repair(state)} == STAGED


def test_a_repair_ends_what_criu_had_brought_back_in_part():
    assert {state for state in State if Instruction.KILL_TREE in machine.repair(state)} == {State.STAGED, State.RESTORED, State.VERIFIED}
