"""Perdure as others drive it: its command line, started with the Python that runs this. Called by `coldstart` and `matrix`."""

from __future__ import annotations

import contextlib
import sys

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    """What a command that failed said with ``--json``: `code` is empty when it said nothing that can be read."""

    code: str
    message: str
    problems: tuple[str, ...] = ()
    """Codes of the findings that it refused for, each once."""


def perdure(*arguments: str) -> tuple[str, ...]:
    """Return the command line of one of our commands; the working directory is no place that modules are taken from."""
    return (sys.executable, "-P", "-m", "perdure", *arguments)


def refusal(said: bytes) -> Refusal:
    """Read the error document that is the last line of what a command said on stderr, or that line itself."""
    last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        found = msgspec.json.decode(last)["error"]
        code, message = str(found["code"]), str(found["message"])
        problems = [str(one["code"]) for one in found.get("findings", ()) if one["severity"] == "problem"]
        return Refusal(code, message, tuple(dict.fromkeys(problems)))
    return Refusal("", last)
