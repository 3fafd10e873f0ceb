"""Could the pull see everybody's jobs? With PrivateData=jobs, sacct shows an ordinary user only their own, and says nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

_TIMEOUT_S = 20


def judge(users: Collection[str], me: str, admin_level: str | None) -> str | None:
    """Say that only one user's jobs were visible, if that is what it looks like.

    `users` are the names in the history, `me` who asked, `admin_level` what `ask_admin_level` found.
    """
    if admin_level in {"Operator", "Administrator"} or set(users) - {me} or (not users and admin_level is None):
        return None
    whose = f"Only your own jobs ({me}) were visible" if users else "No jobs at all were visible"
    why = {
        None: "does the site hide others' jobs (PrivateData=jobs)?",
        "None": "the site seems to hide others' jobs (PrivateData=jobs), and you are no operator.",
    }.get(admin_level, "does the site hide others' jobs (PrivateData=jobs)?")
    return f"{whose}: {why} Rates and verdicts for the whole cluster need: sacctmgr modify user {me} set adminlevel=Operator"


def ask_admin_level(user: str, *, sacct: str, environ: Mapping[str, str]) -> str | None:
    """Ask the sacctmgr that lies beside `sacct` for the administrative level of `user`: None, Operator, Administrator as text.

    Returns None when it cannot be asked or does not know.
    """
    program = Path(sacct).with_name("sacctmgr")
    if not os.access(program, os.X_OK):
        return None
    command = [str(program), "--noheader", "--parsable2", "show", "user", f"name={user}", "format=AdminLevel"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=dict(environ), timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
