"""Do outside things once: an idempotency ledger and fencing for jobs that can run twice.

A retry runs a step again; a resume brings back memory, not the world. A job wraps what reaches outside::

    from perdure.effects import Ledger

    ledger = Ledger("effects.db")
    receipt = ledger.once("charge-4711", lambda: charge(order), lookup=find_charge)

The names here are the public ones. This room imports only `perdure.base` and `perdure.errors`, and no library until it is used.
"""

from __future__ import annotations

from perdure.effects.effect import Effect, current
from perdure.effects.epoch import Life
from perdure.effects.how import NOT_DONE, UNKNOWN, Done, How
from perdure.effects.http import attach, headers, sign
from perdure.effects.keys import canonical, derive_key
from perdure.effects.ledger import Ledger
from perdure.effects.outbox import Message, Outbox
from perdure.effects.rows import Row, State

__all__ = [
    "NOT_DONE",
    "UNKNOWN",
    "Done",
    "Effect",
    "How",
    "Ledger",
    "Life",
    "Message",
    "Outbox",
    "Row",
    "State",
    "attach",
    "canonical",
    "current",
    "derive_key",
    "headers",
    "sign",
]
