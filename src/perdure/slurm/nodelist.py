"""Slurm's lists of nodes, such as ``n[1-3,07],login2``, as single names. Called by install and uninstall."""

from __future__ import annotations

import itertools
import re
import subprocess

from perdure import errors

MOST_NODES = 65_536
"""More is a slip of the pen: Slurm's own limit lies here too."""
_HINT = "write it like n[1-3,07],login2"
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,253}[A-Za-z0-9_])?")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)")
_SCONTROL_S = 10


def expand(text: str, *, scontrol: str | None) -> tuple[str, ...]:
    """Return the nodes that `text` names, each once, in its order.

    `scontrol` is Slurm's own command, which knows more forms than we do; None, or one that cannot answer: we read it.
    Raises `errors.UsageError` for text that names no nodes, too many, or something that cannot be a host's name.
    """
    names = (_ask(scontrol, text) if scontrol is not None else None) or list(itertools.islice(parse(text), MOST_NODES + 1))
    if len(names) > MOST_NODES:
        raise errors.UsageError(f"{text!r} names more than {MOST_NODES} nodes", hint=_HINT)
    for name in names:
        if not _NAME.fullmatch(name):
            raise errors.UsageError(f"{name!r} is not the name of a node", hint=_HINT)
    if not names:
        raise errors.UsageError("there is no node in the list", hint=_HINT)
    return tuple(dict.fromkeys(names))


def _ask(scontrol: str, text: str) -> list[str] | None:
    if text.startswith("-"):
        return None  # scontrol would take it for an option
    try:
        done = subprocess.run(
            [scontrol, "show", "hostnames", text], capture_output=True, text=True, errors="replace", timeout=_SCONTROL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split() if done.returncode == 0 else None


def parse(text: str) -> itertools.chain[str]:
    """Yield the nodes that `text` names, read without Slurm. Raises `errors.UsageError`."""
    return itertools.chain.from_iterable(map(_one, _split(text)))


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in {0, 1}:
            raise errors.UsageError(f"{text!r}: brackets do not match", hint=_HINT)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    if depth:
        raise errors.UsageError(f"{text!r}: brackets do not match", hint=_HINT)
    return [part.strip() for part in parts if part.strip()]


def _one(part: str) -> itertools.chain[str]:
    pieces: list[list[str]] = []
    at = 0
    for match in _PIECE.finditer(part):
        if match.start() != at:
            break
        at = match.end()
        pieces.append([match[2]] if match[2] is not None else _ranges(match[1], part))
    if at != len(part):
        raise errors.UsageError(f"{part!r} is not a list of nodes", hint=_HINT)
    total = 1
    for piece in pieces:
        total *= len(piece)
    if total > MOST_NODES:
        raise errors.UsageError(f"{part!r} names more than {MOST_NODES} nodes", hint=_HINT)
    return itertools.chain("".join(combination) for combination in itertools.product(*pieces))


def _ranges(text: str, part: str) -> list[str]:
    names: list[str] = []
    for piece in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", piece.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise errors.UsageError(f"{part!r}: {piece!r} is not a range of numbers", hint=_HINT)
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first + len(names) >= MOST_NODES:
            raise errors.UsageError(f"{part!r} names more than {MOST_NODES} nodes", hint=_HINT)
        names += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return names
