"""What is taken for a standard stream, and what is not: in a child, since the streams are put on 0, 1 and 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent.parent
_PROGRAM = """
import os, sys
from perdure import errors
from perdure.agent import streams
try:
    streams.install(tuple(int(word) for word in sys.argv[1:]))
except errors.UsageError as error:
    print(error)
else:
    os.write(1, b"installed")
"""


def install(*descriptors: int) -> tuple[bytes, bytes]:
    """Return what the child said on its own stdout and on the one it was given."""
    ours, theirs = os.pipe()
    given = tuple(os.dup(theirs if each == -1 else each) for each in descriptors)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, given)],
        env={"PYTHONPATH": str(_ROOT / "src")},
        pass_fds=given,
        stdout=subprocess.PIPE,
        check=True,
    )
    for descriptor in (theirs, *given):
        os.close(descriptor)
    with os.fdopen(ours, "rb") as pipe:
        return done.stdout, pipe.read()


@pytest.fixture
def opened():
    held = []

    def opener(path, flags) -> int:
        held.append(os.open(path, flags))
        return held[-1]

    yield opener
    for descriptor in held:
        os.close(descriptor)


def test_pipes_files_null_and_terminals_are_streams(opened, tmp_path):
    (tmp_path / "file").write_text("")
    master, slave = os.openpty()
    assert install(opened("/dev/null", os.O_RDONLY), -1, opened(tmp_path / "file", os.O_WRONLY)) == (b"", b"installed")
    assert install(slave, -1, slave) == (b"", b"installed")
    os.close(master)
    os.close(slave)


def test_what_nohup_makes_of_stdin_is_one(opened):
    assert install(opened("/dev/null", os.O_WRONLY), -1, -1) == (b"", b"installed")


@pytest.mark.parametrize(
    ("path", "flags"),
    [
        ("/proc/self/status", os.O_RDONLY),
        ("/proc/self/comm", os.O_RDWR),
        ("/sys/kernel", os.O_RDONLY | os.O_DIRECTORY),
        ("/tmp", os.O_RDONLY | os.O_DIRECTORY),
        ("/dev/null", os.O_PATH),
        ("/etc/passwd", os.O_PATH),
    ],
)
def test_interfaces_of_the_kernel_folders_and_mere_names_are_none(opened, path, flags):
    said, passed = install(opened(path, flags), -1, -1)
    assert said.startswith(b"stdin ")
    assert passed == b""


def test_a_stream_has_to_go_the_right_way(opened, tmp_path):
    (tmp_path / "file").write_text("")
    null = opened("/dev/null", os.O_RDWR)
    assert install(null, opened(tmp_path / "file", os.O_RDONLY), -1)[0].startswith(b"stdout cannot be written")
    assert install(opened(tmp_path / "file", os.O_WRONLY), -1, -1)[0].startswith(b"stdin cannot be read")
