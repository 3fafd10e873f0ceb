"""Buckets in trouble: a real gateway that dies, is full or forbids; and servers that misbehave as no real one will on demand."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import doubles.s3
import pytest
import s3server
from doubles.s3 import MisbehavingStore

from perdure import errors
from perdure.store.backends import contract, s3
from perdure.store.backends.retry import Patience, RetryingBackend
from perdure.store.backends.s3 import Bucket, S3Backend

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")


@pytest.fixture
def server(credentials):
    store = MisbehavingStore()
    yield store
    store.close()


def _bucket(server, timeout_s=30.0) -> S3Backend:
    return S3Backend(Bucket(bucket="bucket", endpoint=server.endpoint, timeout_s=timeout_s))


def _retrying(backend) -> RetryingBackend:
    return RetryingBackend(backend, Patience(), clock=lambda: 0.0, sleep=lambda _s: None, random=random.Random(1).random)


class Together:
    """What a racy server does between a look and a write: the first looks alone, all after it wait until eight have looked."""

    def __init__(self) -> None:
        self._first = threading.Lock()
        self._others = threading.Barrier(8)

    def sleep(self, _seconds: float) -> None:
        if not self._first.acquire(blocking=False):
            self._others.wait(120)


class UnderWay:
    """What a server does during a write: the first is done at once, the next only when another writer was told that nothing is there."""

    def __init__(self, server: MisbehavingStore) -> None:
        self._server = server
        self._is_first = True

    def sleep(self, _seconds: float) -> None:
        if not self._is_first:
            self._server.missed.wait(120)
        self._is_first = False


class TestServersThatCannotBeTrusted:
    def test_an_honest_one_is_taken_and_nothing_of_the_trial_stays(self, server):
        _bucket(server).create()
        assert server.objects == {}

    def test_one_that_refuses_writers_while_another_writes_is_taken(self, server, monkeypatch):
        """What Amazon does: those who come in the midst of a conditional write are told to try again, and nothing is there yet."""
        server.conduct = "conflicts"
        monkeypatch.setattr(doubles.s3, "time", UnderWay(server))
        _bucket(server).create()
        assert server.missed.is_set()
        assert server.objects == {}

    @pytest.mark.parametrize(
        ("conduct", "says"),
        [
            ("ignores", "it wrote over an object that was there"),
            ("lies", "it said that an object was there, and wrote over it"),
            ("racy", "of 8 writers at once, 8 were told that they alone had written"),
        ],
    )
    def test_one_that_overwrites_is_refused(self, server, monkeypatch, conduct, says):
        server.conduct = conduct
        monkeypatch.setattr(doubles.s3, "time", Together())
        with pytest.raises(errors.StoreError, match=says) as caught:
            _retrying(_bucket(server)).create()
        assert not caught.value.retryable
        assert "If-None-Match" in caught.value.hint
        assert server.objects == {}

    def test_one_that_has_no_conditions_is_refused(self, server):
        """What OpenStack Swift's S3 interface answers: 501, conditional object PUTs are not supported."""
        server.answers = [(200, ""), (501, "NotImplemented")]
        with pytest.raises(errors.StoreError, match="501"):
            _retrying(_bucket(server)).create()

    def test_one_that_lists_out_of_order_is_refused(self, server):
        server.objects = {"/bucket/a": b"", "/bucket/b": b""}
        assert [info.key for info in _bucket(server).list("")] == ["a", "b"]
        server.conduct = "unordered"
        with pytest.raises(errors.StoreError, match="order"):
            list(_bucket(server).list(""))


