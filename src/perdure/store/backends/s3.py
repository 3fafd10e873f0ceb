"""An S3-compatible bucket as a place for objects. The one module that knows obstore. Opened by `address`.

obstore runs threads of its own, which do not survive a fork: it is imported by the first call, and a process that forked after that is
told so instead of hanging. The saver is a fresh process for each checkpoint, and is the one that moves bytes.

Objects are sent whole in one request, signed with the hash of their bytes, so that a server never stores what was not sent. Retries are
not obstore's but `retry`'s, which knows what a lost answer means for a conditional write.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from perdure import errors
from perdure.store.backends import contract, names, s3_errors
from perdure.store.backends.contract import ObjectInfo
from perdure.store.backends.retry import Patience, RetryingBackend

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

_RACERS = 8
_RACE = Patience(total_s=30.0)
"""A racer that is told to try again, since another write is under way, waits for that one: some bytes."""
_runtime_pid: int | None = None
"""The process in which obstore's threads run."""


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store lies. Credentials are not part of it: obstore reads them from AWS_ variables and the machine's role."""

    bucket: str
    prefix: str = ""
    """A key without a slash at its end; empty: the bucket itself."""
    endpoint: str | None = None
    """Address of the server, https:// or http://; None: Amazon's, for the region."""
    region: str | None = None
    """None: what AWS_REGION says, else us-east-1, which most other servers ignore."""
    url: str = ""
    """As the user gave it."""
    timeout_s: float = 90.0
    """For one request, the body included: 32 MiB at 370 kB/s."""


