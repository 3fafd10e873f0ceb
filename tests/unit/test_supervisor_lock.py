"""The lock of a supervisor."""

from __future__ import annotations

import resource

import pytest

from perdure import errors
from perdure.supervisor import lock


def test_one_that_cannot_be_written_is_no_bug(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(errors.OutputError, match=f"cannot write {tmp_path}/lock: "), lock.held(tmp_path / "lock", "a"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not lock.is_held(tmp_path / "lock")
