"""A ledger on a file system that is really full: nothing runs, and what ran is not lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
UNSHARE = ["unshare", "--mount", "--propagation=private"]

JOB = """
import sys
from pathlib import Path
from perdure import errors
from perdure.effects import Ledger

folder, ran = Path(sys.argv[1]), []

def fill():
    with open(folder / "filler", "wb", buffering=0) as handle:
        try:
            while handle.write(b"x" * 512):
                pass
        except OSError as error:
            assert error.errno == 28, error

with Ledger(folder / "effects.db", lease_s=0.3, patience_s=0) as ledger:
    ledger.once("before", lambda: None)
    fill()
    try:
        ledger.once("a", lambda: ran.append("a"), inputs="a" * 100_000)
        raise SystemExit("the step ran without a record of it")
    except errors.LedgerUnavailable as error:
        assert error.exit_status == 75 and ran == [], (error, ran)
    (folder / "filler").unlink()

    def step():
        ran.append("b")
        fill()
        return {"id": 1, "text": "y" * 60_000}

    try:
        ledger.once("b", step)
        raise SystemExit("it was recorded on a full disk")
    except errors.EffectUnrecorded as error:
        assert error.result["id"] == 1
    (folder / "filler").unlink()
    assert ledger.once("b", step, wait_s=120)["id"] == 1
    ledger.once("a", lambda: ran.append("a"), inputs="a" * 100_000)
assert ran == ["b", "a"], ran
"""


def test_without_room_nothing_runs_and_what_ran_is_not_lost(tmp_path: Path) -> None:
    if os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root and mount namespaces")
    full = tmp_path / "full"
    full.mkdir()
    script = 'mount -t tmpfs -o size=512k,mode=700 tmpfs "$0" && exec "$@"'
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)}
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script, str(full), sys.executable, "-c", JOB, str(full)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
