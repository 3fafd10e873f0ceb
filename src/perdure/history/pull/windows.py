"""Windows of time, in whole seconds of UTC: the days of a pull, and the halves of one that was too wide. Pure."""

from __future__ import annotations

import datetime
import re

import msgspec

from perdure import errors

MINIMUM_S = 900
"""A window is not split below this: a site that cannot answer for a quarter of an hour has another problem."""

_WRITTEN = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?", re.ASCII)


class Window(msgspec.Struct, frozen=True, order=True):
    """From `start` until before `end`, both naive UTC."""

    start: datetime.datetime
    end: datetime.datetime

    @property
    def seconds(self) -> int:
        """Length in seconds, > 0."""
        return int((self.end - self.start).total_seconds())

    @property
    def name(self) -> str:
        """The day it lies in, ``2026-01-05``: the name of its file."""
        return self.start.date().isoformat()


def parse_instant(text: str, *, name: str) -> datetime.datetime:
    """Read ``2026-01-05`` or ``2026-01-05T12:30[:00]`` as naive UTC. Raises `errors.QuantityError`, naming it by `name`."""
    try:
        if not _WRITTEN.fullmatch(text.strip()):
            raise ValueError
        return datetime.datetime.fromisoformat(text.strip().removesuffix("Z"))
    except ValueError:
        raise errors.QuantityError(
            f"{name}: cannot read {text!r} as a date", hint="write it like 2026-01-05 or 2026-01-05T12:30:00, in UTC"
        ) from None


def span(*, now: datetime.datetime, days: int, since: str | None, until: str | None) -> Window:
    """Return the span of time to pull: `since` (else `days` whole days before `until`'s midnight) to `until` (else `now`).

    Raises `errors.QuantityError` for dates that cannot be read or lie the wrong way round, or `days` below 1.
    """
    end = min(parse_instant(until, name="--until"), now) if until is not None else now
    if days < 1:
        raise errors.QuantityError(f"--days: {days} is not at least 1")
    try:
        midnight = end.replace(hour=0, minute=0, second=0, microsecond=0)
        start = parse_instant(since, name="--since") if since is not None else midnight - datetime.timedelta(days=days)
    except OverflowError:
        raise errors.QuantityError(f"--days: {days} reaches back before the calendar") from None
    if start >= end:
        raise errors.QuantityError(
            f"--since {start.isoformat()} is not before {'--until' if until else 'now,'} {end.isoformat()}",
            hint="times are UTC",
        )
    return Window(start, end.replace(microsecond=0))


def cut_into_days(whole: Window) -> list[Window]:
    """Cut `whole` at every midnight: its days in order, the first and last shorter where it begins or ends within a day."""
    days = []
    start = whole.start
    while start < whole.end:
        midnight = start.replace(hour=0, minute=0, second=0) + datetime.timedelta(days=1)
        days.append(Window(start, min(midnight, whole.end)))
        start = midnight
    return days


def split(window: Window) -> tuple[Window, Window] | None:
    """Split `window` at its middle second; None when the halves would be shorter than `MINIMUM_S`."""
    half = window.seconds // 2
    if half < MINIMUM_S:
        return None
    middle = window.start + datetime.timedelta(seconds=half)
    return Window(window.start, middle), Window(middle, window.end)
