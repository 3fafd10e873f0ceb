"""How findings are shown: one line each, or JSON; exit status 4 when one of them is a problem. Called by `check` and `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure import errors
from perdure.cli import console
from perdure.model.finding import Finding, Severity, problems

_ORDER = {severity: rank for rank, severity in enumerate(Severity)}


def line(finding: Finding) -> str:
    """Return `finding` as one line without control characters: severity, code, subject, message, remedy."""
    text = f"{finding.severity.value}  {finding.code}  {finding.subject}: {finding.message}"
    if finding.remedy:
        text += f" → {finding.remedy}"
    return console.printable(text)


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `--json` prints: every finding, and how many of them are problems."""
    return {"findings": list(findings), "problems": len(problems(tuple(findings)))}


def show(common: console.Common, findings: Sequence[Finding], *, nothing: str, **extra: Any) -> None:
    """Print `findings`, the gravest first, as lines or as one JSON document.

    `nothing` is the note, on stderr, when there are none. `extra` goes into the JSON document beside them.
    """
    ordered = sorted(findings, key=lambda finding: _ORDER[finding.severity])
    if common.json:
        console.print_json({**extra, **document(ordered)})
        return
    out = console.out()
    for finding in ordered:
        out.print(line(finding), soft_wrap=True)
    if not ordered:
        console.note(common, nothing)


def refuse_problems(findings: Sequence[Finding], *, what: str, hint: str = "") -> None:
    """End with status 4 when one of `findings` is a problem.

    `what` says what cannot be done, such as ``this cannot be saved now``. Raises `errors.Findings`.
    """
    found = problems(tuple(findings))
    if found:
        counted = "1 problem" if len(found) == 1 else f"{len(found)} problems"
        raise errors.Findings(f"{what}: {counted}", hint=hint)