_ANSWERS = [
    ((500, "InternalError"), errors.StoreUnavailable, "500 InternalError"),
    ((503, "SlowDown"), errors.StoreUnavailable, "503 SlowDown"),
    ((429, "TooManyRequests"), errors.StoreUnavailable, "429"),
    ((408, "RequestTimeout"), errors.StoreUnavailable, "408"),
    ((400, "RequestTimeout"), errors.StoreUnavailable, "400 RequestTimeout"),
    ((400, "IncompleteBody"), errors.StoreUnavailable, "400 IncompleteBody"),
    ((400, "BadDigest"), errors.StoreUnavailable, "400 BadDigest"),
    ((400, "XAmzContentSHA256Mismatch"), errors.StoreUnavailable, "400 XAmzContentSHA256Mismatch"),
    ((403, "InvalidObjectState"), errors.StoreError, "403 InvalidObjectState"),
    ((507, "XMinioStorageFull"), errors.StoreFull, "507"),
    ((403, "QuotaExceeded"), errors.StoreFull, "QuotaExceeded"),
    ((403, "AccessDenied"), errors.StoreError, "403 AccessDenied"),
    ((401, "Unauthorized"), errors.StoreError, "401"),
    ((403, "RequestTimeTooSkewed"), errors.StoreError, "RequestTimeTooSkewed"),
    ((400, "AuthorizationHeaderMalformed"), errors.StoreError, "400"),
    ((404, "NoSuchBucket"), errors.StoreMissing, "no such bucket"),
    ("reset", errors.StoreUnavailable, "it closed the connection"),
]


class TestAnswers:
    @pytest.mark.parametrize(
        ("name", "answer", "kind", "says"),
        [
            (name, *case)
            for name in ("put", "put_if_absent", "get", "size", "list", "delete")
            for case in _ANSWERS
            if name != "size" or case[0] == "reset"  # an answer to HEAD has no body to tell the code
        ],
    )
    def test_each_is_told_apart(self, server, name, answer, kind, says):
        backend = _bucket(server)
        server.objects["/bucket/k"] = b"x"
        server.answers = [answer]
        calls = {"put": lambda: backend.put("k", b""), "put_if_absent": lambda: backend.put_if_absent("new", b"")}
        calls |= {"get": lambda: backend.get("k"), "size": lambda: backend.size("k")}
        calls |= {"list": lambda: list(backend.list("")), "delete": lambda: backend.delete("k")}
        with pytest.raises(errors.StoreError, match=says) as caught:
            calls[name]()
        assert type(caught.value) is kind
        told = str(caught.value) + caught.value.hint
        assert caught.value.hint
        assert "hunter2" not in told
        assert "<" not in told.replace("s3://bucket/", "")
        assert len(str(caught.value).splitlines()) == 1
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__

    def test_a_conflict_without_an_object_is_tried_again(self, server):
        server.answers = [(409, "ConditionalRequestConflict")]
        with pytest.raises(errors.StoreUnavailable):
            _bucket(server).put_if_absent("k", b"x")
        server.answers = [(409, "ConditionalRequestConflict")]
        _retrying(_bucket(server)).put_if_absent("k", b"x")
        assert server.objects["/bucket/k"] == b"x"

    def test_no_answer_in_time(self, server):
        server.answers = ["hang"]
        with pytest.raises(errors.StoreUnavailable, match="no answer in time"):
            _bucket(server, timeout_s=0.5).get("k")

    def test_a_delete_has_less_time_than_other_requests(self, server, monkeypatch):
        times_s, connect = [], s3._connect
        monkeypatch.setattr(s3, "_connect", lambda bucket: (times_s.append(bucket.timeout_s), connect(bucket))[1])
        bucket = _bucket(server, timeout_s=90.0)
        for _ in range(2):
            bucket.put("k", b"x")
            bucket.delete("k")
        assert times_s == [90.0, contract.DELETE_S]
        assert server.objects == {}

    def test_a_lost_answer_and_three_bad_ones(self, server):
        server.answers = ["lost", (500, "InternalError"), "reset", (503, "SlowDown")]
        _retrying(_bucket(server)).put_if_absent("k", b"content")
        assert server.objects["/bucket/k"] == b"content"
        assert [method for method, _ in server.requests].count("PUT") == 5

    def test_a_name_that_leads_nowhere(self, credentials):
        with pytest.raises(errors.StoreUnavailable, match="its name is not known to the network"):
            S3Backend(Bucket(bucket="bucket", endpoint="http://nowhere.invalid", timeout_s=60)).get("k")

    def test_half_of_the_credentials(self, server, monkeypatch):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(errors.UsageError) as caught:
            _bucket(server).get("k")
        assert "AWS_ACCESS_KEY_ID" in caught.value.hint

    def test_no_credentials(self, server, monkeypatch):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.endpoint)  # where a machine's role is asked for: it has none
        with pytest.raises(errors.StoreError, match="no credentials") as caught:
            _bucket(server).get("k")
        assert "AWS_SECRET_ACCESS_KEY" in caught.value.hint
        assert not caught.value.retryable
        assert not [path for _, path in server.requests if path.startswith("/bucket")]

    def test_what_others_keep_in_the_bucket_is_passed_over(self, server):
        server.objects = {"/bucket/a": b"1", "/bucket/their file+x": b"", "/bucket/z": b""}
        assert [info.key for info in _bucket(server).list("")] == ["a", "z"]

    @pytest.mark.parametrize(
        ("name", "shown"),
        [("their//file", "their//file"), ("their/./file", "their/./file"), ("..", ".."), ("x\x01<b>", r"x\u{1}<b>"), ('"\n//', r"\"\n//")],
    )
    def test_what_others_keep_under_a_name_that_cannot_be_listed_is_named(self, server, name, shown):
        server.objects = {"/bucket/packs/x": b"1", f"/bucket/{name}": b""}
        backend = _retrying(_bucket(server))
        with pytest.raises(errors.StoreError) as caught:
            list(backend.list(""))
        assert f"in the way of every listing: {shown}" in str(caught.value)
        assert str(caught.value).isprintable()
        assert "prefix" in caught.value.hint
        assert not caught.value.retryable
        assert backend.exists()
        assert [info.key for info in backend.list("packs/")] == ["packs/x"]

    def test_an_archived_object(self, server):
        server.answers = [(403, "InvalidObjectState")]
        with pytest.raises(errors.StoreError) as caught:
            _bucket(server).get("k")
        assert "archived" in caught.value.hint


