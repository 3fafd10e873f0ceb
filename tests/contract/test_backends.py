"""What every backend promises, sentence by sentence of `perdure.store.backends.contract`, run unchanged on each of them.

One of them is a place that fails one call in three, behind what tries again, and one is what a user may take only a part of: nobody above
may notice.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.store.backends.bounded import Allowance, BoundedBackend
from perdure.store.backends.contract import MAX_OBJECT_BYTES, Backend
from perdure.store.backends.faulty import Fault, FaultyBackend, at_random
from perdure.store.backends.local import LocalBackend
from perdure.store.backends.memory import MemoryBackend
from perdure.store.backends.retry import Patience, RetryingBackend
from perdure.store.backends.s3 import Bucket, S3Backend

_PASSING = (Fault.TIMEOUT, Fault.SERVER_ERROR, Fault.IO_ERROR, Fault.LOST_ANSWER, Fault.PARTIAL)


def _retrying(inner: Backend) -> Backend:
    return RetryingBackend(inner, Patience(tries=40), clock=lambda: 0.0, sleep=lambda _s: None, random=random.Random(1).random)


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3), "faulty", "bounded"])
def absent(request, tmp_path, monkeypatch) -> Callable[[], Backend]:
    """A way to open one and the same place, which is not there yet (a bucket is)."""
    match request.param:
        case "memory":
            only = MemoryBackend()
            return lambda: only
        case "local":
            return lambda: LocalBackend(tmp_path / "deep" / "store")
        case "s3":
            server = request.getfixturevalue("object_store")
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
            bucket = Bucket(bucket=server.bucket(), prefix="deep/store", endpoint=server.endpoint)
            return lambda: S3Backend(bucket)
        case "bounded":
            return lambda: BoundedBackend(LocalBackend(tmp_path / "deep" / "store"), Allowance(share=1.0))
        case _:
            only = FaultyBackend(MemoryBackend(), at_random(0.08, _PASSING), seed=7)
            return lambda: _retrying(only)


@pytest.fixture
def opened(absent) -> Callable[[], Backend]:
    """A way to open one and the same place, which is ready."""
    absent().create()
    return absent


@pytest.fixture
def backend(opened) -> Iterator[Backend]:
    one = opened()
    yield one
    one.close()


_fresh = itertools.count()


def _keys(backend: Backend, prefix: str = "") -> list[str]:
    return [info.key for info in backend.list(prefix)]


def test_a_place_is_made_once_and_keeps_what_is_in_it(absent):
    first = absent()
    if isinstance(first, MemoryBackend | LocalBackend):
        assert not first.exists()
        for call in (lambda: first.put("a", b""), lambda: first.get("a"), lambda: list(first.list("")), lambda: first.delete("a")):
            with pytest.raises(errors.StoreMissing):
                call()
    first.create()
    assert first.exists()
    assert _keys(first) == []
    first.put("a/b", b"kept")
    first.create()
    assert first.get("a/b") == b"kept"
    assert absent().exists()
    assert absent().get("a/b") == b"kept"


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 1000, bytearray(b"array"), memoryview(b"..view..")[2:-2]])
def test_what_is_put_is_what_is_got(backend, content):
    backend.put("a/b-c.d_e@f", content)
    assert backend.get("a/b-c.d_e@f") == bytes(content)
    assert type(backend.get("a/b-c.d_e@f")) is bytes
    assert backend.size("a/b-c.d_e@f") == len(content)


def test_a_caller_may_use_its_buffer_again(backend):
    buffer = bytearray(b"first")
    backend.put("a", buffer)
    backend.put_if_absent("b", buffer)
    buffer[:] = b"later"
    assert backend.get("a") == backend.get("b") == b"first"


def test_put_replaces(backend):
    backend.put("a", b"long and old")
    backend.put("a", b"new")
    assert backend.get("a") == b"new"
    assert backend.size("a") == 3


def test_put_if_absent_writes_once(backend):
    backend.put_if_absent("a/1", b"first")
    for content in (b"second", b"first", b""):
        with pytest.raises(errors.ObjectExists):
            # What an earlier call wrote is not this call's, equal or not. Behind faults an equal one may be taken for a lost answer.
            backend.put_if_absent("a/1", content if not isinstance(backend, RetryingBackend) else b"second")
    assert backend.get("a/1") == b"first"
    backend.delete("a/1")
    backend.put_if_absent("a/1", b"again")
    assert backend.get("a/1") == b"again"
    backend.put("plain", b"x")
    with pytest.raises(errors.ObjectExists):
        backend.put_if_absent("plain", b"y")
    backend.put_if_absent("empty", b"")
    with pytest.raises(errors.ObjectExists):
        backend.put_if_absent("empty", b"y")


def test_ranges(backend):
    content = bytes(range(200))
    backend.put("r", content)
    for start in (0, 1, 199, 200, 201, 10_000):
        assert backend.get("r", start=start) == content[start:]
        for length in (0, 1, 5, 199, 200, 201, 10_000):
            assert backend.get("r", start=start, length=length) == content[start : start + length]
    backend.put("none", b"")
    assert backend.get("none") == backend.get("none", start=0, length=5) == backend.get("none", start=3) == b""
    for start, length in ((-1, None), (0, -1)):
        with pytest.raises(errors.StoreError):
            backend.get("r", start=start, length=length)


def test_what_is_not_there(backend):
    backend.put("a/b", b"")
    for key in ("a/c", "b", "b/c/d", "a/b/c", "a"):
        for call in (backend.get, backend.size, lambda key: backend.get(key, start=1, length=0), lambda key: backend.get(key, start=4)):
            with pytest.raises(errors.ObjectMissing) as caught:
                call(key)
            assert caught.value.object_key == key
    for key in ("a/c", "b", "b/c/d"):
        backend.delete(key)
    assert _keys(backend) == ["a/b"]
    backend.delete("a/b")
    backend.delete("a/b")
    assert _keys(backend) == []
    with pytest.raises(errors.ObjectMissing):
        backend.get("a/b")


def test_listing_is_in_the_order_of_keys(backend):
    keys = ["a-b", "a.b/c", "a/b", "a/b-c/d", "a/b.c", "a0", "a_/x", "ab", "B", "._@-/..a/...", "@", "9", "w/x@1/y", "w/x@1.2"]
    for number, key in enumerate(keys):
        backend.put(key, bytes(number))
    assert [(info.key, info.size_bytes) for info in backend.list("")] == sorted((key, number) for number, key in enumerate(keys))
    assert _keys(backend, "a/") == ["a/b", "a/b-c/d", "a/b.c"]
    assert _keys(backend, "a/b-c/") == ["a/b-c/d"]
    assert _keys(backend, "w/") == ["w/x@1.2", "w/x@1/y"]
    for prefix in ("none/", "a/b/", "B/", "a/b-c/d/e/"):
        assert _keys(backend, prefix) == []


def test_a_long_listing(backend):
    keys = [f"packs/{number % 7:02x}/{number:04x}" for number in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: backend.put(key, b"x"), keys))
    assert _keys(backend, "packs/") == sorted(keys)


@pytest.mark.parametrize(
    "key",
    ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/.", "a b", "a\n", "a\0", "ä", "+x", "a/+0123456789abcdef.tmp", "a%2Fb",
     "a\\b", "x" * 256, "/".join(["x" * 100] * 9)],
)  # fmt: skip
def test_what_is_no_key_is_refused_before_anything_is_done(backend, key):
    for call in (backend.get, backend.size, backend.delete, lambda key: backend.put(key, b""), lambda key: backend.put_if_absent(key, b"")):
        with pytest.raises(errors.StoreError) as caught:
            call(key)
        assert not isinstance(caught.value, errors.ObjectMissing | errors.StoreUnavailable)
    assert _keys(backend) == []


@pytest.mark.parametrize("prefix", ["a", "/", "../", "a//", "a/../"])
def test_what_is_no_prefix_is_refused(backend, prefix):
    with pytest.raises(errors.StoreError):
        list(backend.list(prefix))


def test_long_names_are_names(backend):
    for key in ("x" * 255, "/".join(["y" * 199] * 4)):
        backend.put_if_absent(key, b"long")
        assert backend.get(key) == b"long"
        assert key in _keys(backend)


def test_a_large_object_comes_back_whole_and_in_parts(backend):
    content = random.Random(3).randbytes(32 * 1024 * 1024)
    backend.put_if_absent("packs/00/large", content)
    assert backend.get("packs/00/large") == content
    assert backend.get("packs/00/large", start=31 * 1024 * 1024) == content[31 * 1024 * 1024 :]
    assert backend.get("packs/00/large", start=12_345_678, length=4096) == content[12_345_678 : 12_345_678 + 4096]


def test_what_is_larger_than_an_object_is_refused(backend):
    content = bytes(MAX_OBJECT_BYTES + 1)
    for call in (backend.put, backend.put_if_absent):
        with pytest.raises(errors.StoreError, match="too large"):
            call("a", content)
    assert _keys(backend) == []


def test_of_many_writers_exactly_one_succeeds(opened):
    writers = [opened() for _ in range(16)]
    for number in range(12):
        contents = [b"%d" % writer * 5000 for writer in range(16)]
        gate = threading.Barrier(16)

        def attempt(writer: int, key: str = f"race/{number}", contents=contents, gate=gate) -> bool:
            gate.wait()
            try:
                writers[writer].put_if_absent(key, contents[writer])
            except errors.ObjectExists:
                return False
            return True

        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(attempt, range(16)))
        assert won.count(True) == 1
        assert opened().get(f"race/{number}") == contents[won.index(True)]


def test_nobody_sees_half_an_object(opened):
    writer, contents = opened(), [letter * 400_000 for letter in (b"a", b"b", b"c")]
    writer.put("k", contents[0])
    done = threading.Event()

    def read() -> int:
        reader, count = opened(), 0
        while not done.is_set() or count == 0:
            assert reader.get("k") in contents
            assert [info.size_bytes for info in reader.list("")] == [400_000]
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        try:
            for number in range(30):
                writer.put("k", contents[number % 3])
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in readers)


def test_a_listing_sees_what_was_there_before_it(opened):
    before = [f"p/{number:03}/x" for number in range(0, 200, 2)]
    writer = opened()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: writer.put(key, b""), before))
    done = threading.Event()

    def disturb() -> None:
        for number in itertools.cycle(range(1, 200, 2)):
            if done.is_set():
                return
            writer.put(f"p/{number:03}/x", b"")
            writer.put(f"p/{number - 1:03}/y", b"")
            writer.delete(f"p/{number:03}/x")

    with ThreadPoolExecutor(2) as pool:
        disturbers = [pool.submit(disturb) for _ in range(2)]
        try:
            for _ in range(8):
                seen = _keys(opened(), "p/")
                assert set(before) <= set(seen)
                assert seen == sorted(set(seen))
        finally:
            done.set()
        for disturber in disturbers:
            disturber.result()


def test_the_address_is_shown_without_secrets(backend, request):
    assert backend.url
    assert backend.parallel >= 1
    if "object_store" in request.fixturenames:
        server = request.getfixturevalue("object_store")
        assert server.secret_key not in backend.url + repr(backend) + str(vars(backend))


_KEYS = st.sampled_from(["a", "a-", "b/a", "b/a.x", "b-/a", "b/c/d", "b/c/e", "B"])
_CALL = st.one_of(
    st.tuples(st.just("put"), _KEYS, st.binary(max_size=20)),
    st.tuples(st.just("put_if_absent"), _KEYS, st.binary(max_size=20)),
    st.tuples(st.just("delete"), _KEYS),
    st.tuples(st.just("get"), _KEYS, st.integers(0, 25), st.none() | st.integers(0, 25)),
    st.tuples(st.just("size"), _KEYS),
    st.tuples(st.just("list"), st.sampled_from(["", "b/", "b/c/", "a/"])),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=st.lists(_CALL, max_size=25))
def test_any_sequence_of_calls_does_what_a_dictionary_does(backend, calls):
    base = f"run{next(_fresh)}/"
    expected: dict[str, bytes] = {}
    for name, key, *rest in calls:
        try:
            match name:
                case "put":
                    backend.put(base + key, rest[0])
                    expected[key] = rest[0]
                case "put_if_absent":
                    backend.put_if_absent(base + key, rest[0])
                    assert key not in expected or (isinstance(backend, RetryingBackend) and expected[key] == rest[0])
                    expected[key] = rest[0]
                case "delete":
                    backend.delete(base + key)
                    expected.pop(key, None)
                case "get":
                    start, length = rest
                    got = backend.get(base + key, start=start, length=length)
                    assert got == expected[key][start:][: len(expected[key]) if length is None else length]
                case "size":
                    assert backend.size(base + key) == len(expected[key])
                case "list":
                    seen = [(info.key.removeprefix(base), info.size_bytes) for info in backend.list(base + key)]
                    assert seen == sorted((name, len(content)) for name, content in expected.items() if name.startswith(key))
        except errors.ObjectMissing:
            assert key not in expected
        except errors.ObjectExists:
            assert name == "put_if_absent"
            assert key in expected
