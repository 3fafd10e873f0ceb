"""The help of every command that people type ends with an example, and the examples are commands that exist, with options that exist."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex

import pytest

from perdure.cli import app

_UNTYPED = {("agent",), ("slurm", "seat")}
"""Started by a service manager, and by Slurm's shim."""
PLACES = {(name,): place for name, place in app.COMMANDS.items()} | {
    (group, name): place for group, (_, members) in app.GROUPS.items() for name, place in members.items()
}


def examples(place: str) -> list[list[str]]:
    """Return the words of each example in a command's docstring: what stands on a line of its own, or after a colon between backticks."""
    module, _, function = place.partition(":")
    text = inspect.getdoc(getattr(importlib.import_module(module), function)) or ""
    found = re.findall(r"^ {2,}(?:sudo )?(perdure .*)$", text, re.MULTILINE) + re.findall(r": `(perdure [^`]*)`", text)
    # Of a line for a shell: what comes before a redirection, and each of several commands.
    return [shlex.split(part.partition(">")[0]) for line in found for part in re.split(r"&&|\|", line)]


@pytest.mark.parametrize("path", [path for path in PLACES if path not in _UNTYPED], ids=" ".join)
def test_a_command_has_an_example(path):
    assert any(words[1 : 1 + len(path)] == list(path) for words in examples(PLACES[path])), "no example in its docstring"


@pytest.mark.parametrize("path", PLACES, ids=" ".join)
def test_an_example_can_be_typed(path):
    build = app.build()
    for words in examples(PLACES[path]):
        if words[0] == "perdure":
            build.parse_args(words[1:], exit_on_error=False, print_error=False)
