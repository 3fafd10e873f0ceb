"""Node names in Slurm's compressed form: `gpu[001-003,7],login1`. Expanded, numbered anew, compressed again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from perdure.history.anonymise.pseudonyms import Pseudonyms

LARGEST = 100_000
"""Nodes in one list. The largest machines have a tenth of that; a longer list is a fault, and is taken as one name."""

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def expand(text: str) -> list[str]:
    """Return the names that `text` stands for, in its order. What cannot be read as a list is one name."""
    names: list[str] = []
    for part in _parts(text):
        found = _expand_part(part, LARGEST - len(names))
        if found is None:
            return [text]
        names += found
    return names or [text] if text else []


def _parts(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            if at > start:
                yield text[start:at]
            start = at + 1
    if len(text) > start:
        yield text[start:]


def _expand_part(part: str, room: int) -> list[str] | None:
    pieces = _BRACKET.split(part)
    if any("[" in piece or "]" in piece for piece in pieces):
        return None
    choices: list[list[str]] = []
    total = 1
    for at, piece in enumerate(pieces):
        numbers = [piece] if at % 2 == 0 else _numbers(piece, room)
        if numbers is None:
            return None
        total *= len(numbers)
        choices.append(numbers)
    return ["".join(choice) for choice in itertools.product(*choices)] if total <= room else None


def _numbers(text: str, room: int) -> list[str] | None:
    found: list[str] = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            return None
        low, high = match[1], match[2] or match[1]
        if len(low) > 18 or len(high) > 18 or not 0 <= int(high) - int(low) < room - len(found):
            return None
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found


def rename(originals: Iterable[str], pseudonyms: Pseudonyms, avoid: Collection[int]) -> dict[str, tuple[str, int]]:
    """Return for each name a new stem and number: one stem a class (names alike but for their digits), counted in order.

    Neighbours stay neighbours, gaps and racks vanish. Numbers in `avoid` are left out.
    """
    classes: dict[str, list[str]] = {}
    for name in sorted(set(originals), key=_natural):
        classes.setdefault(re.sub(r"[0-9]+", "0", name), []).append(name)
    new: dict[str, tuple[str, int]] = {}
    for kind, members in classes.items():
        numbers = (number for number in itertools.count(1) if number not in avoid)
        new |= {name: (pseudonyms.word("node", kind), number) for name, number in zip(members, numbers, strict=False)}
    return new


def compress(names: Iterable[tuple[str, int]]) -> str:
    """Write nodes of `rename` in Slurm's form: `stem[1-4,7],other3`; each as often as it is given."""
    stems: dict[str, list[int]] = {}
    for stem, number in names:
        stems.setdefault(stem, []).append(number)
    return ",".join(stem + _ranges(sorted(numbers)) for stem, numbers in stems.items())


def _ranges(numbers: list[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    if len(numbers) == 1:
        return str(numbers[0])
    return "[" + ",".join(f"{low}-{high}" if low != high else str(low) for low, high in ranges) + "]"


def rewrite(text: str, new: Mapping[str, tuple[str, int]]) -> str:
    """Rewrite a list with the names of `rename`."""
    return compress(new[name] for name in expand(text))


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key: digits by value; absurdly long numbers count as text."""
    pieces = re.split(r"([0-9]+)", name)
    return [(1, int(piece), "") if at % 2 and len(piece) < 19 else (0, 0, piece) for at, piece in enumerate(pieces)], name
