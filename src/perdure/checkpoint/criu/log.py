"""What CRIU's log means: the line that caused a failure, the thing it is about, a stable code and a remedy. Pure: text in, record out."""

from __future__ import annotations

import re

import msgspec


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why CRIU failed.

    `code` is stable, of the families of `perdure.model.finding`. `line` is the causal line of the log, without CRIU's source position.
    """

    code: str
    message: str
    line: str
    remedy: str | None = None
    pid: int | None = None
    fd: int | None = None
    path: str | None = None
    flag: str | None = None


def explain(text: str, *, action: str, returncode: int, timed_out: bool = False, cancelled: bool = False) -> Explanation:
    """Find the reason in `text`, the end of a log that CRIU wrote for `action` before it ended with `returncode`."""
    lines = [line for line in text.splitlines() if re.search(r"\bError \(", line)]
    last = lines[-1] if lines else ""
    if timed_out or cancelled:
        return Explanation("criu-timeout" if timed_out else "criu-cancelled", last, last)
    return Explanation(f"criu-{action}-failed", last or f"criu {action} ended with {returncode}", last)
