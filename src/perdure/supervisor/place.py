"""The store that a workload's checkpoints go to: opened, and made when there is none. Called by `supervise`, the saver and the commands."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.base.proc import mounts
from perdure.store.backends.address import open_backend
from perdure.store.backends.bounded import Allowance, BoundedBackend
from perdure.store.backends.contract import Backend
from perdure.store.opening import cache_of, read_key
from perdure.store.repository import Repository

_LOCAL_KINDS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay", "bcachefs"})

_MOST_THREADS = 16
"""Beyond that the one thread that places or hands on blocks does not keep up."""


class Place(msgspec.Struct, frozen=True):
    """A store and how to open it. Can be handed to another process: it holds no secret."""

    url: str
    """A folder's absolute path, or ``s3://BUCKET/PREFIX``."""
    key_file: str | None
    cache: str
    """Folder for what can be made anew, of all stores."""
    threads: int
    lease_ttl_s: float | None = None
    """The setting `lease-ttl`: one that is set says that other machines reach the store."""

    allowance: Allowance | None = None
    """How much of it may be taken; None: as much as there is."""

    @property
    def is_here(self) -> bool:
        """Tell whether no other machine can reach the store: a folder on a local file system."""
        return self.lease_ttl_s is None and is_on_this_machine(self.url)


def threads_at_rest(least: int) -> int:
    """Return how many threads, `least` or more, may work while the workload waits for them: its processors are free."""
    return max(least, min(len(os.sched_getaffinity(0)), _MOST_THREADS))


def is_on_this_machine(url: str) -> bool:
    """Tell whether the store at `url` is a folder on a local file system, which answers for as long as the machine does."""
    if "://" in url and not url.startswith("file://"):
        return False
    path = os.path.realpath(url.removeprefix("file://"))
    found = mounts.covering(path, mounts.of(os.getpid()))
    return found is not None and found.kind in _LOCAL_KINDS


@contextlib.contextmanager
def opened(place: Place, *, create: bool = False) -> Iterator[Repository]:
    """Open the store at `place` while the block runs; with `create`, one that is missing is made.

    Raises `errors.StoreMissing`, `errors.StoreKeyWrong` and the other errors of a store.
    """
    backend = open_backend(place.url)
    if place.allowance is not None:
        backend = BoundedBackend(backend, place.allowance)
    try:
        yield _open(place, backend, create)
    finally:
        backend.close()


def require_room(repository: Repository) -> None:
    """Raise `errors.StoreFull` when as much is taken of the store of `repository` as may be."""
    if isinstance(repository.backend, BoundedBackend):
        repository.backend.require_room()


def _open(place: Place, backend: Backend, create: bool) -> Repository:
    key = read_key(place.key_file)
    cache = cache_of(place.cache, place.url)
    try:
        return Repository.open(backend, key=key, cache=cache, threads=place.threads, random=os.urandom)
    except errors.StoreMissing:
        if not create:
            raise
    backend.create()
    try:
        return Repository.create(
            backend,
            key=key,
            secret=os.urandom(32),
            repository_id=secrets.token_hex(16),
            cache=cache,
            threads=place.threads,
            random=os.urandom,
        )
    except errors.ObjectExists:  # somebody else made it at the same moment
        return Repository.open(backend, key=key, cache=cache, threads=place.threads, random=os.urandom)
