"""An ordinary user for tests, whom no password file knows, and a folder of that user's which every user can come to."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.model.checkpoint import Owner

USER = Owner(uid=12345, gid=12346, groups=(12346, 12347))


def _interpreter() -> str | None:
    """A Python that `USER` may run: the one of these tests may lie in root's home."""
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run([candidate, "-c", ""], user=USER.uid, group=USER.gid, extra_groups=[], check=True, capture_output=True)
            return candidate
    return None


PYTHON = (_interpreter() if os.geteuid() == 0 else None) or sys.executable

OTHER = Owner(uid=12355, gid=12356, groups=())

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for others")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of `USER` below one of root's that everybody can enter: pytest's own folders are root's alone."""
    above = Path(tempfile.mkdtemp(prefix="perdure-owner-", dir="/var/tmp"))
    above.chmod(0o755)
    folder = above / "home"
    folder.mkdir(mode=0o700)
    os.chown(folder, USER.uid, USER.gid)
    yield folder
    shutil.rmtree(above)
