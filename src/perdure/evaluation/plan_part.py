"""What all tables of a plan are made of: their base, the types of their values, and checks of several of them. Called by `plan`, `recipes`.

What is written is checked when it is read. Durations are seconds.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Annotated

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
"""Without spaces and slashes."""
Argv = tuple[Text, ...]
"""A command and its arguments; no shell reads it."""
Seconds = Annotated[float, Meta(ge=0, le=366 * 86400)]
Span = Annotated[float, Meta(gt=0, le=366 * 86400)]
"""A duration in seconds above 0; a year is the longest."""
Positive = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(gt=0, le=3600)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Instant = Annotated[datetime.datetime, Meta(tz=True)]
Body = Annotated[str, Meta(max_length=1 << 20)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables of a plan: figures are finite."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise ValueError(f"{field} must be a finite number")


def check_pattern(pattern: str | None, *, groups: int) -> None:
    """Raise ValueError unless `pattern`, if there is one, compiles and has `groups` groups; 0: any number."""
    if pattern is None:
        return
    try:
        found = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"pattern is not a regular expression: {error}") from error
    if groups and found != groups:
        raise ValueError(f"pattern has {found} groups: it needs one, around the number, such as 'step ([0-9]+)'")


def need(kind: str, *, of: Part, **keys: tuple[str, ...]) -> None:
    """Raise ValueError when `of`, whose kind is `kind`, lacks one of the keys that are named for that kind."""
    for key in keys[kind]:
        if not getattr(of, key):
            raise ValueError(f'kind = "{kind}" needs {key}')
