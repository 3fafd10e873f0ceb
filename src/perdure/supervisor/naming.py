"""What a workload is called when nobody says, and whether a name still means the same command. Pure. Called by `run`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

from perdure import errors

_RUNNERS = re.compile(r"(python|pypy|node|ruby|perl|Rscript|bash|sh|dash|zsh|ksh|java|mpirun|mpiexec|env|nice|stdbuf|time)[\d.]*")
"""Programs that run another: that one's name says more."""


def derive(command: Sequence[str], working_directory: str) -> str:
    """Return a name for `command` in `working_directory`: readable, and the same whenever the same is run at the same place."""
    digest = hashlib.blake2b(b"\0".join(os.fsencode(part) for part in (*command, working_directory)), digest_size=4).hexdigest()
    return f"{_slug(command)}-{digest}"


def _slug(command: Sequence[str]) -> str:
    chosen = command[0]
    if _RUNNERS.fullmatch(os.path.basename(chosen)):
        for part in command[1:]:
            if not part.startswith("-"):
                chosen = part if not re.search(r"[\s;|&]", part) else chosen
                break
    base = os.path.basename(chosen.rstrip("/"))
    stem = base.rpartition(".")[0] or base
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:40].strip("-._")
    return slug or "workload"


def require_same(name: str, known: Sequence[str], known_directory: str, command: Sequence[str], working_directory: str) -> None:
    """Raise `errors.UsageError` when the workload `name` is another command than `command`, or the same in another folder."""
    if tuple(command) == tuple(known) and working_directory == known_directory:
        return
    what = "another command" if tuple(command) != tuple(known) else f"the same command in {known_directory}"
    raise errors.UsageError(
        f"{name} is {what}: {' '.join(known)[:200]}", hint="give this one another --name, or start the name over with --fresh"
    )
