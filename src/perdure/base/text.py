"""Untrusted text made safe to show. Called wherever text from a history meets a person: the terminal and the reports."""

from __future__ import annotations


def printable(text: str) -> str:
    """Make control characters, bad bytes and direction overrides visible as escapes; leave all other text as it is.

    The result holds no character that could move a cursor, change a colour, end a line or reverse the reading order.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text)


def visible(name: str) -> str:
    """Return `name` with each byte that is no text shown as ``\\xff``, for JSON that people read. What is text stays as it is."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return name.encode("utf-8", "backslashreplace").decode("utf-8")


def storable(name: str) -> str:
    """Return `name` as text that JSON can hold: each byte that is no text becomes NUL and two hexadecimal digits.

    Names of files hold any byte but NUL, and those that are not UTF-8 arrive as surrogates (PEP 383), which no encoder takes.
    `original` is the inverse for every `name` without NUL.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        pass
    else:
        return name
    return "".join(f"\0{ord(char) - 0xDC00:02x}" if 0xDC80 <= ord(char) <= 0xDCFF else char for char in name)


def original(stored: str) -> str:
    """Return the name of which `storable` made `stored`. Raises ValueError for text that it cannot have made."""
    first, *rest = stored.split("\0")
    return first + "".join(chr(0xDC00 + int(part[:2], 16)) + part[2:] for part in rest)
