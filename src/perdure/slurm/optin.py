"""The options of an opted-in job, from its own words and the admin's. Called by `seat`.

A job says them in one text: ``every=10m,keep=2``, from the variable PERDURE or behind ``perdure:`` in its comment. Whether it is opted in
at all is decided before, by the shim. An option that cannot be read is left out and told of: a job must run all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure import errors
from perdure.agent import wishes

_YES = frozenset({"", "1", "yes", "true", "on"})
"""Words that opt in and say no more."""
_OF_JOBS = frozenset({"every", "mttf", "keep", "before-end", "grace", "tcp", "outputs", "probe", "events"})
"""What a job may decide. Its name, and where it goes on from, follow from the job itself."""
_DEFAULTS = (("before-end", "auto"),)
"""A job that is opted in leaves before its time limit, to come back with a new one, unless somebody says otherwise."""


class Chosen(msgspec.Struct, frozen=True):
    """What the options come to."""

    options: tuple[tuple[str, str], ...]
    """In the words of a seat's request, the later ones counting more."""
    problems: tuple[str, ...]
    """What was left out and why, in words, for the job's output."""


def choose(own: str, defaults: Iterable[str]) -> Chosen:
    """Return what the job's own text `own` and the admin's ``key=value`` words `defaults` come to."""
    problems: list[str] = []
    of_site = _read(defaults, "the site's option", problems)
    of_job = _read((word.strip() for word in own.split(",")), "option", problems)
    return Chosen((*_DEFAULTS, *of_site, *of_job), tuple(problems))


def _read(words: Iterable[str], whose: str, problems: list[str]) -> list[tuple[str, str]]:
    found = []
    for word in words:
        if word.lower() in _YES:
            continue
        key, _, value = word.partition("=")
        key = key.strip().lower()
        why = _fault(key, value.strip())
        if why is None:
            found.append((key, value.strip()))
        else:
            problems.append(f"{whose} {word!r} is left out: {why}")
    return found


def _fault(key: str, value: str) -> str | None:
    """Say what is wrong with an option; None: nothing."""
    if key not in _OF_JOBS:
        return f"known are {', '.join(sorted(_OF_JOBS))}"
    try:
        wishes.read(((key, value),))
    except errors.UsageError as error:
        return str(error)
    return None