class S3Backend:
    """A `contract.Backend` in a bucket that exists. Threads may share it; a forked child may not use it."""

    def __init__(self, bucket: Bucket) -> None:
        """Name the place. Nothing is sent before the first call."""
        self._bucket = bucket
        self._lock = threading.Lock()
        self._opened: dict[float, S3Store] = {}
        """By how many seconds a request may take."""

    @property
    def url(self) -> str:
        """The place, as given."""
        return self._bucket.url or f"s3://{self._bucket.bucket}/{self._bucket.prefix}"

    @property
    def parallel(self) -> int:
        """Eight: a request waits more than it works."""
        return 8

    def create(self) -> None:
        """See that the bucket is there and that its server really refuses to write over an object when it is told so.

        Raises `errors.StoreMissing` without a bucket, `errors.StoreError` for a server that ignores ``If-None-Match: *``: on it two
        lives of one workload could both believe to be the living one.
        """
        if not self.exists():
            raise s3_errors.no_bucket(self.url)
        token = secrets.token_hex(8)
        try:
            self._probe(f"probe/{token}.1")
            self._race(f"probe/{token}.2")
        finally:
            for number in (1, 2):
                with contextlib.suppress(errors.StoreError):
                    self.delete(f"probe/{token}.{number}")

    def exists(self) -> bool:
        """Tell whether the bucket is there and answers."""
        try:
            # Not of all: what others keep beside the store may have names that cannot be listed.
            next(self._pages("locks/"), None)
        except errors.StoreMissing:
            return False
        return True

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Send the object, replacing one of that name."""
        view = names.check_content(names.check_key(key), content)
        import obstore

        with self._explaining(key):
            obstore.put(self._store(), key, view, mode="overwrite", use_multipart=False)

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Send the object with ``If-None-Match: *``."""
        view = names.check_content(names.check_key(key), content)
        import obstore

        try:
            with self._explaining(key):
                obstore.put(self._store(), key, view, mode="create", use_multipart=False)
        except errors.ObjectExists:
            # Servers also say "conflict" while another write or delete of the key is under way, and then it may not be there.
            try:
                self.size(key)
            except errors.ObjectMissing as missing:
                raise errors.StoreUnavailable(f"{key} is being written or deleted by somebody else", hint="try again") from missing
            raise

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Fetch a range of the object. Raises `errors.StoreCorrupt` for one that is larger than any object of ours."""
        names.check_range(start, length)
        names.check_key(key)
        if length == 0:
            self.size(key)
            return b""
        import obstore

        try:
            with self._explaining(key):
                wanted: tuple[int, int] | obstore.OffsetRange = {"offset": start} if length is None else (start, start + length)
                answer = obstore.get(self._store(), key, options={"range": wanted} if start or length is not None else None)
                if length is None and answer.meta["size"] - start > contract.MAX_OBJECT_BYTES:
                    raise errors.StoreCorrupt(f"{key} is larger than any object", hint="perdure store verify", object_key=key)
                return bytes(answer.bytes())
        except s3_errors.BehindTheEnd:
            return b""

    def size(self, key: str) -> int:
        """Ask for the object's size."""
        names.check_key(key)
        import obstore

        with self._explaining(key):
            return int(obstore.head(self._store(), key)["size"])

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below `prefix` as the server lists them, page by page, which is in order of their keys.

        Raises `errors.StoreError` for a server that lists in another order (Amazon's directory buckets), and for an object of others whose
        name obstore does not take.
        """
        names.check_prefix(prefix)
        last = ""
        for info in self._pages(prefix):
            if info.key <= last:
                raise errors.StoreError(
                    f"{self.url} does not list objects in the order of their keys",
                    hint="use a general purpose bucket, not a directory bucket",
                )
            last = info.key
            yield info

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the object. The request has no body, and less time than others."""
        del once
        names.check_key(key)
        import obstore

        with contextlib.suppress(errors.ObjectMissing), self._explaining(key):
            obstore.delete(self._store(most_s=contract.DELETE_S), key)

    def close(self) -> None:
        """Let go of the connections; a later call makes new ones."""
        with self._lock:
            self._opened.clear()

    def _pages(self, prefix: str) -> Iterator[ObjectInfo]:
        import obstore

        with self._explaining(prefix):
            for page in obstore.list(self._store(), prefix.removesuffix("/") or None):
                for found in page:
                    # Others may keep things of theirs in the bucket, under names that no object of ours has.
                    if contract.KEY.fullmatch(found["path"]):
                        yield ObjectInfo(found["path"], int(found["size"]))

    def _probe(self, key: str) -> None:
        """Write `key` twice on condition that it is absent. Raises `errors.StoreError` unless the second is refused."""
        self.put_if_absent(key, b"first")
        with contextlib.suppress(errors.ObjectExists):
            self.put_if_absent(key, b"second")
            raise s3_errors.no_conditions(self.url, "it wrote over an object that was there")
        if self.get(key) != b"first":
            raise s3_errors.no_conditions(self.url, "it said that an object was there, and wrote over it")

    def _race(self, key: str) -> None:
        """Write `key` from several threads at once. Raises `errors.StoreError` unless one alone succeeds."""
        patient = RetryingBackend(self, _RACE, clock=time.monotonic, sleep=time.sleep, random=random.random)

        def attempt(number: int) -> bool:
            try:
                patient.put_if_absent(key, b"%d" % number)
            except errors.ObjectExists:
                return False
            return True

        with ThreadPoolExecutor(_RACERS) as racers:
            won = sum(racers.map(attempt, range(_RACERS)))
        if won != 1:
            raise s3_errors.no_conditions(self.url, f"of {_RACERS} writers at once, {won} were told that they alone had written")

    def _store(self, most_s: float = math.inf) -> S3Store:
        """Return obstore's client for requests that may take `most_s` seconds and no more than the bucket's; the first call makes it.

        Raises `errors.StoreError` in a process that was forked off one that used it.
        """
        timeout_s = min(most_s, self._bucket.timeout_s)
        global _runtime_pid  # noqa: PLW0603  # obstore's threads belong to the process, not to an object
        with self._lock:
            if _runtime_pid not in (None, os.getpid()):
                raise errors.StoreError("this process was forked off one that uses an object store, and cannot use it", hint="report this")
            _runtime_pid = os.getpid()
            if timeout_s not in self._opened:
                self._opened[timeout_s] = _connect(msgspec.structs.replace(self._bucket, timeout_s=timeout_s))
            return self._opened[timeout_s]

    @contextlib.contextmanager
    def _explaining(self, key: str) -> Iterator[None]:
        """Turn what obstore raises into errors of the contract."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            # obstore's text holds the server's whole answer: it is read for its code, and not shown.
            raise s3_errors.explain(error, self.url, key) from None


def _connect(bucket: Bucket) -> S3Store:
    from datetime import timedelta

    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    config: S3Config = {"disable_bulk_delete": True, "conditional_put": "etag"}  # one DELETE each works on every server
    if bucket.endpoint is not None:
        config["endpoint"] = bucket.endpoint
    if bucket.region is not None:
        config["region"] = bucket.region
    try:
        return S3Store(
            bucket.bucket,
            prefix=bucket.prefix or None,
            config=config,
            client_options={
                "allow_http": (bucket.endpoint or "").startswith("http://"),
                "connect_timeout": timedelta(seconds=10),
                "timeout": timedelta(seconds=bucket.timeout_s),
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=bucket.timeout_s)},
        )
    except BaseError as error:
        raise errors.UsageError(
            f"{bucket.url}: this bucket, endpoint or AWS_ variable cannot be used",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY both, or neither",
        ) from error
