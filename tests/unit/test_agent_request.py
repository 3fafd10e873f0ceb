"""The request to a seat: what is sent is what is received, and nothing else is taken for one."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.agent import request
from perdure.agent.request import Request

_WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
_NAMES = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1, max_size=10)
_REQUESTS = st.builds(
    Request,
    umask=st.integers(0, 0o777),
    working_directory=_WORDS.map(lambda word: "/" + word),
    argv=st.lists(_WORDS, max_size=5).map(tuple),
    environment=st.dictionaries(_NAMES, _WORDS, max_size=5),
    options=st.lists(st.tuples(_NAMES, _WORDS), max_size=5).map(tuple),
)
_ONE = Request(umask=0o22, working_directory="/tmp", argv=("cat", "-"), environment={"A": "1"}, options=(("every", "10m"),))


def opened() -> set[str]:
    """The numbers of this process's descriptors. What others left behind may be closed at any time: garbage is, when it is collected."""
    return {number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")}


@given(_REQUESTS)
def test_what_is_encoded_is_decoded(wanted: Request) -> None:
    assert request.decode(request.encode(wanted)[8:]) == wanted


def test_the_bytes_are_those_that_a_client_in_c_writes() -> None:
    payload = b"22\0/tmp\x002\0cat\0-\x001\0A=1\x001\0every=10m\0"
    assert request.encode(_ONE) == b"PSR1" + struct.pack("<I", len(payload)) + payload


@given(st.binary(max_size=200))
def test_noise_is_refused_with_our_error(noise: bytes) -> None:
    with pytest.raises(errors.UsageError, match="no request"):
        request.decode(b"\xff" + noise)


@given(_REQUESTS, st.data())
def test_a_request_with_a_changed_byte_is_read_or_refused(wanted: Request, data: st.DataObject) -> None:
    payload = bytearray(request.encode(wanted)[8:])
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    try:
        found = request.decode(bytes(payload))
    except errors.UsageError:
        return
    assert found.working_directory.startswith("/")
    assert 0 <= found.umask <= 0o777


@given(_REQUESTS, st.data())
def test_a_request_that_is_cut_off_is_refused(wanted: Request, data: st.DataObject) -> None:
    payload = request.encode(wanted)[8:]
    with pytest.raises(errors.UsageError):
        request.decode(payload[: data.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.parametrize(
    "payload",
    [
        b"22\0/\x009999999\0",
        b"22\0/\x00-1\0\x000\x000\0",
        b"22\0/\x000\x000\x00300\0" + b"a=b\0" * 300,
        b"0x7\0/\x000\x000\x000\0",
        b"1777\0/\x000\x000\x000\0",
        b"22\0tmp\x000\x000\x000\0",
        b"22\0/\x000\x000\x000\0more\0",
        b"22\0/\x000\x000\x001\0every\0",
        b"22\0/\x000\x000\x000",
        b"",
    ],
    ids=["count", "negative", "options", "umask", "umask-range", "relative", "behind", "option", "no-end", "empty"],
)
def test_what_is_malformed_is_refused(payload: bytes) -> None:
    with pytest.raises(errors.UsageError):
        request.decode(payload)


def test_of_a_variable_that_is_there_twice_the_first_counts() -> None:
    found = request.decode(b"22\0/\x000\x004\0A=1\0A=2\0=x\0none\x000\0")
    assert found.environment == {"A": "1"}


def test_a_nul_byte_and_too_much_are_refused_before_they_are_sent() -> None:
    with pytest.raises(errors.UsageError, match="NUL"):
        request.encode(Request(umask=0, working_directory="/", argv=("a\0b",), environment={}, options=()))
    with pytest.raises(errors.UsageError, match="bytes"):
        request.encode(Request(umask=0, working_directory="/", argv=("x" * (5 << 20),), environment={}, options=()))


def test_the_descriptors_come_along_and_are_not_inherited() -> None:
    ours, theirs = socket.socketpair()
    out, into = os.pipe()
    with ours, theirs:
        sender = threading.Thread(target=request.send, args=(ours, _ONE, (out, into, into)))
        sender.start()
        found, streams = request.receive(theirs, within_s=60)
        sender.join()
    try:
        assert found == _ONE
        os.write(streams[2], b"x")
        assert os.read(streams[0], 1) == b"x"
        assert not any(os.get_inheritable(stream) for stream in streams)
    finally:
        for descriptor in (out, into, *streams):
            os.close(descriptor)


@pytest.mark.parametrize("count", [0, 2, 4, 60])
def test_another_number_of_descriptors_is_refused_and_none_stays_open(count: int) -> None:
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDONLY)
    with ours, theirs:
        before = opened()
        if count:
            socket.send_fds(ours, [request.encode(_ONE)], [null] * count)
        else:
            ours.sendall(request.encode(_ONE))
        with pytest.raises(errors.UsageError):
            request.receive(theirs, within_s=60)
        assert opened() <= before
    os.close(null)


def test_one_that_does_not_come_in_time_and_one_that_goes_away_are_refused() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [request.encode(_ONE)[:-1]], [null] * 3)
        with pytest.raises(errors.UsageError, match="in time"):
            request.receive(theirs, within_s=0.05)
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            socket.send_fds(ours, [b"PSR1\xff\xff\x0f\x00abc"], [null] * 3)
        with pytest.raises(errors.UsageError, match="too early"):
            request.receive(theirs, within_s=60)
    os.close(null)


def test_one_that_says_it_is_longer_than_allowed_is_refused_before_it_is_read() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"PSR1\xff\xff\xff\xff"], [null] * 3)
        with pytest.raises(errors.UsageError, match="bytes long"):
            request.receive(theirs, within_s=60)
    os.close(null)
