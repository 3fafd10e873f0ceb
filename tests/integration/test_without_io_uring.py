"""`perdure without-io-uring`: what it starts does not find io_uring, and is otherwise as if started by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from engine import Workload

OURS = [sys.executable, "-m", "perdure", "without-io-uring"]
ASKS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def ring():
    return libc.syscall(ctypes.c_long(425), ctypes.c_long(8), ctypes.create_string_buffer(120)), ctypes.get_errno()
print(ring(), flush=True)
if os.fork() == 0:
    print(ring(), flush=True)
    os._exit(0)
os.wait()
raise SystemExit(7)
"""
DENIED = "(-1, 38)"


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_it_is_not_found_by_the_program_nor_by_what_that_starts(separator):
    done = subprocess.run([*OURS, *separator, sys.executable, "-c", ASKS], capture_output=True, text=True)
    assert done.stdout.splitlines() == [DENIED, DENIED]
    assert done.stderr == ""
    assert done.returncode == 7


def test_signals_are_as_they_were():
    asked = ["grep", "^Sig[IC]", "/proc/self/status"]
    assert subprocess.check_output([*OURS, *asked]) == subprocess.check_output(asked)


AS_A_USER = """
import os, sys
from perdure.base import syscalls
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(syscalls.deny(syscalls.IO_URING_SETUP), flush=True)
os.execv("/usr/bin/python3", ["python3", "-c", sys.argv[1]])
"""


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/usr/bin/python3"), reason="needs root, and the system's Python")
def test_an_ordinary_user_gives_up_gaining_rights_for_it():
    program = "print([line.split()[1] for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'Seccomp:'))], flush=True)"
    done = subprocess.run([sys.executable, "-c", AS_A_USER, program + "\n" + ASKS], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True", "['1', '2']", DENIED, DENIED], done.stderr


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["nonsuch-command"], 127, "command not found"),
        (["/etc/passwd"], 126, "cannot be run"),
        ([], 2, "there is no command"),
    ],
)
def test_what_cannot_be_started_is_told_as_by_a_shell(command, status, said):
    done = subprocess.run([*OURS, "--", *command], capture_output=True, text=True)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr


GOES_ON = """
import ctypes, threading, time
libc = ctypes.CDLL(None, use_errno=True)
threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
number = 0
while True:
    number += 1
    told = libc.syscall(ctypes.c_long(425), ctypes.c_long(8), ctypes.create_string_buffer(120)), ctypes.get_errno()
    print(f"{number} {told}\\n", end="", flush=True)
    time.sleep(0.01)
"""


@pytest.mark.criu
def test_it_stays_so_in_every_life(tmp_path: Path):
    (tmp_path / "goes_on.py").write_text(GOES_ON)
    with Workload(tmp_path, *OURS, "--", sys.executable, "-u", str(tmp_path / "goes_on.py")) as workload:
        for at in (5, 40):
            workload.wait_for(f"\n{at} ")
            workload.cycle()
        workload.wait_for("\n81 ")
        assert {line.split(maxsplit=1)[1] for line in workload.lines()[:80]} == {DENIED}
