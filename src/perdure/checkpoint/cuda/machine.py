"""The order of steps on a group of CUDA processes, as a state machine without I/O: answers in, the next question out. Driven by `session`.

To suspend::

    look ──▶ lock all ──▶ checkpoint all ──▶ suspended
      │         │               │
      ▼         └── a problem ──┴──▶ to run, as below
    untouched

To run::

    look ──▶ restore all ──▶ unlock all ──▶ look ──▶ running
     ▲          │               │            │
     └──────────┴── a problem, at most `TRIES` times ──▶ lost

What holds of every list of answers: it comes to an end; no process is restored or unlocked twice; none is unlocked before all are
restored; *suspended* and *running* are said only of states that the driver told; and whoever is neither, after anything was done to it, is
*lost*: then the tree has to be ended, so that nothing stays locked for good. Processes are named by PID.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from perdure.checkpoint.cuda.contract import Operation, Problem, State, Trouble

TRIES = 5
"""Rounds in which a group does not come closer to running, until it is given up: a driver that refuses so often has a reason to."""

ATTEMPTS = 3
"""How often suspending is begun again after a trouble that may pass."""

_PAUSES_S = (0.2, 0.5, 1.0, 2.0)
_PASSING = frozenset({Trouble.TIMED_OUT, Trouble.SYSTEM, Trouble.NO_MEMORY, Trouble.HUNG, Trouble.OTHER})


class Phase(enum.StrEnum):
    """Where a group is."""

    SUSPENDING = "suspending"
    RESUMING = "resuming"
    SUSPENDED = "suspended"
    """Every process is checkpointed: none holds a device."""
    RUNNING = "running"
    """Every process that is still there runs."""
    UNTOUCHED = "untouched"
    """The driver does not tell how the processes are, and nothing was done to them."""
    LOST = "lost"
    """What is left cannot be made to run, or a process ended while it could not act."""


class Member(msgspec.Struct, frozen=True):
    """A process of the group."""

    pid: int
    state: State | None = None
    """As the driver told last; None: not known."""
    is_sure: bool = False
    """It is known to use CUDA: the driver has told a state of it, now or when it was saved."""
    is_in_hands: bool = False
    """Something was done to it, and it has not been seen to run since."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """All CUDA processes of a tree that are still there."""

    phase: Phase
    members: tuple[Member, ...]
    asked: Operation = Operation.STATE
    is_touched: bool = False
    """Something was done to it since it was last known to run."""
    tries: int = 0
    """Rounds that did not help."""
    problem: Problem | None = None
    """What prevented that it was suspended, or made to run."""
    culprit: int | None = None
    """PID of the process that the problem is about."""


class Ask(msgspec.Struct, frozen=True):
    """What the driver is asked next: the same of all `pids`, at the same time."""

    operation: Operation
    pids: tuple[int, ...]
    pause_s: float = 0.0
    """To be waited before."""


class Told(msgspec.Struct, frozen=True):
    """What the driver answered about one process."""

    pid: int
    problem: Problem | None = None
    state: State | None = None


Next = tuple[Group, Ask | None]


def suspend(pids: Iterable[int]) -> Next:
    """Begin to suspend the processes `pids`, which have CUDA loaded."""
    return _look(Group(phase=Phase.SUSPENDING, members=tuple(Member(pid) for pid in pids)))


def resume(group: Group, problem: Problem | None = None, culprit: int | None = None) -> Next:
    """Begin to make a group run, whatever it was doing; `problem` is why, unless all is well."""
    kept = group.problem or problem, group.culprit if group.problem else culprit
    return _look(msgspec.structs.replace(group, phase=Phase.RESUMING, tries=0, problem=kept[0], culprit=kept[1]))


def restored(pids: Iterable[int]) -> Group:
    """Return the group of processes that were brought back from images, where they had been suspended."""
    return Group(phase=Phase.SUSPENDED, members=tuple(Member(pid, State.CHECKPOINTED, is_sure=True, is_in_hands=True) for pid in pids))


def found(pids: Iterable[int]) -> Next:
    """Begin to make run what somebody else left behind in states that are not known."""
    return _look(Group(phase=Phase.RESUMING, members=tuple(Member(pid) for pid in pids)))


def step(group: Group, answers: Iterable[Told]) -> Next:
    """Return the group after the driver answered all of what was asked, and what to ask next; None: the group has come to rest."""
    told = {answer.pid: answer for answer in answers}
    if {member.pid for member in group.members} and not told:
        raise AssertionError("something was asked, and nothing answered")
    ended = tuple(answer.pid for answer in told.values() if answer.problem is not None and answer.problem.trouble is Trouble.GONE)
    before = {member.pid: member for member in group.members}
    members = tuple(_after(member, told.get(member.pid), group.asked) for member in group.members if member.pid not in ended)
    members = tuple(member for member in members if not _is_without(member, told.get(member.pid), group.asked))
    now = msgspec.structs.replace(group, members=members)
    # One that ends while it runs, and nothing is done to it, does so by itself. Otherwise nobody knows whose doing it was.
    broken = [pid for pid in ended if before[pid].is_in_hands or (before[pid].is_sure and group.asked is not Operation.STATE)]
    if broken:
        return _lost(now, told[broken[0]].problem, broken[0])
    failed = next((answer for answer in told.values() if answer.problem and answer.pid in {member.pid for member in members}), None)
    if group.phase is Phase.SUSPENDING:
        return _suspending(now, failed)
    return _resuming(now, failed)


def may_try_again(problem: Problem, attempts: int) -> bool:
    """Tell whether suspending a group that runs again is worth another attempt, after `attempts` of them."""
    return problem.trouble in _PASSING and attempts < ATTEMPTS


def _after(member: Member, told: Told | None, asked: Operation) -> Member:
    if told is None:
        return member
    is_seen_to_run = told.state is State.RUNNING and (asked is Operation.STATE or (asked is Operation.UNLOCK and told.problem is None))
    is_acted_upon = asked is not Operation.STATE or told.state not in (State.RUNNING, None)
    is_in_hands = not is_seen_to_run and (member.is_in_hands or is_acted_upon)
    return Member(member.pid, told.state, is_sure=member.is_sure or told.state is not None, is_in_hands=is_in_hands)


def _is_without(member: Member, told: Told | None, asked: Operation) -> bool:
    """Tell whether a process only loaded CUDA, or was forked from one that uses it: the driver knows no state of it."""
    is_refused = told is not None and told.problem is not None and told.problem.trouble is Trouble.INVALID
    return is_refused and asked is Operation.STATE and not member.is_sure


def _suspending(group: Group, failed: Told | None) -> Next:
    states = {member.state for member in group.members}
    if failed is None and None in states and group.asked is not Operation.STATE and group.tries < TRIES:
        return _look(msgspec.structs.replace(group, tries=group.tries + 1))  # it was done, and nobody said how they are now
    failed = failed or _oddity(group)
    if failed is not None and not group.is_touched and states <= {State.RUNNING, None}:
        return msgspec.structs.replace(group, phase=Phase.UNTOUCHED, problem=failed.problem, culprit=failed.pid), None
    if failed is not None:
        return resume(group, failed.problem, failed.pid)
    if State.RUNNING in states:
        return _ask(group, Operation.LOCK, State.RUNNING)
    if State.LOCKED in states:
        return _ask(group, Operation.CHECKPOINT, State.LOCKED)
    return msgspec.structs.replace(group, phase=Phase.SUSPENDED), None


_NOT_AFTER = {Operation.LOCK: {State.RUNNING}, Operation.CHECKPOINT: {State.RUNNING, State.LOCKED}}
_ON_THE_WAY = {State.RUNNING, State.LOCKED, State.CHECKPOINTED}


def _oddity(group: Group) -> Told | None:
    """Return which process is in a state that it should not be in by now, if one is."""
    for member in group.members:
        if member.state not in _ON_THE_WAY or member.state in _NOT_AFTER.get(group.asked, ()):
            what = f"after {group.asked} the driver says of process {member.pid} that it is {member.state or 'in a state it does not tell'}"
            return Told(member.pid, Problem(trouble=Trouble.WRONG_STATE, message=what))
    return None


def _resuming(group: Group, failed: Told | None) -> Next:
    states = {member.state for member in group.members}
    broken = next((member.pid for member in group.members if member.state is State.FAILED), None)
    if broken is not None:
        what = f"the driver has lost process {broken}: its state is failed"
        return _lost(group, failed.problem if failed else Problem(trouble=Trouble.WRONG_STATE, message=what), broken)
    is_stuck = bool(states & {None, State.CHECKPOINTING, State.RESTORING})
    if failed is not None or is_stuck or not _came_closer(group):
        return _again(group, failed)
    if State.CHECKPOINTED in states:
        return _ask(group, Operation.RESTORE, State.CHECKPOINTED)
    if State.LOCKED in states:
        return _ask(group, Operation.UNLOCK, State.LOCKED)
    if group.asked is not Operation.STATE:
        return _look(group)
    return msgspec.structs.replace(group, phase=Phase.RUNNING), None


def _came_closer(group: Group) -> bool:
    """Tell whether what was asked last shows in the states: a driver that says yes and does nothing would be asked for ever."""
    states = {member.state for member in group.members}
    match group.asked:
        case Operation.RESTORE:
            return State.CHECKPOINTED not in states
        case Operation.UNLOCK:
            return not states & {State.LOCKED, State.CHECKPOINTED}
    return True


def _again(group: Group, failed: Told | None) -> Next:
    """Look once more after a round that did not help; after too many, the group is lost."""
    tries = group.tries + 1
    if tries >= TRIES:
        stuck = next((member for member in group.members if member.state is not State.RUNNING), None)
        pid = failed.pid if failed else stuck.pid if stuck else None
        state = stuck.state if stuck else None
        what = Problem(trouble=Trouble.WRONG_STATE, message=f"the driver leaves process {pid} {state or 'in a state it does not tell'}")
        return _lost(group, failed.problem if failed else what, pid)
    return _look(msgspec.structs.replace(group, tries=tries), _PAUSES_S[min(tries, len(_PAUSES_S)) - 1])


def _look(group: Group, pause_s: float = 0.0) -> Next:
    now = msgspec.structs.replace(group, asked=Operation.STATE)
    if not group.members:
        rest = Phase.SUSPENDED if group.phase is Phase.SUSPENDING else Phase.RUNNING
        return msgspec.structs.replace(now, phase=rest), None
    return now, Ask(Operation.STATE, tuple(member.pid for member in group.members), pause_s)


def _ask(group: Group, operation: Operation, state: State) -> Next:
    pids = tuple(member.pid for member in group.members if member.state is state)
    return msgspec.structs.replace(group, asked=operation, is_touched=True), Ask(operation, pids)


def _lost(group: Group, problem: Problem | None, culprit: int | None) -> Next:
    return msgspec.structs.replace(group, phase=Phase.LOST, problem=problem or group.problem, culprit=culprit), None
