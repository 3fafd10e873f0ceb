"""Acting as another user on the file system, against the real kernel. Needs root."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from owners import home, needs_root

from perdure import errors
from perdure.base import acting
from perdure.model.checkpoint import Owner

__all__ = ["home"]

NOBODY = Owner(uid=54321, gid=54321, groups=(54322,))


def ids():
    fields = dict(line.split(":", 1) for line in Path("/proc/thread-self/status").read_text().splitlines())
    return [int(fields[name].split()[3]) for name in ("Uid", "Gid")], fields["Groups"].split(), fields["CapEff"].strip()


@needs_root
def test_files_are_judged_by_the_owners_rights_and_by_ones_own_again_afterwards(home):
    secret = home.parent / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    before = ids()
    with acting.as_owner(NOBODY):
        assert ids()[:2] == ([54321, 54321], ["54322"])
        with pytest.raises(PermissionError):
            secret.read_text()
        with pytest.raises(PermissionError):
            (home.parent / "new").write_text("")
    assert ids() == before
    assert secret.read_text() == "root's"


@needs_root
def test_what_the_owner_makes_is_the_owners(home):
    home.chmod(0o777)
    with acting.as_owner(NOBODY):
        (home / "made").write_text("")
    there = (home / "made").stat()
    assert (there.st_uid, there.st_gid) == (54321, 54321)


@needs_root
def test_a_supplementary_group_counts(home):
    shared = home.parent / "shared"
    shared.write_text("ours")
    os.chown(shared, 0, 54322)
    shared.chmod(0o640)
    with acting.as_owner(NOBODY):
        assert shared.read_text() == "ours"
    with acting.as_owner(Owner(uid=54321, gid=54321, groups=())), pytest.raises(PermissionError):
        shared.read_text()


@needs_root
def test_an_error_inside_brings_ones_own_rights_back():
    before = ids()
    with pytest.raises(ZeroDivisionError), acting.as_owner(NOBODY):
        raise ZeroDivisionError
    assert ids() == before


@needs_root
def test_inside_ones_own_rights_can_be_had_for_a_while():
    before = ids()
    with acting.as_owner(NOBODY):
        with acting.as_self():
            assert ids() == before
            with acting.as_owner(Owner(uid=54399, gid=1, groups=())):
                assert ids()[0] == [54399, 1]
        assert ids()[0] == [54321, 54321]
    with acting.as_self():
        assert ids() == before


@needs_root
def test_another_thread_stays_what_it_is():
    before = ids()
    seen = []
    inside, looked = threading.Event(), threading.Event()

    def act():
        with acting.as_owner(NOBODY):
            inside.set()
            looked.wait(60)
            seen.append(ids()[0])

    thread = threading.Thread(target=act)
    thread.start()
    assert inside.wait(60)
    assert ids() == before
    looked.set()
    thread.join()
    assert seen == [[54321, 54321]]


def test_nobody_changes_nothing():
    before = ids()
    with acting.as_owner(None):
        assert ids() == before


@needs_root
def test_without_the_right_it_is_refused_and_nothing_has_changed():
    script = """
import os
from perdure import errors
from perdure.base import acting
from perdure.model.checkpoint import Owner
os.setgroups([]); os.setgid(7); os.setuid(7)
for groups in ((), (5,)):
    try:
        with acting.as_owner(Owner(uid=8, gid=7, groups=groups)):
            raise SystemExit("it was let")
    except errors.EnvironmentUnfit as error:
        print(error)
print([line.split()[1:] for line in open("/proc/self/status") if line.startswith(("Uid", "Gid"))])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "may not act as user 8" in done.stdout
    assert "may not take on the groups" in done.stdout
    assert done.stdout.splitlines()[-1] == "[['7', '7', '7', '7'], ['7', '7', '7', '7']]"


@needs_root
def test_who_cannot_come_back_does_not_go_on():
    script = """
import os
from perdure.base import acting
from perdure.model.checkpoint import Owner
with acting.as_owner(Owner(uid=8, gid=7, groups=())):
    os.setresuid(8, 8, 8)
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -6, done
    assert "went on" not in done.stdout
    assert "cannot come back" in done.stderr


def test_an_unknown_machine_is_refused(monkeypatch):
    monkeypatch.setattr(acting.platform, "machine", lambda: "abacus")
    with pytest.raises(errors.EnvironmentUnfit, match="abacus"), acting.as_owner(Owner(uid=1, gid=1, groups=(77,))):
        pass


@needs_root
def test_a_new_keyring_holds_nothing_of_the_old():
    script = """
import ctypes, os, platform
from perdure.base import acting
number = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(platform.machine())
libc = ctypes.CDLL(None, use_errno=True)
def keyring():
    return number and libc.syscall(number[1], 0, ctypes.c_int(-3), 0)
before = keyring()
acting.leave_keyring()
print(before, keyring())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    if before in ("None", "-1"):
        pytest.skip("no keyrings here")
    assert after not in ("-1", before)
