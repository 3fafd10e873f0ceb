"""How many seats and workloads a user has: by locks and folders, so that nothing has to be remembered."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import errors
from perdure.agent import slots
from perdure.model.checkpoint import Owner

_ROOT = Path(__file__).resolve().parent.parent.parent
ALICE = Owner(uid=1000, gid=1000, groups=())
_HOLD = """
import sys
from pathlib import Path
from perdure.agent import slots
from perdure.model.checkpoint import Owner
with slots.taken(Path(sys.argv[1]), Path(sys.argv[1], "users", "1000"), Owner(uid=1000, gid=1000, groups=())):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_seat_counts_until_its_process_is_gone_however_it_went(tmp_path):
    user = tmp_path / "users" / "1000"
    assert slots.count(user) == 0
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)],
        env={"PYTHONPATH": str(_ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout.readline() == b"held\n"
        with slots.taken(tmp_path, user, ALICE):
            assert slots.count(user) == 2
        assert slots.count(user) == 1
        holder.kill()
        holder.wait()
    assert slots.count(user) == 0


def test_one_more_than_a_user_may_have_is_refused(tmp_path):
    user = tmp_path / "users" / "1000"
    with contextlib.ExitStack() as stack:
        for _ in range(slots.MOST_OF_A_USER):
            stack.enter_context(slots.taken(tmp_path, user, ALICE))
        with pytest.raises(errors.AgentUnavailable, match="256 workloads running"), slots.taken(tmp_path, user, ALICE):
            pass
        # Another user has their own.
        with slots.taken(tmp_path, tmp_path / "users" / "1001", Owner(uid=1001, gid=1001, groups=())):
            pass
    assert slots.count(user) == 0


def test_a_user_has_so_many_workloads_and_goes_on_with_known_ones(tmp_path):
    for number in range(slots.MOST_KNOWN):
        (tmp_path / "workloads" / f"w{number}").mkdir(parents=True)
    slots.require_room(tmp_path, "w7")
    for name in ("new", None):
        with pytest.raises(errors.Unsupported, match="2000 workloads"):
            slots.require_room(tmp_path, name)
    (tmp_path / "workloads" / "w7").rmdir()
    slots.require_room(tmp_path, "new")
    slots.require_room(tmp_path / "nobody", "new")
