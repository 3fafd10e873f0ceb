"""A finding: one thing that a check found, with a stable code. Shared by `doctor`, `check` and every refusal."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.StrEnum):
    """How much a finding matters."""

    PROBLEM = "problem"
    """What was asked cannot work until this is mended."""
    WARNING = "warning"
    """It may work, and may not do what is expected."""
    INFO = "info"
    """Worth knowing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a check found.

    `code` is stable, kebab-case, and starts with its family (``host- criu- process- file- network- memory- gpu- restore- store-``);
    programs decide on it. `subject` names the thing in a few words; the fields below it say the same for programs.
    """

    code: str
    severity: Severity
    subject: str
    message: str
    remedy: str | None = None
    pid: int | None = None
    fd: int | None = None
    path: str | None = None
    flag: str | None = None


def problems(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return those that forbid what was asked."""
    return tuple(finding for finding in findings if finding.severity is Severity.PROBLEM)
