"""The view of this machine in which a trial restore runs: what is written there does not stay, and nobody is reached."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from children import exit_status, in_child

from perdure.checkpoint import sandbox

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_writes_are_dropped_and_paths_mean_what_they_meant(tmp_path):
    (tmp_path / "kept").write_text("before")
    (tmp_path / "gone").write_text("still here")
    (tmp_path / "scratch").mkdir(mode=0o700)
    shared = Path("/dev/shm") / f"perdure-test-{os.getpid()}"

    def inside() -> None:
        sandbox.enter(tmp_path / "scratch")
        assert (tmp_path / "kept").read_text() == "before"
        with open(tmp_path / "kept", "a") as handle:
            handle.write(" and after")
        assert (tmp_path / "kept").read_text() == "before and after"
        (tmp_path / "gone").unlink()
        (tmp_path / "new").write_text("x")
        shared.write_text("x")
        assert os.stat(tmp_path).st_mode == mode
        assert Path("/proc/self/stat").read_text().startswith(str(os.getpid()))

    mode = os.stat(tmp_path).st_mode
    assert exit_status(in_child(inside)) == 0
    assert (tmp_path / "kept").read_text() == "before"
    assert (tmp_path / "gone").read_text() == "still here"
    assert not (tmp_path / "new").exists()
    assert not shared.exists()
    assert not any(str(tmp_path) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


def test_nobody_is_reached_and_loopback_and_foreign_addresses_work(tmp_path):
    (tmp_path / "scratch").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def inside() -> None:
            sandbox.enter(tmp_path / "scratch")
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", port), timeout=5)
            with socket.create_server(("127.0.0.1", port)) as own, socket.create_connection(("127.0.0.1", port), timeout=5):
                own.accept()[0].close()
            with socket.create_server(("192.0.2.7", 80)):
                pass
            with pytest.raises(OSError, match="unreachable"):
                socket.create_connection(("192.0.2.1", 80), timeout=5)

        assert exit_status(in_child(inside)) == 0


def test_a_file_mounted_by_itself_is_there_for_reading(tmp_path):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for name in ("one,two:three", "file"):
        (tmp_path / name).write_text(name) if name == "file" else (tmp_path / name).mkdir()
    (tmp_path / "one,two:three" / "inner").write_text("inner")
    (tmp_path / "target").write_text("target")
    (tmp_path / "scratch").mkdir()

    def inside() -> None:
        assert libc.unshare(0x00020000) == 0  # mounts of this child's own
        assert libc.mount(None, b"/", None, ctypes.c_ulong(16384 | 1 << 18), None) == 0
        folder = os.fsencode(tmp_path / "one,two:three")
        assert libc.mount(folder, folder, None, ctypes.c_ulong(4096), None) == 0
        assert libc.mount(os.fsencode(tmp_path / "file"), os.fsencode(tmp_path / "target"), None, ctypes.c_ulong(4096), None) == 0
        sandbox.enter(tmp_path / "scratch")
        assert (tmp_path / "target").read_text() == "file"
        with pytest.raises(OSError, match="Read-only"):
            (tmp_path / "target").write_text("x")
        assert (tmp_path / "one,two:three" / "inner").read_text() == "inner"
        (tmp_path / "one,two:three" / "inner").write_text("changed")

    assert exit_status(in_child(inside)) == 0
    assert (tmp_path / "one,two:three" / "inner").read_text() == "inner"
