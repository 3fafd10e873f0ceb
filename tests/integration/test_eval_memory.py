"""The fault that exhausts a workload's memory ends the workload, however small it is, and never whoever takes the memory."""

from __future__ import annotations

import os
import subprocess

import pytest

from perdure import errors
from perdure.evaluation import memory_group

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups")


def test_a_program_that_is_smaller_than_what_takes_its_memory_is_ended():
    with subprocess.Popen(["/bin/sleep", "600"]) as small:
        try:
            said = memory_group.exhaust((small.pid,))
        except errors.Unsupported as error:
            if "can be made here" not in str(error):
                raise
            pytest.skip(str(error))
        finally:
            small.kill()
    assert "ended 1 processes" in said
