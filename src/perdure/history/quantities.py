"""Slurm's spellings of durations and memory as SQL and as Python. Called by `convert`, `sacct_json` and tests.

The SQL functions return an expression over another SQL expression; an unreadable value becomes NULL, never zero.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(?:i?B)?([nc]?)", re.ASCII | re.IGNORECASE)


class Memory(msgspec.Struct, frozen=True):
    """A requested amount of memory in bytes; `per` says of what. `whole_node` for Slurm's ``0``: all that a node has."""

    size_bytes: int
    per: Literal["job", "node", "cpu"]
    whole_node: bool = False


def parse_memory(text: str) -> Memory | None:
    """Read ReqMem: ``4Gc`` and ``16Gn`` before 21.08, ``250G`` since, ``0n``, ``1.50T``; units are powers of 1024, none is MiB.

    Returns None for a blank, ``?`` or anything else that is not an amount.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    number, unit, suffix = match.groups()
    size_bytes = round(float(number) * 1024 ** " KMGTPE".index(unit.upper() or "M"))
    per: Literal["job", "node", "cpu"] = {"n": "node", "c": "cpu"}.get(suffix.lower(), "job")  # type: ignore[assignment]
    return Memory(size_bytes, per, whole_node=size_bytes == 0)


def total_memory_bytes(memory: Memory, *, cpus: int, nodes: int) -> int | None:
    """Return the memory of a whole job on `cpus` CPUs and `nodes` nodes in bytes, or None when it is all that a node has."""
    if memory.whole_node:
        return None
    return memory.size_bytes * {"job": 1, "node": nodes, "cpu": cpus}[memory.per]


def duration_s(text: str) -> str:
    """SQL: seconds (DOUBLE) of ``[D-]HH:MM:SS[.mmm]`` or ``MM:SS[.mmm]``; NULL for ``INVALID``, blank and the rest."""
    clock = f"split_part({text}, '-', -1)"
    days = f"CASE WHEN contains({text}, '-') THEN try_cast(split_part({text}, '-', 1) AS DOUBLE) * 86400 ELSE 0 END"

    def part(index: int) -> str:
        return f"try_cast(split_part({clock}, ':', {index}) AS DOUBLE)"

    # HH:MM:SS below a day is a TIME, which is read five times as fast.
    return (
        f"CASE WHEN {text} = '00:00:00' THEN 0.0 WHEN strlen({text}) = 8 AND {text} < '24' THEN epoch(try_cast({text} AS TIME))"
        f" WHEN NOT contains({text}, ':') THEN NULL"
        f" WHEN split_part({clock}, ':', 3) <> '' THEN {days} + {part(1)} * 3600 + {part(2)} * 60 + {part(3)}"
        f" ELSE {days} + {part(1)} * 60 + {part(2)} END"
    )


def limit_s(raw_minutes: str | None, clock: str | None) -> str:
    """SQL: wall-time limit in seconds (DOUBLE) from TimelimitRaw, else Timelimit.

    ``UNLIMITED`` is +inf; ``Partition_Limit``, a blank and 0 are NULL: not known, never zero.
    """
    parts = []
    if raw_minutes is not None:
        parts.append(f"CASE WHEN {raw_minutes} = 'UNLIMITED' THEN 'inf'::DOUBLE ELSE nullif(try_cast({raw_minutes} AS DOUBLE), 0) * 60 END")
    if clock is not None:
        parts.append(f"CASE WHEN {clock} = 'UNLIMITED' THEN 'inf'::DOUBLE ELSE nullif({duration_s(clock)}, 0) END")
    return f"coalesce({', '.join(parts)})" if parts else "NULL::DOUBLE"
