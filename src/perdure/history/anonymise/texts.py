"""Rewrite job names, paths, GPU models and states, keeping what the analyses read of their structure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable

from perdure.history import names
from perdure.history.anonymise import words
from perdure.history.anonymise.pseudonyms import Pseudonyms

_PIECES = re.compile(rf"({words.LETTERS}|#)")
_SPACES = re.compile(r"( *)(.*?)( *)", re.DOTALL)
_DIGITS = re.compile(r"([0-9]+)")


def rename_jobs(originals: Iterable[str], pseudonyms: Pseudonyms, avoid: Collection[int]) -> dict[str, str]:
    """Return a new name for each job name: other words, other numbers, the same separators.

    Names that normalise alike (`history.names`) still do, those that do not still do not, and no two become one.
    Numbers in `avoid` are not used.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(set(originals), key=_natural):
        groups.setdefault(names.normalise(name), []).append(name)
    new: dict[str, str] = {}
    for pattern, members in groups.items():
        template = _template(pattern, pseudonyms)
        numbers = (number for number in itertools.count(1) if number not in avoid)
        for name in members:
            match = _SPACES.fullmatch(name)
            before, after = (match[1], match[3]) if match and match[2] else (name, "")
            new[name] = before + _fill(template, next(numbers)) + after
    return new


def _template(pattern: str, pseudonyms: Pseudonyms) -> str:
    """Turn a normalised name into one of other words. `#` stands for a number."""
    template = _PIECES.sub(lambda match: "#" if match[1] == "#" else pseudonyms.word("name", match[1]), pattern)
    if "#" in pattern and names.normalise(_fill(template, 1)) != template:
        # A hostile pattern that is not stable under normalisation: the whole of it becomes one word.
        template = pseudonyms.word("name", pattern) + "-#"
    return template


def _fill(template: str, number: int) -> str:
    """Put `number` for the first `#` and 0 for the others."""
    first, *rest = template.split("#")
    return first + "".join(f"{0 if at else number}{piece}" for at, piece in enumerate(rest))


def path(text: str, pseudonyms: Pseudonyms) -> str:
    """Rewrite a path, component by component: equal paths stay equal, and a folder stays the folder of what lies in it."""
    return "/".join(part if part in {"", ".", ".."} else pseudonyms.word("dir", part) for part in text.split("/"))


def listed(kind: str, text: str, pseudonyms: Pseudonyms) -> str:
    """Rewrite a name, or several between commas, as a pending job's partitions are."""
    return ",".join(pseudonyms.word(kind, part) if part else "" for part in text.split(","))


def gpu_model(text: str, pseudonyms: Pseudonyms) -> str:
    """Keep the name of a GPU model that everybody can buy; replace any other."""
    return text if is_public_gpu(text) else pseudonyms.word("gpu", text)


def is_public_gpu(text: str) -> bool:
    """Tell whether `text` is made of nothing but names of GPU models that everybody can buy."""
    return all(part in words.GPU_MODELS for part in re.split(r"[-_.: +]+", text.casefold()))


def state(text: str, pseudonyms: Pseudonyms) -> str:
    """Keep Slurm's own words in a state or a list of its flags; replace any other."""
    return ",".join(part if part in words.STATES or part == "" else pseudonyms.word("state", part).upper() for part in text.split(","))


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Sort key: digits by value, so that counters keep their order. Absurdly long numbers count as text."""
    pieces = _DIGITS.split(name)
    return [(1, int(piece), "") if at % 2 and len(piece) < 19 else (0, 0, piece) for at, piece in enumerate(pieces)], name
