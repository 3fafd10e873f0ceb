"""Where workloads are kept: root's own folders, and those of each ordinary user below them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from perdure import errors
from perdure.supervisor import quantities
from perdure.supervisor.folders import Folders
from perdure.supervisor.place import Place


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_those_of_a_user_lie_below_and_are_entered_but_not_read(tmp_path):
    old = os.umask(0o077)
    try:
        folders = Folders(tmp_path / "state", tmp_path / "run").of_user(4711)
        folders.make("w")
        folders.make("w")
    finally:
        os.umask(old)
    assert modes(tmp_path) == {
        "state": 0o700,
        "state/users": 0o700,
        "state/users/4711": 0o700,
        "state/users/4711/cache": 0o700,
        "state/users/4711/workloads": 0o700,
        "state/users/4711/workloads/w": 0o700,
        "run": 0o755,
        "run/users": 0o711,
        "run/users/4711": 0o711,
        "run/users/4711/w": 0o711,
    }


def test_two_users_share_nothing_but_what_leads_there(tmp_path):
    first, second = (Folders(tmp_path / "state", tmp_path / "run").of_user(uid) for uid in (1, 2))
    for name in ("database", "cache"):
        assert getattr(first, name) != getattr(second, name)
    for name in ("workload", "log", "lock", "live", "socket", "epoch_file"):
        assert getattr(first, name)("w") != getattr(second, name)("w")


@pytest.mark.parametrize("shared", ["state", "state/users", "state/users/4711", "run", "run/users", "run/users/4711"])
def test_a_folder_that_others_can_change_is_refused(tmp_path, shared):
    (tmp_path / shared).mkdir(parents=True)
    (tmp_path / shared).chmod(0o777)
    with pytest.raises(errors.OutputError, match="can be changed by others"):
        Folders(tmp_path / "state", tmp_path / "run").of_user(4711).make("w")


def test_a_link_among_them_is_refused(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state/users").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.OutputError, match="is a link, which"):
        Folders(tmp_path / "state", tmp_path / "run").of_user(4711).make("w")


class TestLease:
    """The setting `lease-ttl`."""

    def test_it_is_a_duration_of_at_most_five_minutes(self):
        assert quantities.lease_ttl_s(None) is None
        assert quantities.lease_ttl_s("15s") == 15.0
        assert quantities.lease_ttl_s("5m") == 300.0
        for wrong in ("301s", "0", "soon", "15"):
            with pytest.raises(errors.QuantityError, match="lease-ttl"):
                quantities.lease_ttl_s(wrong)

    def test_it_says_that_other_machines_reach_the_store(self, tmp_path):
        shared = Place(url=str(tmp_path), key_file=None, cache="/nowhere", threads=1, lease_ttl_s=15.0)
        assert not shared.is_here
        assert Place(url="/dev/shm/none", key_file=None, cache="/nowhere", threads=1).is_here
