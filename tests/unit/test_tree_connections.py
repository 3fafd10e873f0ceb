"""Connections within a saved tree stay, those with others become closed sockets, everything else stays byte for byte."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint import connections
from perdure.checkpoint.images import container, openfiles, wire

HEAD = struct.pack("<II", container.COMMON, container.FILES)
ESTABLISHED, CLOSED, CLOSE_WAIT, LISTEN = 1, 7, 8, 10
TCP, UDP = 6, 17


def number(field: int, value: int) -> bytes:
    return wire.encode_varint(field << 3) + wire.encode_varint(value)


def text(field: int, value: bytes) -> bytes:
    return wire.encode_varint(field << 3 | 2) + wire.encode_varint(len(value)) + value


def words(address: str) -> tuple[int, ...]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    return struct.unpack(f"={len(packed) // 4}I", packed)


def inet(file_id: int, local: tuple[str, int], remote: tuple[str, int], state: int = ESTABLISHED, protocol: int = TCP) -> bytes:
    family = socket.AF_INET6 if ":" in local[0] else socket.AF_INET
    inner = number(1, file_id) + number(2, 1000 + file_id) + number(3, family) + number(4, 1) + number(5, protocol) + number(6, state)
    inner += number(7, local[1]) + number(8, remote[1])
    inner += b"".join(number(11, word) for word in words(local[0])) + b"".join(number(12, word) for word in words(remote[0]))
    inner += text(15, b"options that nobody here knows")
    return number(1, 4) + number(2, file_id) + text(4, inner)


def write(folder: Path, *entries: bytes) -> Path:
    (folder / "files.img").write_bytes(container.assemble(HEAD, entries))
    return folder


A, B, C = ("127.0.0.1", 4000), ("127.0.0.1", 50_001), ("192.0.2.7", 443)


def test_only_connections_whose_other_end_is_elsewhere_are_closed(tmp_path: Path):
    pipe = number(1, 2) + number(2, 9) + text(18, number(1, 9) + number(2, 77))
    entries = (
        inet(1, A, B),
        inet(2, B, A),
        inet(3, ("10.0.0.1", 50_002), C),
        inet(4, ("10.0.0.1", 50_003), C, CLOSE_WAIT),
        inet(5, A, ("0.0.0.0", 0), LISTEN),
        inet(6, ("127.0.0.1", 53), C, ESTABLISHED, UDP),
        inet(7, ("0.0.0.0", 0), ("0.0.0.0", 0), CLOSED),
        pipe,
    )
    assert connections.close_outside(write(tmp_path, *entries)) == 2
    after = container.read(tmp_path / "files.img", container.FILES)
    assert after.head == HEAD
    for place in (0, 1, 4, 5, 6, 7):
        assert after.entries[place] == entries[place]
    told = openfiles.of(tmp_path)
    for place in (2, 3):
        assert (told[place].state, told[place].local[1], told[place].remote[1]) == ("closed", 0, 0)
        assert b"options that nobody here knows" in after.entries[place]
        assert told[place].inode == 1000 + place + 1
    assert connections.close_outside(tmp_path) == 0


def test_one_connection_seen_as_ipv4_and_as_ipv6_is_one(tmp_path: Path):
    mapped = inet(1, ("::ffff:127.0.0.1", 4000), ("::ffff:127.0.0.1", 50_001))
    assert connections.close_outside(write(tmp_path, mapped, inet(2, B, A))) == 0
    other = inet(1, ("::1", 4000), ("::1", 50_001))
    assert connections.close_outside(write(tmp_path, other, inet(2, ("::1", 50_001), ("::1", 4000)))) == 0
    assert connections.close_outside(write(tmp_path, other, inet(2, B, A))) == 2


def test_a_connection_of_a_socket_with_itself_is_within(tmp_path: Path):
    assert connections.close_outside(write(tmp_path, inet(1, A, A))) == 0


def test_what_is_no_image_is_refused_and_stays(tmp_path: Path):
    (tmp_path / "files.img").write_bytes(HEAD + b"\x05\x00\x00\x00ab")
    with pytest.raises(errors.InputFormat):
        connections.close_outside(tmp_path)
    assert (tmp_path / "files.img").read_bytes() == HEAD + b"\x05\x00\x00\x00ab"


PORTS = st.integers(1, 65_535)
ENDS = st.tuples(st.sampled_from(["127.0.0.1", "10.1.2.3", "192.0.2.1"]), PORTS)


@given(st.lists(st.tuples(ENDS, ENDS, st.booleans()), max_size=12))
def test_after_it_no_connection_lacks_its_other_end(tmp_path_factory, pairs):
    folder = tmp_path_factory.mktemp("images")
    entries = []
    for local, remote, both in pairs:
        entries.append(inet(len(entries), local, remote))
        if both:
            entries.append(inet(len(entries), remote, local))
    closed = connections.close_outside(write(folder, *entries))
    living = [found for found in openfiles.of(folder) if found.state == "established"]
    ends = {(found.local, found.remote) for found in living}
    assert all((remote, local) in ends for local, remote in ends)
    assert len(living) + closed == len(entries)
    assert len(living) >= 2 * sum(both for _, _, both in pairs)


def test_saved_connections_are_seen_by_their_images(tmp_path: Path):
    assert not connections.are_saved(tmp_path)
    (tmp_path / "tcp-stream-1f.img").touch()
    assert connections.are_saved(tmp_path)


def test_a_pair_within_is_told_from_connections_with_others():
    own = "import socket\ns=socket.create_server(('127.0.0.1',0))\nc=socket.create_connection(s.getsockname())\na,_=s.accept()\n"
    with socket.create_server(("127.0.0.1", 0)) as server:
        other = f"import socket\nc=socket.create_connection(('127.0.0.1',{server.getsockname()[1]}))\n"
        for script, expected in ((own, True), (other, False), ("", False)):
            program = [sys.executable, "-S", "-c", f"{script}print('up',flush=True)\ninput()"]
            with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdout.readline() == b"up\n"
                assert connections.has_pair_within((process.pid,)) is expected
                process.communicate(b"\n")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()), server.accept()[0]:
        assert connections.has_pair_within((os.getpid(),))
