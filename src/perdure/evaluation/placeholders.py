"""Tell words that say something from words that hold a place. Called by `completeness`, for plans and for the reasons of amendments."""

from __future__ import annotations

import re

_EMPTY_WORDS = re.compile(
    r"\b(?:todo|tbd|tba|tbc|fixme|xxx+|change[ _-]?me|placeholder|fill[ _-]?(?:me[ _-]?|this[ _-]?)?in|lorem ipsum|"
    r"to be (?:decided|determined|defined|agreed|confirmed|done)|your[_-]\w+)\b"
    r"|<[A-Za-z][^<>]*>|\.\.\.|…|\?\?|/path/to\b|\bexample\.(?:com|org|net)\b",
    re.IGNORECASE,
)
_WHOLE_ARGUMENT = re.compile(
    r"(?:todo|tbd|tba|fixme|xxx+|change[ _-]?me|placeholder|<[^<>]*>|\.\.\.|…|\?+)(?::.*)?|.*(?:/path/to\b|change[_-]?me).*",
    re.IGNORECASE | re.DOTALL,
)
_NOBODY = re.compile(
    r"(?:someone|somebody|anyone|anybody|everyone|whoever|we|us|me|the team|a team|users?|n/?a|none|unknown|-+|\.+|\?+)", re.IGNORECASE
)
FEWEST_WORDS = 3
"""A reason of fewer words names no cause."""


def in_prose(text: str) -> str | None:
    """Return the first word of `text` that holds a place instead of saying something, or None."""
    found = _EMPTY_WORDS.search(text)
    return found.group() if found else None


def is_argument(text: str) -> bool:
    """Tell whether one argument of a command only holds a place. Dots and brackets inside of one may be meant: code has them."""
    return bool(_WHOLE_ARGUMENT.fullmatch(text.strip()))


def is_nobody(text: str) -> bool:
    """Tell whether `text`, which should name who does something, names nobody in particular."""
    return not text.strip() or bool(_NOBODY.fullmatch(text.strip()))


def is_short(text: str) -> bool:
    """Tell whether `text` is too short to be a reason."""
    return len(re.findall(r"\w+", text)) < FEWEST_WORDS
