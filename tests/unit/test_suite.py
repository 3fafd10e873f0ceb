"""The suite itself: its tests are called the same in every process that collects them, or they cannot be shared among several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Another process, three hours later, whose sets are in another order.
COLLECTING = """
import sys, time
import pytest
now = time.time
time.time = lambda: now() + 10_800
sys.exit(pytest.main(["--collect-only", "-n0", "-m", "", "-p", "no:cacheprovider"]))
"""


def test_tests_are_called_the_same_whenever_they_are_collected(request):
    others = subprocess.run(
        [sys.executable, "-c", COLLECTING],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert others.returncode == 0, others.stdout[-2000:] + others.stderr[-2000:]
    names = set(others.stdout.splitlines())
    assert len(names) > 1000
    assert {item.nodeid for item in request.session.items} - names == set()
