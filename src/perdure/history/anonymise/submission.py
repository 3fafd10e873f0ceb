"""Rewrite a submission's command line: known options stay, amounts stay, ids are renumbered, everything else becomes a word.

Slurm has lost the quoting of these lines, so words are split at blanks, and all that follows the script is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from perdure.history.anonymise import texts, words
from perdure.history.anonymise.pseudonyms import Pseudonyms

_AMOUNT = re.compile(r"[0-9][0-9:.,%*/-]*[KMGTkmgt]?[Bb]?|UNLIMITED|INFINITE|infinite|unlimited", re.ASCII)
_GPUS = re.compile(
    r"(?:(?P<gres>gres[:/])?(?P<gpu>gpu):?)?(?:(?P<model>[^:=,]{0,64}?[^:=,0-9][^:=,]{0,64})[:=]?)?(?P<count>[0-9]{0,9})", re.ASCII
)
_SIGNAL = re.compile(r"(?:[RB]{1,2}:)?([A-Z]{1,8}[0-9]?|[0-9]{1,2})(?:@[0-9]{1,6})?", re.ASCII)
_ID = re.compile(r"([0-9]+)((?:_[0-9*]+)?(?:\+[0-9]+)?)", re.ASCII)
_REMEMBERED = 100_000
_MARKER = "--signal"
"""What `history.runs` looks for in a submission."""


def ids(text: str) -> Iterator[int]:
    """Yield the job ids that a dependency names, in a whole submission or in a list between commas."""
    for match in re.finditer(r"(?<![0-9A-Za-z_+])[0-9]{1,18}", text, re.ASCII):
        yield int(match[0])


class Rewriter:
    """Rewrites submissions with one set of pseudonyms. `numbers` maps job ids, old to new; others are left out."""

    def __init__(self, pseudonyms: Pseudonyms, numbers: Mapping[int, int]) -> None:
        self._pseudonyms = pseudonyms
        self._numbers = numbers
        self._seen: dict[tuple[str, str], str] = {}

    def rewrite(self, text: str) -> str:
        """Rewrite one command line. A pending ``--signal`` never gets lost, even where it stood behind the script."""
        new = " ".join(self._words(text.split()))
        return f"{new} {_MARKER}" if _MARKER in text and _MARKER not in new else new

    def dependency(self, text: str) -> str:
        """Rewrite the value of ``--dependency``: kinds stay, ids are renumbered."""
        return re.sub(r"[^,?]+", lambda match: self._one_dependency(match[0]), text)

    def _words(self, parts: list[str]) -> Iterator[str]:
        if not parts:
            return
        program = parts[0].rsplit("/", 1)[-1]
        yield program if program in words.PROGRAMS else self._hide(parts[0])
        waiting: str | None = None
        for part in parts[1:]:
            if waiting is not None:
                yield self._value(waiting, part)
                waiting = None
            elif part.startswith("--"):
                name, equals, value = part[2:].partition("=")
                if name not in words.OPTIONS:
                    yield f"--{self._hide(part)}"
                elif name == "wrap":
                    yield "--wrap"
                    return
                elif equals:
                    yield f"--{name}={self._value(name, value)}"
                else:
                    yield f"--{name}"
                    waiting = None if name in words.FLAGS else name
            elif part.startswith("-") and part[1:2] in words.SHORT_OPTIONS:
                name = words.SHORT_OPTIONS[part[1]]
                if part[2:] and name not in words.FLAGS:
                    yield f"--{name}={self._value(name, part[2:].removeprefix('='))}"
                else:
                    yield f"--{name}"
                    waiting = None if name in words.FLAGS else name
            else:
                yield self._hide(part)
                return

    def _value(self, name: str, value: str) -> str:
        """Rewrite an option's value. Most are seen again and again; those that name other jobs are not."""
        if name == "dependency":
            return self.dependency(value)
        new = self._seen.get((name, value))
        if new is None:
            new = self._new_value(name, value)
            if len(self._seen) < _REMEMBERED:
                self._seen[name, value] = new
        return new

    def _new_value(self, name: str, value: str) -> str:
        if name in words.QUANTITIES and _AMOUNT.fullmatch(value):
            return value
        if name == "gres" or name.startswith("gpus"):
            return ",".join(self._gpus(part) for part in value.split(","))
        if name == "signal":
            match = _SIGNAL.fullmatch(value)
            return value if match and (match[1] in words.SIGNALS or match[1].isdigit()) else self._hide(value)
        return texts.listed(name if name in {"account", "partition", "qos"} else "text", value, self._pseudonyms)

    def _gpus(self, text: str) -> str:
        """Keep ``gres/gpu``, the count, and a public model: ``gpu:a100:4``, ``a100:2``, ``4``."""
        match = _GPUS.fullmatch(text)
        if match is None or not text:
            return self._hide(text)
        model = match["model"]
        parts = [match["gpu"], texts.gpu_model(model, self._pseudonyms) if model else None, match["count"]]
        return (match["gres"] or "") + ":".join(part for part in parts if part)

    def _one_dependency(self, text: str) -> str:
        kind, *targets = text.split(":")
        if not targets and _ID.fullmatch(kind):
            kind, targets = "", [kind]
        head = [] if not kind else [kind] if kind in words.DEPENDENCIES else [self._hide(kind)]
        return ":".join([*head, *(self._renumber(target) for target in targets)])

    def _renumber(self, target: str) -> str:
        match = _ID.fullmatch(target)
        number = self._numbers.get(int(match[1])) if match and len(match[1]) <= 18 else None
        return f"{number}{match[2]}" if match and number is not None else self._hide(target)

    def _hide(self, text: str) -> str:
        return self._pseudonyms.word("text", text) if text else ""
