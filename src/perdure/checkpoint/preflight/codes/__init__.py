"""Every code that a preflight finding can have: the one list, which the reference page is generated from.

A code is stable: programs decide on it. Its severity and its remedy stand here, so that they are the same wherever it is found.
"""

from __future__ import annotations

from perdure.base import text
from perdure.checkpoint.preflight.codes import files, gpu, keeping, network, processes, resources, restoring
from perdure.checkpoint.preflight.codes.code import Code, Group
from perdure.model.finding import Finding

__all__ = ["CODES", "GROUPS", "Code", "Group", "finding"]

GROUPS: tuple[Group, ...] = (
    files.GROUP,
    network.GROUP,
    processes.GROUP,
    resources.GROUP,
    gpu.SAVING,
    restoring.GROUP,
    gpu.RESTORING,
    gpu.MACHINE,
    keeping.GROUP,
)

CODES: dict[str, Code] = {code.name: code for group in GROUPS for code in group.codes}


def finding(
    name: str,
    subject: str,
    message: str,
    *,
    pid: int | None = None,
    fd: int | None = None,
    path: str | None = None,
    flag: str | None = None,
    remedy: str | None = None,
) -> Finding:
    """Return a finding with code `name` about `subject`.

    `message` says what is there; `remedy` replaces the code's own where something better is known.
    """
    code = CODES[name]
    return Finding(
        code=name,
        severity=code.severity,
        subject=text.visible(subject),
        message=text.visible(message),
        remedy=text.visible(remedy or code.remedy) or None,
        pid=pid,
        fd=fd,
        path=None if path is None else text.storable(path),
        flag=None if flag is None else text.visible(flag),
    )
