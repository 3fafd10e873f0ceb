"""Each application: checkpointed mid-way, killed with -9, brought back; what it leaves is what an undisturbed run leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from apps import harness
from apps.applications import APPLICATIONS
from apps.harness import Application


def _marks(application: Application) -> list:
    lack = harness.lack(application)
    return [pytest.mark.criu, *([] if application.fast else [pytest.mark.apps]), *([pytest.mark.skip(reason=lack)] if lack else [])]


@pytest.mark.parametrize("application", [pytest.param(a, id=a.name, marks=_marks(a)) for a in APPLICATIONS])
def test_survives(application: Application, tmp_path: Path) -> None:
    expected = harness.undisturbed(application, tmp_path / "alone")
    harness.prepare(application, tmp_path / "kept")
    managed = harness.Managed(tmp_path / "kept", application.name, harness.command(application), ("--every", "never", *application.options))
    try:
        managed.start()
        managed.wait_lines(application.lines, application.progress_file)
        made = managed.checkpoint()
        lines = managed.log().count(b"\n")
        if application.progress_file is None:
            # What was written after the checkpoint is written again by the second life, and must stand there once.
            managed.wait_lines(lines + 1)
        managed.kill_all()
        harness.hurry(managed.folder)
        managed.start()
        assert managed.finish() == 0, managed.said()
        assert application.shown(managed.output()) == application.shown(expected)
        for name in application.outputs:
            assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
        assert made["id"].startswith(f"{application.name}@1.")
        assert f"goes on from {made['id']}" in managed.said()
    finally:
        managed.close()
