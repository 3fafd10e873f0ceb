"""Untrusted text made safe to show. Called wherever text from a history meets a person: the terminal and the reports."""

from __future__ import annotations


def printable(text: str) -> str:
    """Make control characters, bad bytes and direction overrides visible as escapes; leave all other text as it is.

    The result holds no character that could move a cursor, change a colour, end a line or reverse the reading order.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii") for char in text)
