"""Findings about one descriptor or one process, worded alike in all families."""

from __future__ import annotations

from perdure.base.proc.descriptors import Descriptor
from perdure.checkpoint.preflight.codes import finding
from perdure.checkpoint.preflight.scene import Member
from perdure.model.finding import Finding


def descriptor(
    code: str, member: Member, opened: Descriptor, message: str, *, remedy: str | None = None, flag: str | None = None
) -> Finding:
    """Return a finding about descriptor `opened` of `member`."""
    return finding(
        code,
        f"{member.name} fd {opened.number}",
        message,
        pid=member.pid,
        fd=opened.number,
        path=opened.target if opened.is_path else None,
        remedy=remedy,
        flag=flag,
    )


def process(
    code: str, member: Member, message: str, *, remedy: str | None = None, path: str | None = None, flag: str | None = None
) -> Finding:
    """Return a finding about `member` as a whole."""
    return finding(code, member.name, message, pid=member.pid, remedy=remedy, path=path, flag=flag)


def line(opened: Descriptor, name: str) -> str | None:
    """Return what fdinfo says of descriptor `opened` under `name`, or None."""
    for text in opened.info.rest.split("\n"):
        key, colon, value = text.partition(":")
        if colon and key == name:
            return value.strip()
    return None
