"""The records of one step: what a ledger holds of it, who asks for it, what the machine answers. Read by `machine` and the backends."""

from __future__ import annotations

import dataclasses
import enum


class State(enum.StrEnum):
    """What is known of a step; see the table above."""

    RUNNING = "running"
    IN_DOUBT = "in_doubt"
    NOT_DONE = "not_done"
    DONE = "done"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What a ledger holds of one step. The order of the fields is the order of the columns."""

    key: str
    state: State
    inputs: str | None
    """SHA-256 of the canonical inputs, hexadecimal; None: the caller gave none."""
    result: str | None
    """The encoded result; None unless done, and where it was not kept."""
    note: str
    """Why a done step has no result, or what left it in doubt; empty otherwise."""
    attempt: int
    """Counts claims of this key from 1."""
    nonce: str
    """Names the claim of the present or last holder."""
    workload: str | None
    epoch: int | None
    holder: str
    """`identity.Process` as JSON."""
    lease_s: float
    beat: int
    """Grows with every sign of life of the holder."""
    beat_boot_s: float
    """When that was, by the holder's clock since boot."""
    beat_at_s: float
    """The same in seconds since 1970 by the ledger's clock; shown to people, decides nothing."""
    begun_at_s: float
    changed_at_s: float
    settled_by: str
    """Who said done or not done: ``step``, ``lookup`` or ``person:NAME``; empty before."""


COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A holder's right to act, and what it must show to record anything."""

    key: str
    nonce: str
    attempt: int
    epoch: int | None
    is_doubtful: bool
    """An earlier attempt may have happened."""
    must_look: bool
    """The caller's `lookup` is to be asked before anything is done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what they offer for a step in doubt."""

    nonce: str
    inputs: str | None
    workload: str | None
    epoch: int | None
    holder: str
    lease_s: float
    can_look: bool = False
    provider_idempotent: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What the caller sees of the row's holder from where it is."""

    alive: bool | None
    """None: cannot be told from here."""
    quiet_s: float
    """For how long there has certainly been no sign of life, by a clock that does not jump."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replay:
    """Done before: give the recorded result."""

    row: Row


@dataclasses.dataclass(frozen=True, slots=True)
class Take:
    """The caller becomes the holder."""

    claim: Claim


@dataclasses.dataclass(frozen=True, slots=True)
class Wait:
    """Somebody is at it, or was a moment ago: look again."""

    at_most_s: float
    """There is nothing new to see for this long unless the holder records something."""


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """It may have happened, and the caller offers no way to tell."""

    row: Row


Decision = Replay | Take | Wait | Doubt


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended: the next state, with the result or the reason."""

    state: State
    settled_by: str = ""
    result: str | None = None
    note: str = ""