def test_a_forked_child_is_told_instead_of_hanging(server):
    script = """
import os, sys
from perdure import errors
from perdure.store.backends.s3 import Bucket, S3Backend
backend = S3Backend(Bucket(bucket="bucket", endpoint=sys.argv[1]))
print(backend.exists(), flush=True)
pid = os.fork()
if pid == 0:
    for mine in (backend, S3Backend(Bucket(bucket="bucket", endpoint=sys.argv[1]))):
        try:
            mine.exists()
        except errors.StoreError as error:
            print(error, flush=True)
    os._exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
print(backend.exists())
"""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE), "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    done = subprocess.run([sys.executable, "-c", script, server.endpoint], capture_output=True, text=True, env=environment, timeout=300)
    said = done.stdout.splitlines()
    assert said[0] == said[-1] == "True", done.stderr
    assert said[-2] == "0"
    assert len(said) == 5
    assert all("forked" in line for line in said[1:3])


@pytest.fixture
def gateway_of_its_own(monkeypatch):
    """Ceph waits half a minute for a killed gateway in some of what it does, which is not for other tests."""
    server = s3server.S3Server()
    try:
        server.start()
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
    finally:
        server.remove()


@pytest.mark.s3
def test_a_real_gateway_that_dies_and_comes_back_loses_nothing(gateway_of_its_own):
    """Killed three times while eight threads write; what was told to be written is there, and nothing is half."""
    gateway = gateway_of_its_own
    backend = S3Backend(Bucket(bucket=gateway.bucket(), prefix="p", endpoint=gateway.endpoint))
    # Real pauses, for a real server that is away; more of them than `address` makes, for one that comes back late on a busy machine.
    place = RetryingBackend(
        backend, Patience(tries=1000, longest_pause_s=1.0), clock=time.monotonic, sleep=time.sleep, random=random.Random(5).random
    )
    place.create()
    written: dict[str, bytes] = {}
    failures: list[BaseException] = []
    stop = threading.Event()

    def write(worker: int) -> None:
        number = 0
        try:
            while not stop.is_set():
                key, content = f"w{worker}/{number:05}", b"%d-%d" % (worker, number) * 20_000
                place.put_if_absent(key, content)
                written[key] = content
                number += 1
        except BaseException as error:  # noqa: BLE001  # told in the test's own thread
            failures.append(error)

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(8)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(3):
            before = len(written)
            while len(written) < before + 40 and not failures:
                time.sleep(0.01)
            gateway.stop_gateway()
            gateway.start_gateway()
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert failures == []
    listed = {info.key: info.size_bytes for info in place.list("")}
    assert listed.keys() >= written.keys()
    assert len(listed) <= len(written) + 8
    for key, content in written.items():
        assert listed[key] == len(content)
    for key in random.Random(2).sample(sorted(written), 30):
        assert place.get(key) == written[key]


