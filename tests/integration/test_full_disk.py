"""A disk that is really full: one line that says so, the right status, and nothing half-written left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
UNSHARE = ["unshare", "--mount", "--propagation=private"]


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    command = [
        sys.executable,
        "-m",
        "perdure",
        "history",
        "simulate",
        "--seed",
        "1",
        "--gpus",
        "256",
        "--days",
        "30",
        "-o",
        folder / "fleet",
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return folder / "fleet" / "sacct.txt"


@pytest.mark.parametrize(
    "command",
    [
        "history import {history} -o {full}/out",
        "history anonymise {history} -o {full}/out",
        "history simulate --gpus 256 --days 30 --force -o {full}",
        "advise {history} --html {full}/out",
        "advise {history} --csv {full}/out",
        "advise {history} --parquet {full}/out",
    ],
)
def test_a_full_disk_is_said_in_one_line_and_nothing_is_left(history, tmp_path, command):
    if os.geteuid() != 0 or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root and mount namespaces")
    full = tmp_path / "full"
    full.mkdir()
    words = command.format(history=history, full=full).split()
    script = 'mount -t tmpfs -o size=12k tmpfs "$0" && "$@" -q; status=$?; find "$0" -type f; exit $status'
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "HOME": str(tmp_path)}
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script, full, sys.executable, "-m", "perdure", *words], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 20, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "No space left on device" in done.stderr
    assert "free some space" in done.stderr
    assert str(full) not in done.stdout, "a file was left"
    assert not list(Path(tmp_path).glob(".tmp*"))
