"""What a caller says about a step besides its key: how to find out, what to wait for, how results are written. Used by the ledger."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypedDict

from perdure import errors
from perdure.effects import keys


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    """A lookup's answer: the step happened, with this result."""

    result: Any = None


class Answer(enum.Enum):
    """A lookup's other answers."""

    NOT_DONE = "not done"
    """The step certainly did not happen, and no request of an earlier attempt can still arrive."""
    UNKNOWN = "unknown"
    """It cannot be told now."""


NOT_DONE = Answer.NOT_DONE
UNKNOWN = Answer.UNKNOWN

Finding = Done | Answer
Lookup = Callable[[str], Finding | Awaitable[Finding]]
"""Called with the key of a step in doubt; the asynchronous forms accept a coroutine function."""


class Options(TypedDict, total=False):
    """The keyword arguments of `Ledger.once` and its other forms; `How` explains each."""

    inputs: Any
    lookup: Lookup | None
    provider_idempotent: bool
    not_done: tuple[type[BaseException], ...]
    wait_s: float
    person_wait_s: float
    encode: Callable[[Any], str] | None
    decode: Callable[[str], Any] | None


@dataclasses.dataclass(frozen=True, slots=True)
class How:
    """How one step is to be done."""

    inputs: Any = None
    """What the step is made from, as far as it is the same in every run. A digest is kept; the key with other inputs is an error."""
    lookup: Lookup | None = None
    """Finds out whether a step in doubt happened: returns `Done(result)`, `NOT_DONE` or `UNKNOWN`. Asked only after the step
    has been quiet for its lease, so that a request still on its way has arrived."""
    provider_idempotent: bool = False
    """The other side deduplicates by the key: a step in doubt is run again."""
    not_done: tuple[type[BaseException], ...] = ()
    """Exceptions of the step that prove that nothing reached the outside, such as `ConnectionRefusedError`. All others but
    `errors.EffectNotDone` leave it in doubt: a time-out says nothing about what the other side did."""
    wait_s: float = 3600.0
    """How long to wait for another process that is at it."""
    person_wait_s: float = 0.0
    """How long to wait for a person to resolve a step in doubt; 0: raise at once."""
    encode: Callable[[Any], str] | None = None
    """Writes the result as text; None: JSON."""
    decode: Callable[[str], Any] | None = None
    """Reads it back; None: JSON."""

    def digest(self) -> str | None:
        """Return the digest of the inputs; None when none were given. Raises `errors.UsageError`."""
        return None if self.inputs is None else keys.digest(self.inputs)

    def write(self, result: Any, max_bytes: int) -> tuple[str | None, str]:
        """Return the text to keep, or None and why it cannot be kept."""
        try:
            text = (self.encode or _to_json)(result)
        except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises, the step happened
            return None, f"not to be written as {'text' if self.encode else 'JSON'}: {type(error).__name__}"
        flaw = unfit(text, max_bytes)
        return (None, flaw) if flaw else (text, "")

    def read(self, text: str) -> Any:
        """Return the result that `text` was written from."""
        return (self.decode or json.loads)(text)


def unfit(text: object, max_bytes: int) -> str:
    """Return why `text` cannot be kept as a result; nothing when it can."""
    if not isinstance(text, str) or "\x00" in text:
        return "encode did not return text without zero bytes"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "encode returned text with a lone surrogate"
    return f"too large: {size} bytes of at most {max_bytes}" if size > max_bytes else ""


def checked(options: Options) -> How:
    """Return `options` as a record. Raises `errors.UsageError` for values that make no sense."""
    how = How(**options)
    for name in ("wait_s", "person_wait_s"):
        if not getattr(how, name) >= 0:
            raise errors.UsageError(f"{name} is {getattr(how, name)}", hint="give seconds, 0 or more")
    return how


def _to_json(result: Any) -> str:
    # Escapes keep control characters and lone surrogates out of the databases.
    return json.dumps(result, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
