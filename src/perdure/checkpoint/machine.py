"""The order of a checkpoint and of a restore, as state machines without I/O: events in, instructions out. Driven by the supervisor.

A checkpoint::

    running ──begin──▶ checked ──room──▶ freezing ──tasks-frozen──▶ frozen ──dump-done──▶ dumped ──store-committed──▶ committed
       ▲                  │                 │                         │                     │                        │       │
       ├─refused, failed──┴─────failed──────┴─────────failed──────────┴───────failed────────┘                        │       │
       └─────────────────────────────────────────────settled─────────────────────────────────────────────────────────┘       │
                                                                                               gone ◀─────tree-ended─────────┘

A restore::

    absent ──begin──▶ fetching ──images-staged──▶ staged ──criu-restored──▶ restored ──seen-alive──▶ verified ──settled──▶ running
       ▲                 │                          │                          │
       └─failed, refused─┴──────failed, refused─────┴───failed, tree-ended─────┘

What holds of every list of events: the tree is given up only after the commit; each failure before it lets the tree run on; whatever was
staged is removed; and an event that does not fit the state is a fault of the caller, never passed over. The tree may end in every state.
"""

from __future__ import annotations

import enum

import msgspec


class State(enum.StrEnum):
    """Where a checkpoint or a restore stands."""

    RUNNING = "running"
    """The workload runs, and nothing is going on. The begin of a checkpoint and the end of both."""
    CHECKED = "checked"
    """A checkpoint was asked for and nothing forbids it; room for its images is looked for."""
    FREEZING = "freezing"
    """CRIU was started; tasks may stand still already."""
    FROZEN = "frozen"
    """All tasks stand still; what belongs to this instant is recorded."""
    DUMPED = "dumped"
    """The images are whole. The tree runs again, or stands still if it is to be given up; the images are being stored."""
    COMMITTED = "committed"
    """The manifest exists: the checkpoint does. What is left is to clean up, and to end the tree where that was asked."""
    GONE = "gone"
    """The tree was given up after its checkpoint was committed, or ended by itself."""
    ABSENT = "absent"
    """Nothing of the workload runs here. The begin of a restore, and where a failed one ends."""
    FETCHING = "fetching"
    """The checkpoint is read from the store into a staging folder."""
    STAGED = "staged"
    """The checkpoint's files are here. Output files are brought back to its instant, and CRIU runs: parts of the tree may be there."""
    RESTORED = "restored"
    """CRIU says that the tree runs. Nobody else says so yet."""
    VERIFIED = "verified"
    """The tree was seen to live, and the user's probe passed. What is left is to clean up."""


class Event(enum.StrEnum):
    """What happened."""

    BEGIN = "begin"
    REFUSED = "refused"
    """A check forbids it, or there is no room."""
    ROOM = "room"
    """A staging folder was made."""
    TASKS_FROZEN = "tasks-frozen"
    DUMP_DONE = "dump-done"
    STORE_COMMITTED = "store-committed"
    IMAGES_STAGED = "images-staged"
    CRIU_RESTORED = "criu-restored"
    SEEN_ALIVE = "seen-alive"
    SETTLED = "settled"
    """What a state left to be cleaned up is clean."""
    FAILED = "failed"
    """What was going on has failed or was cancelled."""
    TREE_ENDED = "tree-ended"
    """The workload ended, by itself or by somebody else's hand."""