@pytest.mark.s3
class TestARealGateway:
    @pytest.fixture
    def gateway(self, object_store, monkeypatch):
        for name, value in object_store.environment().items():
            monkeypatch.setenv(name, value)
        return object_store

    def test_a_full_bucket(self, gateway):
        bucket = gateway.bucket()
        gateway.admin("quota", "set", "--quota-scope=bucket", f"--bucket={bucket}", "--max-size=1M")
        gateway.admin("quota", "enable", "--quota-scope=bucket", f"--bucket={bucket}")
        backend = S3Backend(Bucket(bucket=bucket, endpoint=gateway.endpoint))
        backend.put("a", bytes(500_000))
        for call in (backend.put, backend.put_if_absent):
            with pytest.raises(errors.StoreFull, match="QuotaExceeded"):
                call("b", bytes(600_000))
        assert [info.key for info in backend.list("")] == ["a"]
        assert backend.size("a") == 500_000

    @pytest.mark.parametrize(
        ("variable", "value", "hint"),
        [
            ("AWS_SECRET_ACCESS_KEY", "wrong-hunter2", "AWS_SECRET_ACCESS_KEY is not the one"),
            ("AWS_ACCESS_KEY_ID", "unknown-hunter2", "does not know AWS_ACCESS_KEY_ID"),
        ],
    )
    def test_wrong_credentials(self, gateway, monkeypatch, variable, value, hint):
        bucket = gateway.bucket()
        monkeypatch.setenv(variable, value)
        backend = S3Backend(Bucket(bucket=bucket, endpoint=gateway.endpoint))
        for call in (
            backend.exists,
            backend.create,
            lambda: backend.put("a", b""),
            lambda: backend.get("a"),
            lambda: list(backend.list("")),
        ):
            with pytest.raises(errors.StoreError) as caught:
                call()
            assert hint in caught.value.hint
            assert not caught.value.retryable
            assert "hunter2" not in str(caught.value)

    def test_somebody_elses_bucket(self, gateway, monkeypatch):
        bucket = gateway.bucket()
        gateway.admin("user", "create", "--uid=other", "--display-name=other", "--access-key=other", "--secret=othersecret")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "othersecret")
        backend = S3Backend(Bucket(bucket=bucket, endpoint=gateway.endpoint))
        with pytest.raises(errors.StoreError, match="403 AccessDenied") as caught:
            backend.create()
        assert "ListBucket" in caught.value.hint

    def test_no_bucket(self, gateway):
        backend = S3Backend(Bucket(bucket="not-there", endpoint=gateway.endpoint))
        assert not backend.exists()
        for call in (backend.create, lambda: backend.put("a", b""), lambda: backend.get("a"), lambda: list(backend.list(""))):
            with pytest.raises(errors.StoreMissing, match="no such bucket"):
                call()
