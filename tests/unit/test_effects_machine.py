"""The machine of one step alone: every state against every caller, and long random histories of holders that die, stall and return."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.effects import machine
from perdure.effects.rows import Caller, Claim, Doubt, Outcome, Replay, Row, Sight, State, Take, Wait


def caller(nonce: str = "n", **changes) -> Caller:
    return dataclasses.replace(Caller(nonce, None, None, None, "{}", 30.0), **changes)


def row(state: State, **changes) -> Row:
    plain = Row("k", state, None, None, "", 1, "old", None, None, "{}", 30.0, 1, 0.0, 0.0, 0.0, 0.0, "")
    return dataclasses.replace(plain, **changes)


SILENT, SEEN, ALIVE = Sight(None, 31.0), Sight(None, 1.0), Sight(True, 99.0)
PLAIN, LOOKS, REPEATS = caller(), caller(can_look=True), caller(provider_idempotent=True)


@pytest.mark.parametrize(
    ("found", "who", "sight", "decision"),
    [
        (None, PLAIN, SEEN, Take),
        (row(State.NOT_DONE), PLAIN, SEEN, Take),
        (row(State.DONE), PLAIN, SEEN, Replay),
        (row(State.RUNNING), REPEATS, ALIVE, Wait),
        (row(State.RUNNING), REPEATS, SEEN, Wait),
        (row(State.RUNNING), PLAIN, SILENT, Doubt),
        (row(State.RUNNING), LOOKS, SILENT, Take),
        (row(State.RUNNING), REPEATS, SILENT, Take),
        (row(State.IN_DOUBT), PLAIN, SEEN, Doubt),
        (row(State.IN_DOUBT), LOOKS, SEEN, Wait),
        (row(State.IN_DOUBT), LOOKS, SILENT, Take),
        (row(State.IN_DOUBT), REPEATS, SEEN, Take),
        # The longer of the two leases counts: neither side may be surprised.
        (row(State.RUNNING, lease_s=60.0), REPEATS, SILENT, Wait),
        (row(State.RUNNING, lease_s=1.0), REPEATS, Sight(None, 29.0), Wait),
    ],
)
def test_what_a_caller_does(found, who, sight, decision):
    assert isinstance(machine.decide(found, who, sight), decision)


def test_a_claim_whose_answer_was_lost_is_ours():
    decision = machine.decide(row(State.RUNNING, nonce="n", attempt=4), PLAIN, ALIVE)
    assert decision == Take(Claim("k", "n", 4, None, is_doubtful=False, must_look=False))


@pytest.mark.parametrize("state", State)
def test_other_inputs_are_refused_in_every_state_and_none_given_are_not_compared(state):
    with pytest.raises(errors.EffectChanged):
        machine.decide(row(state, inputs="a"), caller(inputs="b"), SILENT)
    machine.decide(row(state, inputs="a"), PLAIN, SILENT)
    machine.decide(row(state, inputs="a"), caller(inputs="a"), SILENT)


def test_a_person_decides_only_what_is_in_doubt():
    done = Outcome(State.DONE, "person:x", "1")
    for found, sight in ((row(State.RUNNING), ALIVE), (row(State.RUNNING), SEEN)):
        with pytest.raises(errors.EffectBusy):
            machine.resolved(found, done, sight, nonce="p", now_s=1.0)
    with pytest.raises(errors.UsageError):
        machine.resolved(row(State.DONE, result="1"), done, SILENT, nonce="p", now_s=1.0)
    late = machine.resolved(row(State.RUNNING), done, SILENT, nonce="p", now_s=1.0)
    with pytest.raises(errors.EffectLost):
        machine.settled(late, Claim("k", "old", 1, None, is_doubtful=False, must_look=False), done, holder="{}", boot_s=1, now_s=1)


def test_what_people_see():
    assert machine.appearance(row(State.RUNNING), SEEN) is State.RUNNING
    assert machine.appearance(row(State.RUNNING), ALIVE) is State.RUNNING
    assert machine.appearance(row(State.RUNNING), SILENT) is State.IN_DOUBT
    assert machine.appearance(row(State.RUNNING), Sight(False, 0.0)) is State.IN_DOUBT
    assert machine.appearance(row(State.DONE), SILENT) is State.DONE


@pytest.mark.parametrize(("highest", "epoch", "is_stale"), [(None, 0, False), (3, 3, False), (3, 4, False), (3, 2, True)])
def test_lives(highest, epoch, is_stale):
    if is_stale:
        with pytest.raises(errors.StaleLife):
            machine.admit(highest, "w", epoch)
    else:
        machine.admit(highest, "w", epoch)


@dataclasses.dataclass
class World:
    """The outside, and holders that act, die or stall; the holder's own steps are what a process does between two transactions."""

    dedupes: bool
    happened: int = 0
    row: Row | None = None
    claims: list[Claim] = dataclasses.field(default_factory=list)
    acted: set[str] = dataclasses.field(default_factory=set)

    def act(self) -> None:
        self.happened = 1 if self.dedupes else self.happened + 1


EVENTS = st.lists(st.tuples(st.sampled_from(["arrive", "act", "done", "refuse", "raise", "die"]), st.integers(0, 3)), max_size=60)


@settings(max_examples=200)
@given(st.sampled_from(["lookup", "idempotent", "neither"]), EVENTS)
def test_no_history_of_deaths_does_a_step_twice_or_forgets_that_it_may_have_happened(mode, events):
    """Holders die at any point, are replaced only when dead, and never twice at once. The machine decides; this plays the rest."""
    world = World(dedupes=mode == "idempotent")
    alive: Claim | None = None
    for number, (event, _) in enumerate(events):
        now_s = float(number)
        if event == "arrive":
            who = caller(f"n{number}", can_look=mode == "lookup", provider_idempotent=mode == "idempotent")
            decision = machine.decide(world.row, who, ALIVE if alive else SILENT)
            if not isinstance(decision, Take):
                assert alive or isinstance(decision, Replay | Doubt)
                continue
            assert alive is None, "two at once"
            claim = dataclasses.replace(decision.claim, key="k")
            world.row = machine.claimed("k", world.row, who, claim, boot_s=now_s, now_s=now_s)
            if claim.must_look:
                if world.happened:
                    found = Outcome(State.DONE, "lookup", "1")
                    world.row = machine.settled(world.row, claim, found, holder="{}", boot_s=now_s, now_s=now_s)
                    continue
                world.row, claim = machine.cleared(world.row, claim)
            alive = claim
            continue
        if alive is None:
            continue
        if event == "act" and alive.nonce not in world.acted:
            world.act()
            world.acted.add(alive.nonce)
            continue
        outcomes = {
            "done": Outcome(State.DONE, "step", "1") if alive.nonce in world.acted else None,
            "refuse": Outcome(State.NOT_DONE, "step") if alive.nonce not in world.acted else None,
            "raise": Outcome(State.IN_DOUBT, "step", note="raised"),
        }
        if event == "die":
            alive = None
        elif outcome := outcomes.get(event):
            world.row = machine.settled(world.row, alive, outcome, holder="{}", boot_s=now_s, now_s=now_s)
            alive = None
    assert world.happened <= 1
    state = world.row.state if world.row else None
    if world.happened and not alive:
        assert state in (State.DONE, State.IN_DOUBT, State.RUNNING), "forgotten"
    if state is State.DONE:
        assert world.happened == 1
    if state is State.NOT_DONE:
        assert world.happened == 0