class Instruction(enum.StrEnum):
    """What the caller does next, in the order given."""

    MAKE_ROOM = "make-room"
    START_DUMP = "start-dump"
    RECORD_FILES = "record-files"
    """Drain the streams, record output files, copy what goes along; then let CRIU go on."""
    STORE_IMAGES = "store-images"
    CANCEL_DUMP = "cancel-dump"
    CANCEL_STORE = "cancel-store"
    RESUME_TREE = "resume-tree"
    """See to it that every task runs."""
    KILL_TREE = "kill-tree"
    REMOVE_STAGING = "remove-staging"
    FETCH_IMAGES = "fetch-images"
    START_RESTORE = "start-restore"
    LOOK_ALIVE = "look-alive"
    TELL_RUNNING = "tell-running"


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint at one instant. `give_up`: the tree is ended after the commit."""

    state: State = State.RUNNING
    give_up: bool = False


class Restore(msgspec.Struct, frozen=True):
    """A restore at one instant."""

    state: State = State.ABSENT


_CLEAN_UP = (Instruction.RESUME_TREE, Instruction.REMOVE_STAGING)

_CHECKPOINT: dict[tuple[State, Event], tuple[State, tuple[Instruction, ...]]] = {
    (State.RUNNING, Event.BEGIN): (State.CHECKED, (Instruction.MAKE_ROOM,)),
    (State.CHECKED, Event.ROOM): (State.FREEZING, (Instruction.START_DUMP,)),
    (State.CHECKED, Event.REFUSED): (State.RUNNING, ()),
    (State.CHECKED, Event.FAILED): (State.RUNNING, ()),
    (State.FREEZING, Event.TASKS_FROZEN): (State.FROZEN, (Instruction.RECORD_FILES,)),
    (State.FREEZING, Event.FAILED): (State.RUNNING, _CLEAN_UP),
    (State.FROZEN, Event.DUMP_DONE): (State.DUMPED, (Instruction.STORE_IMAGES,)),
    (State.FROZEN, Event.FAILED): (State.RUNNING, _CLEAN_UP),
    (State.DUMPED, Event.STORE_COMMITTED): (State.COMMITTED, (Instruction.REMOVE_STAGING,)),
    (State.DUMPED, Event.FAILED): (State.RUNNING, _CLEAN_UP),
    (State.COMMITTED, Event.SETTLED): (State.RUNNING, ()),
}

_RESTORE: dict[tuple[State, Event], tuple[State, tuple[Instruction, ...]]] = {
    (State.ABSENT, Event.BEGIN): (State.FETCHING, (Instruction.FETCH_IMAGES,)),
    (State.FETCHING, Event.IMAGES_STAGED): (State.STAGED, (Instruction.START_RESTORE,)),
    (State.FETCHING, Event.REFUSED): (State.ABSENT, (Instruction.REMOVE_STAGING,)),
    (State.FETCHING, Event.FAILED): (State.ABSENT, (Instruction.REMOVE_STAGING,)),
    (State.STAGED, Event.CRIU_RESTORED): (State.RESTORED, (Instruction.LOOK_ALIVE,)),
    (State.STAGED, Event.REFUSED): (State.ABSENT, (Instruction.REMOVE_STAGING,)),
    (State.STAGED, Event.FAILED): (State.ABSENT, (Instruction.REMOVE_STAGING,)),
    (State.RESTORED, Event.SEEN_ALIVE): (State.VERIFIED, (Instruction.TELL_RUNNING, Instruction.REMOVE_STAGING)),
    (State.RESTORED, Event.FAILED): (State.ABSENT, (Instruction.KILL_TREE, Instruction.REMOVE_STAGING)),
    (State.RESTORED, Event.TREE_ENDED): (State.ABSENT, (Instruction.KILL_TREE, Instruction.REMOVE_STAGING)),
    (State.VERIFIED, Event.SETTLED): (State.RUNNING, ()),
    (State.VERIFIED, Event.TREE_ENDED): (State.GONE, ()),
    (State.RUNNING, Event.TREE_ENDED): (State.GONE, ()),
}


def checkpoint(now: Checkpoint, event: Event) -> tuple[Checkpoint, tuple[Instruction, ...]]:
    """Return the state after `event`, and what to do. Raises `AssertionError` for an event that cannot happen in the state."""
    if event is Event.TREE_ENDED:
        return _ended(now)
    if now.give_up and (now.state, event) == (State.DUMPED, Event.STORE_COMMITTED):
        return _to(now, State.COMMITTED), (Instruction.KILL_TREE, Instruction.REMOVE_STAGING)
    found = _CHECKPOINT.get((now.state, event))
    if found is None or (now.give_up and event is Event.SETTLED):
        raise AssertionError(f"{event} cannot happen to a checkpoint that is {now.state}")
    state, told = found
    return _to(now, state), told


def _ended(now: Checkpoint) -> tuple[Checkpoint, tuple[Instruction, ...]]:
    """The tree has ended: what is going on is of no use any more, unless the images are whole and the tree was to be given up."""
    match now.state:
        case State.RUNNING | State.CHECKED | State.COMMITTED:
            return _to(now, State.GONE), ()
        case State.FREEZING | State.FROZEN:
            return _to(now, State.GONE), (Instruction.CANCEL_DUMP, Instruction.REMOVE_STAGING)
        case State.DUMPED if now.give_up:
            # Killed from outside while it stood still: what was dumped is its last state, and worth storing more than ever.
            return now, ()
        case State.DUMPED:
            return _to(now, State.GONE), (Instruction.CANCEL_STORE, Instruction.REMOVE_STAGING)
    raise AssertionError(f"a tree that is {now.state} cannot end")


def _to(now: Checkpoint, state: State) -> Checkpoint:
    return Checkpoint(state, now.give_up)


def restore(now: Restore, event: Event) -> tuple[Restore, tuple[Instruction, ...]]:
    """Return the state after `event`, and what to do. Raises `AssertionError` for an event that cannot happen in the state."""
    found = _RESTORE.get((now.state, event))
    if found is None:
        raise AssertionError(f"{event} cannot happen to a restore that is {now.state}")
    state, told = found
    return Restore(state), told


def repair(left: State) -> tuple[Instruction, ...]:
    """Return what the next supervisor does when the one before died with a checkpoint or restore in state `left`.

    A tree that had been handed over ended with its supervisor, so that nothing has to be resumed; whether a commit that was under way made
    a manifest, the store shows. What CRIU had brought back in part is nobody's child yet, and has to be ended. The staging folder remains,
    also where its removal had just been told.
    """
    if left in (State.RUNNING, State.CHECKED, State.GONE, State.ABSENT):
        return ()
    half_there = left in (State.STAGED, State.RESTORED, State.VERIFIED)
    return (Instruction.KILL_TREE, Instruction.REMOVE_STAGING) if half_there else (Instruction.REMOVE_STAGING,)
