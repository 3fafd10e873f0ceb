"""What CRIU measured of itself, from its statistics image. Called by `dump` and `restore`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint.images import container, wire

_DUMP = "stats-dump"
_DUMP_ENTRY = 1
_FREEZING, _FROZEN, _MEMORY, _WRITING = 1, 2, 3, 4


class DumpStatistics(msgspec.Struct, frozen=True):
    """Durations of a dump."""

    freezing_s: float
    """From the first task that was stopped to the last."""
    frozen_s: float
    """From the last task that was stopped until they run again."""
    memory_s: float
    """Reading the pages, within `frozen_s`."""
    writing_s: float


def of_dump(work: Path) -> DumpStatistics:
    """Read the statistics of the dump whose log is in the folder `work`. Raises `errors.InputMissing` and `errors.InputFormat`."""
    image = container.read(work / _DUMP, container.STATS)
    if len(image.entries) != 1:
        raise errors.InputFormat(f"CRIU's statistics have {len(image.entries)} entries in place of one")
    told = wire.parse(wire.content(wire.parse(image.entries[0]), _DUMP_ENTRY) or b"")
    freezing, frozen, memory, writing = (wire.number(told, field) / 1e6 for field in (_FREEZING, _FROZEN, _MEMORY, _WRITING))
    return DumpStatistics(freezing, frozen, memory, writing)
