"""Shared by tests with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin import world


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries of the stand-in for NVIDIA's driver; skips where there is no compiler."""
    return world.build(tmp_path_factory.mktemp("standin"))
