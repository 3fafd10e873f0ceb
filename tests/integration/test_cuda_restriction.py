"""The helper leaves a control group that keeps it from devices. With a real one, over a device that every machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEVICES = Path("/sys/fs/cgroup/devices")
SCRIPT = """
import os, sys
from perdure.checkpoint.cuda import restriction
with open(sys.argv[1] + "/cgroup.procs", "w") as handle:
    handle.write("0")
paths = ["/dev/null", "/dev/zero"]
before = restriction.is_restricted(paths)
restriction.leave()
print(before, restriction.is_restricted(paths))
"""


@pytest.fixture
def group():
    if not os.access(DEVICES / "cgroup.procs", os.W_OK):
        pytest.skip("needs root and the control groups of version 1 for devices")
    made = DEVICES / f"perdure-test-{os.getpid()}"
    try:
        made.mkdir()
        (made / "devices.deny").write_text("c 1:5 rwm")
    except OSError as error:
        pytest.skip(f"control groups for devices cannot be made here: {error}")
    yield made
    made.rmdir()


def test_a_restricted_helper_leaves_for_where_all_devices_are(group):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(group)], capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.split() == ["True", "False"], done.stderr
