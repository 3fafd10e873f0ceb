"""Quantities as people type them: durations and sizes, both ways. Called by the command line, policies and readers.

Durations are held in seconds and sizes in bytes everywhere in the code; text exists only at the edges.
"""

from __future__ import annotations

import math
import re

from perdure import errors

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}(?:\.\d+)?))?", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtpe]?)(i?)b?", re.ASCII | re.IGNORECASE)

DURATION_EXAMPLES = "90s, 2m, 7.9h, 47.7d, 1h30m or 1-02:03:04"


def parse_duration(text: str, *, name: str = "duration") -> float:
    """Read a duration such as ``90s``, ``2m``, ``7.9h``, ``47.7d``, ``1h30m`` or Slurm's ``[D-]HH:MM[:SS]``.

    Returns seconds, finite and not negative. A bare ``0`` is zero; any other number without a unit is refused, since
    Slurm would read minutes and most other tools seconds.

    Raises `errors.QuantityError`, naming the value by `name`.
    """
    cleaned = text.strip().lower()
    hint = f"write it like {DURATION_EXAMPLES}"
    if cleaned == "0":
        return 0.0
    clock = _CLOCK.fullmatch(cleaned)
    if clock:
        days, first, second, third = clock.groups()
        if float(second) >= 60 or (third is not None and float(third) >= 60):
            raise errors.QuantityError(f"{name}: cannot read {text!r} as a duration: minutes and seconds end at 59", hint=hint)
        if third is None and days is None:
            raise errors.QuantityError(
                f"{name}: {text!r} could be hours and minutes or minutes and seconds", hint=f"write HH:MM:SS, or {hint}"
            )
        seconds = float(days or 0) * 86400 + float(first) * 3600 + float(second) * 60 + float(third or 0)
        return _finite(seconds, text, name)
    if not cleaned or _PART.sub("", cleaned).strip():
        if cleaned.startswith("-"):
            raise errors.QuantityError(f"{name}: {text!r} is negative: a duration cannot be", hint=hint)
        if re.fullmatch(r"\d+(\.\d+)?", cleaned):
            raise errors.QuantityError(f"{name}: {text!r} has no unit", hint=hint)
        raise errors.QuantityError(f"{name}: cannot read {text!r} as a duration", hint=hint)
    return _finite(sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(cleaned)), text, name)


def _finite(seconds: float, text: str, name: str) -> float:
    if not math.isfinite(seconds):
        raise errors.QuantityError(f"{name}: {text!r} is not a finite duration", hint=f"write it like {DURATION_EXAMPLES}")
    return seconds


def parse_size(text: str, *, name: str = "size") -> int:
    """Read a size such as ``512``, ``64G``, ``1.5TB`` or ``80GiB`` and return bytes. Prefixes are powers of 1024, as in Slurm.

    Raises `errors.QuantityError`, naming the value by `name`.
    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise errors.QuantityError(f"{name}: cannot read {text!r} as a size", hint="write it like 512M, 80G or 1.5T")
    number, prefix, _ = match.groups()
    size_bytes = float(number) * 1024 ** " kmgtpe".index(prefix.lower() or " ")
    if not math.isfinite(size_bytes):
        raise errors.QuantityError(f"{name}: {text!r} is too large", hint="write it like 512M, 80G or 1.5T")
    return int(size_bytes)


def format_duration(seconds: float | None) -> str:
    """Format seconds for people, two units at most: ``42s``, ``7.9h`` stays ``7h54m``, ``47d17h``. None is ``-``."""
    if seconds is None:
        return "-"
    if not math.isfinite(seconds):
        return "never"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds > 0 else "0s"
    total = round(seconds)
    if total < 60:
        return f"{total}s"
    units = [("d", 86400), ("h", 3600), ("m", 60), ("s", 1)]
    for index, (unit, size) in enumerate(units):
        if total >= size:
            finer_unit, finer_size = units[index + 1]
            # Round at the finer unit first, so that 59m59.6s never prints as "59m60s".
            rounded = round(total / finer_size) * finer_size
            whole, rest = divmod(rounded, size)
            if index > 0 and rounded >= units[index - 1][1]:
                return format_duration(float(rounded))
            return f"{whole}{unit}{rest // finer_size}{finer_unit}" if rest else f"{whole}{unit}"
    raise AssertionError("a positive duration has a unit")


def format_size(size_bytes: float | None) -> str:
    """Format bytes with a binary prefix and three significant figures: ``1.46 TiB``. None is ``-``."""
    if size_bytes is None:
        return "-"
    value = float(size_bytes)
    for prefix in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or prefix == "PiB":
            return f"{value:.0f} {prefix}" if prefix == "B" or abs(value) >= 100 else f"{value:.3g} {prefix}"
        value /= 1024
    raise AssertionError("the last prefix always returns")
