"""Images handed to CRIU as it asks for them: what goes over the socket, and real restores of one process and of many."""

from __future__ import annotations

import array
import contextlib
import gc
import os
import shutil
import socket
import struct
import tempfile
import threading
from pathlib import Path

import pytest
from engine import Workload

from perdure import errors
from perdure.checkpoint import tree
from perdure.checkpoint.restore import RestoreOptions, restore
from perdure.checkpoint.serving import Server, fits

LENGTH = struct.Struct("<I")


class Asking:
    """CRIU's side of the socket."""

    def __init__(self, images: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(120)
        self.socket.connect(str(images / "streamer-serve.sock"))

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, name: bytes) -> int | None:
        """Ask for an image: a pipe's reading end, or None."""
        request = bytes([0x0A, len(name)]) + name
        self.socket.sendall(LENGTH.pack(len(request)) + request)
        (length,) = LENGTH.unpack(self.socket.recv(4, socket.MSG_WAITALL))
        reply = self.socket.recv(length, socket.MSG_WAITALL)
        if reply == b"\x08\x00":
            return None
        assert reply == b"\x08\x01"
        ours, theirs = os.pipe()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs]))
        self.socket.sendmsg([b"\0"], [rights])
        os.close(theirs)
        return ours

    def read(self, name: bytes) -> bytes | None:
        pipe = self.ask(name)
        if pipe is None:
            return None
        with os.fdopen(pipe, "rb") as handle:
            return handle.read()


@pytest.fixture
def short():
    """A folder whose path leaves room in a socket's address, as the folders of the product do."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def images(short):
    folder = short / "images"
    folder.mkdir(mode=0o700)
    (folder / "small.img").write_bytes(b"small")
    (folder / "large.img").write_bytes(os.urandom(700_000))
    (folder / "empty.img").write_bytes(b"")
    return folder


def parts(content: bytes):
    """A content in pieces of odd sizes."""

    def read():
        for start in range(0, len(content), 100_003):
            yield [memoryview(content[start : start + 50_001]), memoryview(b""), memoryview(content[start + 50_001 : start + 100_003])]

    return read


def test_files_and_contents_are_handed_out_and_what_is_missing_is_said(images):
    pages = os.urandom(3_000_000)
    with Server(images, {"pages-1.img": parts(pages), "none.img": parts(b"")}) as server, Asking(images) as client:
        assert client.read(b"small.img") == b"small"
        assert client.read(b"missing.img") is None
        assert client.read(b"empty.img") == b""
        assert client.read(b"none.img") == b""
        # Several are open at once, and read in another order.
        first, second, third = (client.ask(name) for name in (b"pages-1.img", b"large.img", b"small.img"))
        for pipe, expected in ((third, b"small"), (second, (images / "large.img").read_bytes()), (first, pages)):
            with os.fdopen(pipe, "rb") as handle:
                assert handle.read() == expected
    assert server.problem is None
    assert not (images / "streamer-serve.sock").exists()


@pytest.mark.parametrize("name", [b"../secret", b"/etc/passwd", b"..", b".", b"", b"link.img", b"\xff\xfe", b"streamer-serve.sock"])
def test_nothing_but_images_of_the_folder_is_handed_out(images, name):
    (images.parent / "secret").write_bytes(b"secret")
    (images / "link.img").symlink_to("../secret")
    with Server(images, {}), Asking(images) as client, contextlib.suppress(OSError, struct.error):  # or the talk is over
        assert client.read(name) is None


@pytest.mark.parametrize("said", [b"", b"\xff\xff\xff\xff", LENGTH.pack(3) + b"\x0a\x7fa", LENGTH.pack(0), LENGTH.pack(9) + b"ab"])
def test_a_client_that_talks_nonsense_or_goes_ends_the_serving_and_nothing_more(images, said):
    with Server(images, {}) as server, Asking(images) as client:
        client.socket.sendall(said)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.socket.recv(10) == b""
    assert server.problem is None


def test_one_that_nobody_asks_is_left_at_once_and_a_reader_that_goes_stops_its_sender(images):
    with Server(images, {}):
        pass
    begun = threading.Event()

    def endless():
        begun.set()
        while True:
            yield [memoryview(bytes(1 << 20))]

    with Server(images, {"pages-1.img": endless}) as server, Asking(images) as client:
        pipe = client.ask(b"pages-1.img")
        assert begun.wait(120)
        os.close(pipe)
    assert server.problem is None


def test_what_fails_in_a_content_ends_its_pipe_and_is_kept(images):
    def damaged():
        yield [memoryview(b"good")]
        raise errors.StoreCorrupt("packs/1 is damaged", object_key="packs/1")

    with Server(images, {"pages-1.img": damaged}) as server, Asking(images) as client:
        assert client.read(b"pages-1.img") == b"good"
    assert isinstance(server.problem, errors.StoreCorrupt)


def test_what_came_before_a_failure_is_right_however_late_it_is_read(images):
    pages = os.urandom(5_000_000)

    def damaged():
        yield from parts(pages)()
        raise errors.StoreCorrupt("packs/1 is damaged", object_key="packs/1")

    with Server(images, {"pages-1.img": damaged}) as server, Asking(images) as client:
        pipe = client.ask(b"pages-1.img")
        with os.fdopen(pipe, "rb") as handle:
            content = b""
            while piece := handle.read(70_001):
                content += piece
                # What was lent and is free again would be filled with this.
                rubbish = [bytes([len(content) % 251]) * 50_034 for _ in range(10)]
                del rubbish
    assert content == pages
    assert isinstance(server.problem, errors.StoreCorrupt)


def test_a_folder_that_cannot_be_served_leaves_nothing_open(tmp_path):
    long = tmp_path / ("a" * 100)
    long.mkdir()
    gc.collect()  # what tests before this one left open is not to be closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="too long"), Server(long, {}):
        raise AssertionError("it was served")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_path_that_the_address_has_no_room_for_is_known():
    assert fits(Path("/dev/shm/perdure-0123456789abcdef/images"))
    assert not fits(Path("/") / ("a" * 100))


MANY = """
import os, sys, time, mmap
shared = mmap.mmap(-1, 1 << 20)
for child in range(int(sys.argv[1])):
    if os.fork() == 0:
        mine = bytearray(os.urandom(1 << 16) * 16)
        own = hash(bytes(mine))
        while True:
            time.sleep(0.02)
            shared[child] = (shared[child] + 1) % 256 if hash(bytes(mine)) == own else 0
