"""A store of checkpoints at one place. Called by the supervisor, its saver, and the commands `perdure store …`.

A repository reads and writes objects through a `Backend` and knows the keys; it holds no lock and decides nothing: locks, lives, retention
and garbage collection are built on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

from perdure.model.checkpoint import CheckpointId, Manifest
from perdure.store.backends.contract import Backend
from perdure.store.writer import Writer


class Repository:
    """See the module."""

    backend: Backend
    id: str
    encrypted: bool

    @classmethod
    def create(
        cls,
        backend: Backend,
        *,
        key: bytes | None,
        secret: bytes,
        repository_id: str,
        cache: Path,
        threads: int = 1,
        random: Callable[[int], bytes],
    ) -> Repository:
        """Make a store at `backend` and return it opened (`open` says what the arguments mean).

        `secret` is 32 random bytes and `repository_id` a random name of 32 hexadecimal digits: what this store is told from others by.

        Raises `errors.StoreError` when there is one already (`ObjectExists`), `errors.StoreKeyWrong` for a key file that is too short.
        """
        raise NotImplementedError

    @classmethod
    def open(cls, backend: Backend, *, key: bytes | None, cache: Path, threads: int, random: Callable[[int], bytes]) -> Repository:
        """Open the store at `backend`.

        `key` is what the key file holds (32 bytes to 1 MiB), None without one. `cache` is a private folder for what is only there to be
        fast (made when missing; any file in it may be deleted at any time). `threads`, at least 1, bounds the CPUs used. `random(n)`
        returns n random bytes fit for keys: `os.urandom`.

        Raises `errors.StoreMissing`, `errors.StoreKeyWrong` (also for a missing or superfluous key), `errors.StoreFormat`,
        `errors.StoreCorrupt`.
        """
        raise NotImplementedError

    def workloads(self) -> tuple[str, ...]:
        """Return the names of all workloads of which the store holds anything, sorted."""
        raise NotImplementedError

    def checkpoints(self, workload: str) -> tuple[CheckpointId, ...]:
        """Return the workload's checkpoints, oldest first, from keys alone."""
        raise NotImplementedError

    def head(self, checkpoint: CheckpointId) -> Manifest:
        """Return what a checkpoint says of itself, authenticated.

        Raises `errors.WorkloadMissing` when there is no such checkpoint, `errors.StoreCorrupt`, `errors.StoreFormat`.
        """
        raise NotImplementedError

    def packs_of(self, checkpoint: CheckpointId) -> frozenset[str]:
        """Return the keys of all packs that a checkpoint needs. Raises as `head`."""
        raise NotImplementedError

    def writer(self, *, previous: Manifest | None, progress: Callable[[int], None]) -> AbstractContextManager[Writer]:
        """Begin a checkpoint. The block's end without `Writer.commit`, for whatever reason, leaves nothing that can be seen.

        `previous` is the checkpoint that the new one most likely resembles. `progress` is told how many bytes of the files added so far
        are done; what it raises cancels the checkpoint.
        """
        raise NotImplementedError

    def extract(
        self,
        checkpoint: CheckpointId,
        into: int | Path,
        *,
        names: Collection[str] | None = None,
        progress: Callable[[int], None],
    ) -> Manifest:
        """Write a checkpoint's files (or those called `names`) below the folder `into`, a path or a descriptor, and return its manifest.

        Every byte is verified. Files and folders are created; one that exists is an error. After an error the files that this call
        made are removed. `progress` is told how many bytes are done.

        Raises as `head`; `errors.StoreCorrupt` names the damaged or missing object; `errors.OutputError` when `into` cannot be written.
        """
        raise NotImplementedError

    def read_file(self, checkpoint: CheckpointId, name: str) -> bytes:
        """Return the content of one small file (at most 64 MiB) of a checkpoint.

        Raises as `extract`, and `errors.WorkloadMissing` for a name that it has not.
        """
        raise NotImplementedError

    def write_record(self, key: str, content: bytes, *, replace: bool) -> None:
        """Write a small record (a life, a lease, a pin, a lock: at most 1 MiB) sealed to its key, so that it can be neither read without
        the store's key nor altered, nor moved to another key.

        Raises `errors.ObjectExists` when it is there already and `replace` is false.
        """
        raise NotImplementedError

    def read_record(self, key: str) -> bytes:
        """Return what `write_record` wrote. Raises `errors.ObjectMissing`, `errors.StoreCorrupt`, `errors.StoreFormat`."""
        raise NotImplementedError

    def check_object(self, key: str) -> None:
        """Read the object at `key` completely and verify all of it: for a pack every frame too, for a manifest its body too.

        Raises `errors.StoreCorrupt` (naming the key), `errors.ObjectMissing`, `errors.StoreFormat`. A key that is none of ours is
        `StoreCorrupt` too.
        """
        raise NotImplementedError
