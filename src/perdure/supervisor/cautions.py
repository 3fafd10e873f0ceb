"""What a person should know of a checkpoint that was made, or of a restore: its warnings. Called by `checkpointing` and `restoring`."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.model.finding import Finding, Severity
from perdure.supervisor import wire

_MOST_OF_A_CODE = 5
"""So many lines are said of one kind at a time: a tree of a thousand workers may have a thousand of it."""
_MOST_BYTES = 48 << 10
"""What `fitting` returns stays below this, encoded: it is part of one line."""


def words(finding: Finding) -> str:
    """Return `finding` as it is said to a person."""
    return f"{finding.subject}: {finding.message}" + (f" ({finding.remedy})" if finding.remedy else "")


def of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the warnings among `findings`, of each kind one for each thing: the first."""
    names: set[tuple[str, str]] = set()
    return tuple(finding for finding in findings if finding.severity is Severity.WARNING and _is_new(finding, names))


def fitting(warnings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return as many of `warnings`, from the first on, as an answer has room for."""
    found: list[Finding] = []
    left_bytes = _MOST_BYTES
    for finding in warnings:
        left_bytes -= len(wire.encode(finding))
        if left_bytes < 0:
            break
        found.append(finding)
    return tuple(found)


class Cautions:
    """What was said already of the checkpoints of one life of the workload `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._said: set[tuple[str, str]] = set()

    def new(self, warnings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Return those of `warnings` that were not there before."""
        return tuple(finding for finding in warnings if _is_new(finding, self._said))

    def say(self, warnings: Iterable[Finding]) -> tuple[str, ...]:
        """Return the lines to say of `warnings`, all of them new."""
        lines: list[str] = []
        counted: dict[str, int] = {}
        for finding in warnings:
            counted[finding.code] = counted.get(finding.code, 0) + 1
            if counted[finding.code] <= _MOST_OF_A_CODE:
                lines.append(f"{self._name}: {words(finding)}")
        more = {code: count - _MOST_OF_A_CODE for code, count in counted.items() if count > _MOST_OF_A_CODE}
        return (*lines, *(f"{self._name}: and {count} more of {code}: see perdure check {self._name}" for code, count in more.items()))


def _is_new(finding: Finding, names: set[tuple[str, str]]) -> bool:
    """Tell whether nothing among `names` is what `finding` speaks of, and add that: one thing may have another process, or another file."""
    own = {(finding.code, name) for name in (finding.subject, finding.path) if name is not None}
    is_new = names.isdisjoint(own)
    names |= own
    return is_new
