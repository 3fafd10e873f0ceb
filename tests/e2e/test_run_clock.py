"""A clock that is set while a workload is kept: by hand, or by a time server that was away for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from supervised import Site, lines, wait_for

pytestmark = pytest.mark.criu

# Python reads this before anything else, in the supervisor, in its saver and in every command. The time of day is all that is set: the
# clock that counts from the boot goes on, as it does on a machine.
_SETTABLE = """
import os, time
_path = os.environ.get("TEST_CLOCK")
if _path:
    _time_ns = time.time_ns
    def _now_ns():
        try:
            with open(_path) as handle:
                return _time_ns() + int(handle.read() or 0)
        except FileNotFoundError:
            return _time_ns()
    time.time_ns = _now_ns
    time.time = lambda: _now_ns() / 1e9
"""
DAY_NS = 86_400 * 1_000_000_000


class Clock:
    """The time of day of all that `perdure` runs."""

    def __init__(self, site: Site, folder: Path) -> None:
        module = folder / "clock"
        module.mkdir()
        (module / "sitecustomize.py").write_text(_SETTABLE)
        self._path = folder / "offset"
        site.environment["PYTHONPATH"] += f":{module}"
        site.environment["TEST_CLOCK"] = str(self._path)

    def set(self, days: int) -> None:
        waiting = self._path.with_suffix(".new")
        waiting.write_text(str(days * DAY_NS))
        waiting.rename(self._path)


def newest(site: Site) -> int:
    """Sequence of the newest checkpoint of the newest life."""
    names = site.manifests("a")
    return int(names[-1].partition(".")[2]) if names else 0


def known(site: Site) -> int:
    """Sequence of the checkpoint that `perdure ps` names."""
    found = site.ps("a")["last_checkpoint"]
    return int(found["id"].rpartition(".")[2]) if found else 0


def test_checkpoints_and_the_life_go_on_while_the_clock_jumps(site, tmp_path):
    clock = Clock(site, tmp_path)
    run = ["run", "--name", "a", "--every", "1s", "--end-time", "2100-01-01T00:00", "--", "python3", "count.py", "20000", "0.05"]
    first = site.start(*run)
    wait_for(lambda: newest(site) >= 1)
    for days in (30, -30, 3000, 0):
        clock.set(days)
        before = newest(site)
        # Two more: the first may have been under way. And known to the supervisor, which is a moment later.
        wait_for(lambda before=before: known(site) >= before + 2, what=f"for a checkpoint after the clock was set by {days} days")
        found = site.ps("a")
        assert found["state"] == "running"
        assert found["epoch"] == 1
        # By the clock of whoever is asked the last one is recent: the supervisor has the same clock.
        assert -5 <= found["last_checkpoint"]["age_s"] < 3600
    assert first.poll() is None
    site.kill_all(first)


@pytest.mark.parametrize("days", [400, -400])
def test_the_newest_checkpoint_is_the_last_one_made_whatever_the_clock_said(site, tmp_path, days):
    clock = Clock(site, tmp_path)
    run = ["run", "--name", "a", "--every", "1s", "--", "python3", "count.py", "4000", "0.05"]
    first = site.start(*run)
    wait_for(lambda: newest(site) >= 1)
    clock.set(days)
    before = newest(site)
    wait_for(lambda: newest(site) >= before + 2)
    site.kill_all(first)
    last = newest(site)
    assert last >= before + 2
    clock.set(0)
    site.hurry()
    again = site.run(*run)
    assert again.returncode == 0, again.stderr.decode()
    assert f"goes on from a@1.{last}, ".encode() in again.stderr
    assert site.log("a") == lines(4000)
