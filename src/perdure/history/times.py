"""Times as sacct prints them, to UTC. Called by `convert`, which builds SQL from what is here.

sacct prints local times without an offset. `--tz` names their zone; the rules come from Python's zoneinfo, so that the
result does not depend on the database's own copy of them. A time that occurs twice (autumn) is read as the first one, a time
that never was (spring) by the offset before the change, as PEP 495 has it with fold=0; `doubtful` counts both.
"""

from __future__ import annotations

import datetime
import functools
import zoneinfo

import msgspec

from perdure import errors

_FIRST, _LAST = 1990, 2045


class Change(msgspec.Struct, frozen=True):
    """A change of a zone's offset: wall-clock times in [`low`, `high`) occur twice or never; from `high` on `offset_s` holds."""

    low: datetime.datetime
    high: datetime.datetime
    offset_s: int


class Zone(msgspec.Struct, frozen=True):
    """A time zone as a list of changes in order of time; `first_offset_s` holds before them. Offsets are seconds east of UTC."""

    name: str
    first_offset_s: int
    changes: tuple[Change, ...]


@functools.lru_cache(maxsize=8)
def load_zone(name: str) -> Zone:
    """Look up an IANA zone such as ``Europe/Berlin``. Raises `errors.SettingError` for an unknown name."""
    try:
        rules = zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise errors.SettingError(
            f"tz: no time zone called {name!r}", hint="write an IANA name such as Europe/Berlin, America/Denver or UTC"
        ) from error

    if name == "UTC":
        return Zone(name, 0, ())

    def offset_s(hour: int) -> int:
        offset = (start + datetime.timedelta(hours=hour)).astimezone(rules).utcoffset()
        return round((offset or datetime.timedelta()).total_seconds())

    start = datetime.datetime(_FIRST, 1, 1, tzinfo=datetime.UTC)
    hours = round((datetime.datetime(_LAST, 1, 1, tzinfo=datetime.UTC) - start).total_seconds() / 3600)
    changes = []
    # Zones change their offset at most a few times a year, and never twice within three weeks: look each 400 hours, then bisect.
    step = 400
    for hour in range(0, hours, step):
        low, high = hour, min(hour + step, hours)
        before, after = offset_s(low), offset_s(high)
        if before == after:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset_s(middle) == before else (low, middle)
        at = (start + datetime.timedelta(hours=high)).replace(tzinfo=None)
        walls = sorted((at + datetime.timedelta(seconds=before), at + datetime.timedelta(seconds=after)))
        changes.append(Change(walls[0], walls[1], after))
    return Zone(name, offset_s(0), tuple(changes))


def to_utc(naive: str, zone: Zone) -> str:
    """SQL: the wall-clock TIMESTAMP `naive` in `zone` as a UTC TIMESTAMP."""
    if not zone.changes:
        return naive if zone.first_offset_s == 0 else f"({naive} - INTERVAL ({zone.first_offset_s}) SECOND)"
    # Newest first: accounting is mostly recent, and each row leaves the chain at its first match.
    arms = " ".join(
        f"WHEN {naive} >= TIMESTAMP '{change.high}' THEN INTERVAL ({change.offset_s}) SECOND" for change in reversed(zone.changes)
    )
    return f"({naive} - CASE {arms} ELSE INTERVAL ({zone.first_offset_s}) SECOND END)"


def to_wall(utc: str, zone: Zone) -> str:
    """SQL: the UTC TIMESTAMP `utc` as a wall-clock TIMESTAMP in `zone`."""
    if not zone.changes:
        return utc if zone.first_offset_s == 0 else f"({utc} + INTERVAL ({zone.first_offset_s}) SECOND)"
    arms = []
    offsets = [zone.first_offset_s, *(change.offset_s for change in zone.changes)]
    for change, before in reversed(list(zip(zone.changes, offsets, strict=False))):
        instant = change.high - datetime.timedelta(seconds=max(before, change.offset_s))
        arms.append(f"WHEN {utc} >= TIMESTAMP '{instant}' THEN INTERVAL ({change.offset_s}) SECOND")
    return f"({utc} + CASE {' '.join(arms)} ELSE INTERVAL ({zone.first_offset_s}) SECOND END)"


def doubtful(wall: str, zone: Zone) -> str:
    """SQL: true when the wall-clock TIMESTAMP `wall` occurred twice or never in `zone`."""
    if not zone.changes:
        return "false"
    ranges = " OR ".join(
        f"({wall} >= TIMESTAMP '{change.low}' AND {wall} < TIMESTAMP '{change.high}')" for change in reversed(zone.changes)
    )
    return f"coalesce({ranges}, false)"


ABSENT = ("", "unknown", "none", "null", "(null)", "n/a", "0")
"""What stands where there is no time, in small letters."""


def is_there(text: str) -> str:
    """SQL: true when `text` is meant to be a time."""
    return f"coalesce(lower(trim({text})) NOT IN ({', '.join(map(repr, ABSENT))}), false)"


def timestamp(text: str, zone: Zone) -> str:
    """SQL: the UTC TIMESTAMP of a time that sacct printed.

    Reads ISO 8601 with or without an offset and seconds since the epoch (SLURM_TIME_FORMAT=%s). ``Unknown``, ``None``,
    blanks and 0 are NULL. The usual form, 19 bytes, takes the short way: this runs four times for every record.
    """
    epoch = f"try_cast({text} AS BIGINT)"
    return (
        f"CASE WHEN strlen({text}) = 19 THEN {to_utc(f'try_cast({text} AS TIMESTAMP)', zone)}"
        f" WHEN {text} IN ('Unknown', 'None', '') THEN NULL"
        f" WHEN {epoch} BETWEEN 1 AND 253402300799 THEN make_timestamp({epoch} * 1000000)"
        f" WHEN regexp_full_match({text}, '.*[0-9](Z|[+-][0-9]{{2}}:?[0-9]{{2}})')"
        f" THEN try_cast(regexp_replace({text}, '([+-][0-9]{{2}}):?([0-9]{{2}})$', '\\1:\\2') AS TIMESTAMPTZ)::TIMESTAMP"
        f" WHEN strlen({text}) >= 10 AND NOT {text} LIKE '%inf%' THEN {to_utc(f'try_cast({text} AS TIMESTAMP)', zone)} END"
    )
