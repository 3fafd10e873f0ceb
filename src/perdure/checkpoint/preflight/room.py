"""Whether this machine can make a checkpoint of so many bytes: rights, CRIU, memory and disks. Called by `save`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perdure import errors
from perdure.base import privileges, units
from perdure.checkpoint import staging
from perdure.checkpoint.criu import prefix
from perdure.checkpoint.preflight.codes import finding
from perdure.checkpoint.preflight.plan import Plan
from perdure.model.finding import Finding

TESTED_CRIU = ((4, 2, 1), (4, 2))
"""First version, and last series, that the engine was tried with."""

_NEEDED = ("CAP_SYS_ADMIN", "CAP_SYS_PTRACE")


def check(plan: Plan, expected_bytes: int) -> Iterator[Finding]:
    """Yield what this machine lacks for a checkpoint of `expected_bytes`."""
    yield from rights()
    if plan.criu is None:
        yield finding("host-criu", "criu", plan.criu_refusal or "none was looked for", remedy=plan.criu_remedy)
    else:
        yield from version(plan.criu.version)
    yield from images("memory-images", expected_bytes, plan.staging, plan.disks)


def rights() -> Iterator[Finding]:
    """Yield what this process may not do and CRIU needs."""
    if not privileges.is_root():
        yield finding("host-privileges", "user", "this is not root", remedy="run it as root: sudo perdure …")
        return
    lacking = privileges.missing(_NEEDED)
    if lacking:
        yield finding("host-privileges", ", ".join(lacking), "this root lacks these capabilities", flag=",".join(lacking))


def version(text: str) -> Iterator[Finding]:
    """Yield a finding when version `text` of CRIU is outside the tested range."""
    numbers = prefix.version_of(text)
    first, last = TESTED_CRIU
    if numbers and not (numbers >= first and numbers[: len(last)] <= last):
        tested = f"{'.'.join(map(str, first))} to {'.'.join(map(str, last))}.x"
        yield finding("host-criu-untested", f"criu {text}", f"tested are {tested}", flag=text)


def images(code: str, wanted_bytes: int, setting: str | None, disks: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding with `code` when images of `wanted_bytes` fit neither where `setting` says, nor in memory, nor on one of `disks`."""
    try:
        staging.choose(wanted_bytes, setting=setting, disks=map(Path, disks))
    except errors.CheckpointRefused as refused:
        yield finding(code, units.format_size(wanted_bytes), str(refused), remedy=refused.hint, flag="--staging")
