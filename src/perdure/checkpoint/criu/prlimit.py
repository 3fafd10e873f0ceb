"""The preloaded prlimit(): when it is needed, and where it is or can be made. Called by `locate`, `prefix` and `doctor`.

Without CAP_SYS_RESOURCE, as in many containers, the kernel does not tell even root the resource limits of another user's task, and
CRIU's dump ends with ``Can't get rlimit 0: Operation not permitted``. `prlimit.c` answers such questions from /proc.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from perdure import errors
from perdure.base import files, privileges

SOURCE = Path(__file__).with_name("prlimit.c")


def is_needed() -> bool:
    """Tell whether this process lacks the capability that CRIU's own prlimit() needs."""
    return bool(privileges.missing(["CAP_SYS_RESOURCE"]))


def name() -> str:
    """Return the library's file name: it changes with the source, so that an old one is never used."""
    digest = hashlib.blake2s(SOURCE.read_bytes(), digest_size=4).hexdigest()
    return f"perdure-prlimit-{os.uname().machine}-{digest}.so"


def compiler() -> str | None:
    """Return the path of a C compiler, or None."""
    return next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), None)


def build(folder: Path) -> Path:
    """Compile the library into `folder` and return its path.

    Raises `errors.EnvironmentUnfit` without a C compiler or its library's headers, `errors.OutputError` when `folder` cannot be written.
    """
    found = compiler()
    if found is None:
        raise errors.EnvironmentUnfit("there is no C compiler to make the prlimit library with", hint="apt-get install gcc libc6-dev")
    target = folder / name()
    with files.replacing(target, mode=0o755) as temporary:
        done = subprocess.run(
            [found, "-O2", "-fPIC", "-shared", "-Wl,-z,now", "-o", str(temporary), str(SOURCE)],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-200:])
            raise errors.EnvironmentUnfit(f"cannot compile {SOURCE.name}: {reason}", hint="apt-get install gcc libc6-dev")
    return target