for number in range(1, 100_001):
    before = bytes(shared[: int(sys.argv[1])])
    while any(a == b for a, b in zip(before, shared[: int(sys.argv[1])])):
        time.sleep(0.01)
    print(number, flush=True)
"""


@pytest.mark.criu
@pytest.mark.parametrize("processes", [1, 12])
def test_a_tree_comes_back_from_pages_that_lie_elsewhere(short, processes):
    with Workload.python(short, MANY, str(processes)) as workload:
        workload.wait_for("\n3\n")
        dumped = workload.dump()
        workload.drain()
        seen = int(workload.output.split()[-1])
        tree.kill(workload.tree)
        tree.reap(workload.tree, wait=True)
        pages = {}
        for path in dumped.images.glob("pages-*.img"):
            pages[path.name] = parts(path.read_bytes())
            path.unlink()
        assert len(pages) > processes
        for attempt, more in ((1, {}), (2, {next(iter(pages)): cut_short(pages[next(iter(pages))])})):
            workload._close()
            theirs = workload._streams()
            work = short / f"work{attempt}"
            work.mkdir(mode=0o700)
            options = RestoreOptions(
                streams=dumped.streams, descriptors=dict(enumerate(theirs)), expected_bytes=1 << 26, pages=pages | more
            )
            try:
                if more:
                    with pytest.raises(errors.StoreCorrupt):
                        restore(dumped.images, work, options, workload.criu)
                    return
                workload.tree = restore(dumped.images, work, options, workload.criu).tree
            finally:
                workload._release(theirs)
            workload.output = b""
            workload.wait_for(f"\n{seen + 10}\n")
            tree.kill(workload.tree)
            tree.reap(workload.tree, wait=True)


def cut_short(content):
    """The first part of a content, then damage."""

    def read():
        yield next(iter(content()))[:1]
        raise errors.StoreCorrupt("packs/1 is damaged", object_key="packs/1")

    return read
