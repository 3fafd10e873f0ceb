"""`perdure doctor` as a command: what it prints, and what it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import syscalls

from perdure.base import privileges


@pytest.mark.criu
def test_a_fit_machine_is_told_which_criu_it_has(perdure):
    done = perdure("doctor", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert told["problems"] == 0
    assert told["criu"]["version"]
    assert told["init"]["kind"] in ("tini", "catatonit", "dumb-init")
    codes = {finding["code"] for finding in told["findings"]}
    assert {"criu-used", "host-init", "host-kernel", "memory-available", "host-state"} <= codes
    lines = perdure("doctor").stdout.splitlines()
    assert [line for line in lines if line.startswith("info  criu-used  criu: ")]


def test_a_criu_that_is_not_there_is_a_problem_with_its_remedy(perdure):
    done = perdure("doctor", "--json", env={"PERDURE_CRIU": "/nonexistent/criu"})
    told = json.loads(done.stdout)
    assert done.returncode == 4
    found = [finding for finding in told["findings"] if finding["code"] == "host-criu"]
    assert [finding["severity"] for finding in found] == ["problem"]
    assert "$PERDURE_CRIU" in found[0]["message"]
    assert "--bring-criu" in found[0]["remedy"]
    assert told["criu"] is None


def test_a_state_folder_that_cannot_be_written_is_a_problem(perdure):
    # Not even root can make a folder there.
    done = perdure("doctor", "--json", env={"PERDURE_STATE": "/proc/self/nothing"})
    assert done.returncode == 4
    assert "host-state-unwritable" in {finding["code"] for finding in json.loads(done.stdout)["findings"]}


SOURCE = Path(__file__).resolve().parents[2] / "src"


def _interpreter_for_anybody() -> str | None:
    """A Python of this version that any user can start: ours, or else the system's."""
    for path in (sys.executable, "/usr/bin/python3"):
        real = Path(os.path.realpath(path))
        asked = "import sys; print(*sys.version_info[:2])"
        if real.exists() and all(folder.stat().st_mode & 0o001 for folder in (*real.parents, *Path(path).parents, *SOURCE.parents)):
            answer = subprocess.run([path, "-c", asked], capture_output=True, text=True).stdout.split()
            if answer == [str(part) for part in sys.version_info[:2]]:
                return path
    return None


@pytest.mark.skipif(not privileges.is_root(), reason="needs root, to become somebody else")
def test_without_root_it_says_what_to_type():
    python = _interpreter_for_anybody()
    if python is None:
        pytest.skip(f"another user cannot start this Python: {os.path.realpath(sys.executable)}")
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": f"{SOURCE}:{sysconfig.get_paths()['purelib']}"}
    done = subprocess.run(
        [python, "-B", "-m", "perdure", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
    )
    assert done.returncode == 4, done.stderr
    found = [finding for finding in json.loads(done.stdout)["findings"] if finding["code"] == "host-privileges"]
    assert "sudo perdure" in found[0]["remedy"]


@pytest.mark.skipif(not (privileges.is_root() and syscalls.SUPPORTED), reason="needs root, and x86-64")
def test_where_nothing_may_be_mounted_it_says_what_a_workload_sees(perdure):
    """As in a container that AppArmor confines."""
    done = perdure("doctor", "--json", preexec_fn=lambda: syscalls.refuse("mount"))
    (found,) = [finding for finding in json.loads(done.stdout)["findings"] if finding["code"] == "host-no-own-proc"]
    assert found["severity"] == "warning"
    assert "Process()" in found["message"]
    assert "--security-opt apparmor=unconfined" in found["remedy"]
    done = perdure("doctor", "--json")
    assert "host-no-own-proc" not in {finding["code"] for finding in json.loads(done.stdout)["findings"]}


def test_options_of_bringing_belong_to_bringing(perdure, tmp_path):
    done = perdure("doctor", "--prefix", tmp_path / "criu")
    assert done.returncode == 2
    assert "--bring-criu" in done.stderr


@pytest.mark.criu
def test_where_one_works_nothing_is_brought(perdure, tmp_path):
    done = perdure("doctor", "--bring-criu", "--prefix", tmp_path / "criu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "works" in done.stderr
    assert not (tmp_path / "criu").exists()
