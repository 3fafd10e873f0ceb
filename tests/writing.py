"""A process that holds files open as it is told, for tests of what is recorded and carried."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.checkpoint.outputs import rules

ROOT = Path(__file__).resolve().parent.parent

_HOLD = """
import ctypes, json, mmap, os, sys
kept = []
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for path, flags, seek, size in json.loads(sys.argv[1]):
    number = os.open(path, flags, 0o640)
    os.lseek(number, seek, 0)
    if size:
        # Not through the module: that keeps a descriptor of its own.
        libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, 1, number, ctypes.c_long(0)); os.close(number)
    else:
        kept.append(number)
print("up", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(*opened: tuple[str, int, int, int]) -> Iterator[int]:
    """Run a process that has opened each (path, flags) and gone to an offset, or mapped so many bytes and closed it; yield its PID."""
    argument = json.dumps([list(each) for each in opened])
    command = [sys.executable, "-I", "-c", _HOLD, argument]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"up\n"
        yield process.pid


@contextlib.contextmanager
def lasting_folder() -> Iterator[Path]:
    """Yield an empty folder that is no folder for temporary files: what lies there goes along only by its own merits."""
    if rules.is_volatile(f"{ROOT}/"):
        pytest.skip("the checkout lies in a folder for temporary files")
    (ROOT / ".pytest_cache").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / ".pytest_cache") as folder:
        yield Path(folder)
