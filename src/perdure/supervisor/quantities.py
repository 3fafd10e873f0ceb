"""Words for how a workload is kept, read: from a command line, or from a request. Called by `cli.keep` and the agent's `wishes`."""

from __future__ import annotations

import re
from typing import Literal

from perdure import errors
from perdure.base import settings, units
from perdure.store import life_records
from perdure.store.backends.bounded import Allowance
from perdure.supervisor import interval

LOCK_S = 30.0
"""How long work on GPUs may take to come to rest, unless something else is set."""
_LONGEST_LOCK_S = 600.0
"""Meanwhile every call of CUDA waits, and communication with others that are not saved may give up."""


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


def gpu_lock_s(value: settings.Value) -> float:
    """Read the setting ``gpu-lock-limit``, in seconds. Raises `errors.QuantityError`, which names where it was set."""
    seconds = positive(str(value.value), f"gpu-lock-limit ({value.origin})")
    if seconds > _LONGEST_LOCK_S:
        raise errors.QuantityError(
            f"gpu-lock-limit ({value.origin}): {value.value!r} is too long",
            hint=f"give at most {_LONGEST_LOCK_S:g}s: its calls of CUDA wait",
        )
    return seconds


def user_quota(text: str | None) -> Allowance | None:
    """Read the setting ``user-quota``: a size, a share such as ``50%``, or ``none``. Raises `errors.QuantityError`."""
    hint = "write it like 200GiB, 50% or none"
    if text is None or text.strip().lower() == "none":
        return None
    number = text.strip().removesuffix("%").strip()
    if number == text.strip():
        return Allowance(most_bytes=units.parse_size(text, name="user-quota"))
    if not re.fullmatch(r"[0-9]{1,3}(?:\.[0-9]{1,6})?", number) or not 0 < float(number) <= 100:
        raise errors.QuantityError(f"user-quota: {text!r} is no share between 0% and 100%", hint=hint)
    return Allowance(share=float(number) / 100)
