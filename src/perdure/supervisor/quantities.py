"""Words for how a workload is kept, read: from a command line, or from a request. Called by `cli.keep` and the agent's `wishes`."""

from __future__ import annotations

from typing import Literal

from perdure import errors
from perdure.base import units
from perdure.store import life_records
from perdure.supervisor import interval


def every(text: str) -> float | Literal["auto", "never"]:
    """Read ``--every``: seconds, ``auto`` or ``never``. Raises `errors.QuantityError`."""
    match text.strip().lower():
        case "auto":
            return "auto"
        case "never":
            return "never"
    seconds = units.parse_duration(text, name="--every")
    if seconds < interval.LEAST_S:
        raise errors.QuantityError(f"--every: {text!r} is shorter than a second", hint="give auto, never, or a duration such as 10m")
    return seconds


def before_end(text: str | None) -> float | Literal["auto"] | None:
    """Read ``--before-end``: seconds or ``auto``. Raises `errors.QuantityError`."""
    if text is None or text.strip().lower() == "auto":
        return "auto" if text is not None else None
    return units.parse_duration(text, name="--before-end")


def positive(text: str, flag: str) -> float:
    """Read a duration above 0 given with `flag`, in seconds. Raises `errors.QuantityError`."""
    seconds = units.parse_duration(text, name=flag)
    if seconds <= 0:
        raise errors.QuantityError(f"{flag}: {text!r} must be above 0", hint=f"write it like {units.DURATION_EXAMPLES}")
    return seconds


def lease_ttl_s(text: str | None) -> float | None:
    """Read the setting ``lease-ttl``, in seconds; None: it is not set. Raises `errors.QuantityError`."""
    if text is None:
        return None
    seconds = positive(text, "lease-ttl")
    if seconds > life_records.UNREADABLE_TTL_S:
        raise errors.QuantityError(f"lease-ttl: {text!r} is too long", hint=f"give at most {life_records.UNREADABLE_TTL_S:g}s")
    return seconds
