"""A store of checkpoints at one place. Called by the supervisor, its saver, and the commands `perdure store …`.

A repository reads and writes objects through a `Backend` and knows the keys; it holds no lock and decides nothing: locks, lives, retention
and garbage collection are built on it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perdure import errors
from perdure.model.checkpoint import CheckpointId, Manifest
from perdure.store import checks, codec, config, extraction, fingerprints, layout, manifests, sealed
from perdure.store.backends.contract import Backend
from perdure.store.fingerprints import Former
from perdure.store.index import Index
from perdure.store.keys import SALT_BYTES, Keys
from perdure.store.objects import Objects
from perdure.store.placed import Placements
from perdure.store.reader import Reader
from perdure.store.streaming import Streams
from perdure.store.writer import Source, Writer

_HEAD_BYTES = 64 * 1024
"""Read at first of a manifest whose head is wanted: nearly all heads are shorter."""

_SMALL_FILE_BYTES = 64 * 1024 * 1024
_REBUILD_PACKS = 1024
_REBUILD_IDS_BYTES = 64 * 1024 * 1024
"""An empty index is filled from the store's packs when there are no more than this, about 16 GiB: it takes three reads for each."""


class Repository:
    """See the module. Made by `create` and `open`."""

    def __init__(
        self, backend: Backend, repository_id: str, keys: Keys, *, cache: Path, threads: int, random: Callable[[int], bytes]
    ) -> None:
        self.backend = backend
        self.id = repository_id
        """32 hexadecimal digits."""
        self.encrypted = keys.encrypted
        self.threads = threads
        self._keys = keys
        self._objects = Objects(backend)
        self._cache = cache / repository_id
        self._random = random

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
        random: Callable[[int], bytes] = os.urandom,
    ) -> Repository:
        """Make a store at `backend` and return it opened (`open` says what the other arguments mean).

        `secret` is 32 random bytes and `repository_id` a random name of 32 hexadecimal digits: what this store is told from others by.

        Raises `errors.ObjectExists` when there is one already, `errors.StoreKeyWrong` for a key file that is too short.
        """
        keys = Keys(secret, key)
        content = config.encode(repository_id, secret, keys)
        backend.create()
        backend.put_if_absent(layout.CONFIG, content)
        return cls(backend, repository_id, keys, cache=cache, threads=threads, random=random)

    @classmethod
    def open(
        cls, backend: Backend, *, key: bytes | None, cache: Path, threads: int = 1, random: Callable[[int], bytes] = os.urandom
    ) -> Repository:
        """Open the store at `backend`.

        `key` is what the key file holds (32 bytes to 1 MiB), None without one. `cache` is a private folder for what is only there to be
        fast (made when missing; any file in it may be deleted at any time). `threads`, at least 1, bounds the CPUs used. `random(n)`
        returns n random bytes fit for keys.

        Raises `errors.StoreMissing`, `errors.StoreKeyWrong` (also for a missing or superfluous key), `errors.StoreFormat`,
        `errors.StoreCorrupt` (also for a store whose configuration is gone: a new one would open nothing of what it holds).
        """
        content = _configuration(backend)
        if content is None and any(next(backend.list(prefix), None) for prefix in (layout.PACKS, layout.WORKLOADS)):
            # Looked for again: it may have been made since by somebody else, who then wrote the rest.
            content = _configuration(backend)
            if content is None:
                raise errors.StoreCorrupt(
                    f"{backend.url}: {layout.CONFIG} is gone, without which nothing of this store can be read",
                    hint=f"bring {layout.CONFIG} back from a copy; a new store needs another place",
                    object_key=layout.CONFIG,
                )
        if content is None:
            raise errors.StoreMissing(
                f"there is no store at {backend.url}", hint="perdure run makes one; or name another place: --store URL"
            )
        repository_id, keys = config.decode(content, key)
        return cls(backend, repository_id, keys, cache=cache, threads=threads, random=random)

    def workloads(self) -> tuple[str, ...]:
        """Return the names of all workloads of which the store holds anything, sorted."""
        found = (layout.workload_of(info.key) for info in self._objects.list(layout.WORKLOADS))
        return tuple(sorted({name for name in found if name is not None}))

    def checkpoints(self, workload: str) -> tuple[CheckpointId, ...]:
        """Return the workload's checkpoints, oldest first, from keys alone."""
        found = (layout.checkpoint_of(info.key) for info in self._objects.list(layout.manifests(workload)))
        return tuple(sorted(checkpoint for checkpoint in found if checkpoint is not None))

    def head(self, checkpoint: CheckpointId) -> Manifest:
        """Return what a checkpoint says of itself, authenticated.

        Raises `errors.WorkloadMissing` when there is no such checkpoint, `errors.StoreCorrupt`, `errors.StoreFormat`.
        """
        key = layout.manifest_key(checkpoint)
        start = self._manifest_bytes(checkpoint, _HEAD_BYTES)
        opened = manifests.Opened(self._keys, key, start)
        end = manifests.FRONT_BYTES + opened.head_bytes
        if len(start) < end:
            start += self._objects.get(key, start=len(start), length=end - len(start))
        return opened.head(memoryview(start)[manifests.FRONT_BYTES : end])

    def packs_of(self, checkpoint: CheckpointId) -> frozenset[str]:
        """Return the keys of all packs that a checkpoint needs. Raises as `head`."""
        return frozenset(pack.key for pack in self._whole(checkpoint)[1].packs)

    def pack_blocks_of(self, checkpoint: CheckpointId) -> dict[str, int]:
        """Return how many blocks each pack that a checkpoint needs holds in all, by its key. Raises as `head`."""
        return {pack.key: pack.slots for pack in self._whole(checkpoint)[1].packs}

    def sizes(self, keys: Collection[str]) -> dict[str, int]:
        """Return the size of each object of `keys` that is there, asking for each by its name."""
        with ThreadPoolExecutor(self._objects.parallel, thread_name_prefix="ask") as pool:
            return {key: size for key, size in zip(keys, pool.map(self._objects.find, keys), strict=True) if size is not None}

    @contextlib.contextmanager
    def writer(self, *, previous: Manifest | None, progress: Callable[[int], None], avoid: Collection[str] = ()) -> Iterator[Writer]:
        """Begin a checkpoint. The block's end without `Writer.commit`, for whatever reason, leaves nothing that can be seen.

        `previous` is the checkpoint that the new one most likely resembles. `progress` is told how many bytes of the files added so far
        are done; what it raises cancels the checkpoint. `avoid` holds keys of packs that are known to be damaged: what they hold is
        stored anew, so that the new checkpoint does not inherit the damage.
        """
        self._make_cache()
        body, former = self._former(previous)
        avoided = frozenset(name for name in map(layout.pack_name, avoid) if name is not None)
        with contextlib.closing(Index(self._cache / "index.db")) as index:
            self._fill(index)
            source = Source(
                self._objects, self._keys, self._random, self.threads, index, former, body, self._fingerprints, progress, avoided
            )
            with contextlib.closing(Writer(source)) as writer:
                yield writer

    def extract(
        self,
        checkpoint: CheckpointId,
        into: int | Path,
        *,
        names: Collection[str] | None = None,
        progress: Callable[[int], None],
    ) -> Manifest:
        """Write a checkpoint's files (or those called `names`) below the folder `into`, a path or a descriptor, and return its manifest.

        Every byte is verified. Files and folders are created; a file that exists is an error. After an error the files that this call
        made are removed. `progress` is told how many bytes are done.

        Raises as `head`, and `errors.WorkloadMissing` for a name that the checkpoint has not; `errors.StoreCorrupt` names the damaged or
        missing object; `errors.OutputError` when `into` cannot be written.
        """
        head, body = self._whole(checkpoint)
        wanted = _wanted(head, names)
        with extraction.Extraction(into, {number: head.files[number] for number in wanted}) as files:
            Reader(self._objects, self._keys, body, head.files, files).read(wanted, self.threads, progress)
        return head

    def stream(self, checkpoint: CheckpointId, *, threads: int | None = None) -> Streams:
        """Return the files of a checkpoint to be read from front to back, each once, while the context that it is lasts.

        `threads` read; None: as many as the repository was opened with. Raises as `head`.
        """
        head, body = self._whole(checkpoint)
        return Streams(self._objects, self._keys, body, head.files, threads or self.threads)

    @property
    def placements(self) -> Placements:
        """What seals, opens and reads records of content that was stored before its checkpoint."""
        return Placements(self._objects, self._keys, self.threads, self._random)

    def read_file(self, checkpoint: CheckpointId, name: str) -> bytes:
        """Return the content of one small file (at most 64 MiB) of a checkpoint.

        Raises as `extract`, and `errors.Unsupported` for a file that is larger.
        """
        head, body = self._whole(checkpoint)
        wanted = _wanted(head, [name])
        file = head.files[wanted[0]]
        if file.size_bytes > _SMALL_FILE_BYTES:
            raise errors.Unsupported(f"{name} is too large to be held in memory", hint="extract it into a folder")
        memory = _Memory(file.size_bytes)
        Reader(self._objects, self._keys, body, head.files, memory).read(wanted, 1, lambda _: None)
        return bytes(memory.content)

    def write_record(self, key: str, content: bytes, *, replace: bool) -> None:
        """Write a small record (a life, a lease, a pin, a lock: at most 1 MiB) sealed to its key.

        It can be neither altered nor moved to another key, and in an encrypted store not be read, without the store's key.

        Raises `errors.ObjectExists` when it is there already and `replace` is false.
        """
        stored = sealed.encode(self._keys, key, content, self._random(SALT_BYTES))
        if replace:
            self._objects.put(key, stored)
        else:
            self._objects.put_if_absent(key, stored)

    def read_record(self, key: str) -> bytes:
        """Return what `write_record` wrote. Raises `errors.ObjectMissing`, `errors.StoreCorrupt`, `errors.StoreFormat`."""
        return sealed.decode(self._keys, key, self._objects.get(key, length=sealed.MAX_OBJECT_BYTES + 1))

    def check_object(self, key: str) -> None:
        """Read the object at `key` completely and verify all of it: for a pack every frame and block, for a manifest its body too.

        Raises `errors.StoreCorrupt` (naming the key), `errors.ObjectMissing`, `errors.StoreFormat`. A key that is none of ours is
        `StoreCorrupt` too.
        """
        kind = layout.kind_of(key)
        content = self._objects.get(key)
        if kind is layout.Kind.PACK:
            checks.check_pack(self._keys, key, content)
        elif kind is layout.Kind.MANIFEST:
            extraction.check_names(self._open_whole(key, content)[0].files, key)
        elif kind is layout.Kind.CONFIG:
            config.check(content, self.id, self._keys)
        elif kind is None:
            raise codec.corrupt(key, "no object of a store has such a name")
        else:
            sealed.decode(self._keys, key, content)

    def forget_packs(self, keys: Collection[str]) -> None:
        """Take packs that were deleted out of the local index. Called by garbage collection; nothing rests on it."""
        self._make_cache()
        names = [name for name in map(layout.pack_name, keys) if name is not None]
        with contextlib.closing(Index(self._cache / "index.db")) as index:
            index.forget(names)

    def _manifest_bytes(self, checkpoint: CheckpointId, length: int | None) -> bytes:
        try:
            return self._objects.get(layout.manifest_key(checkpoint), length=length)
        except errors.ObjectMissing:
            raise errors.WorkloadMissing(f"there is no checkpoint {checkpoint}", hint="see which there are: perdure store ls") from None

    def _whole(self, checkpoint: CheckpointId) -> tuple[Manifest, manifests.Body]:
        key = layout.manifest_key(checkpoint)
        head, body = self._open_whole(key, self._manifest_bytes(checkpoint, None))
        extraction.check_names(head.files, key)
        return head, body

    def _open_whole(self, key: str, content: bytes) -> tuple[Manifest, manifests.Body]:
        opened = manifests.Opened(self._keys, key, content)
        if len(content) != opened.size_bytes:
            raise codec.corrupt(key, f"it is {len(content)} bytes long instead of {opened.size_bytes}")
        body_start = manifests.FRONT_BYTES + opened.head_bytes
        view = memoryview(content)
        head = opened.head(view[manifests.FRONT_BYTES : body_start])
        return head, opened.body(view[body_start:], head)

    def _former(self, previous: Manifest | None) -> tuple[manifests.Body | None, Former]:
        nothing = Former({}, b"")
        if previous is None:
            return None, nothing
        try:
            body = self._whole(previous.id)[1]
        except (errors.StoreCorrupt, errors.StoreFormat, errors.WorkloadMissing):
            # A new checkpoint must not fail because an old one is damaged: it only shares nothing with it.
            return None, nothing
        file_blocks = [file.blocks for file in body.files]
        return body, fingerprints.load(self._fingerprints(previous.id.workload), self._keys, body.salt, file_blocks)

    def _fingerprints(self, workload: str) -> Path:
        return self._cache / f"{workload}.fingerprints"

    def _make_cache(self) -> None:
        try:
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise errors.OutputError(f"cannot make {self._cache}: {error.strerror}", hint="choose another state folder") from error

    def _fill(self, index: Index) -> None:
        """Fill an index that knows nothing from the packs of a store that is not large."""
        if index.packs():
            return
        found = [info.key for info in self._objects.list(layout.PACKS)]
        if len(found) <= _REBUILD_PACKS:
            checks.fill_index(self._objects, self._keys, index, found, _REBUILD_IDS_BYTES)


class _Memory:
    """A file in memory, as a place to extract into."""

    def __init__(self, size_bytes: int) -> None:
        self.content = bytearray(size_bytes)

    def write(self, file: int, offset: int, parts: Sequence[memoryview]) -> None:
        """See `reader.Sink.write`; there is only one file."""
        del file
        for part in parts:
            self.content[offset : offset + len(part)] = part
            offset += len(part)


def _configuration(backend: Backend) -> bytes | None:
    try:
        return backend.get(layout.CONFIG, length=config.MAX_BYTES + 1)
    except errors.ObjectMissing:
        return None


def _wanted(head: Manifest, names: Collection[str] | None) -> list[int]:
    if names is None:
        return list(range(len(head.files)))
    numbers = {file.name: number for number, file in enumerate(head.files)}
    for name in names:
        if name not in numbers:
            raise errors.WorkloadMissing(f"{head.id} has no file {name!r}", hint="see what it has: perdure store show")
    return sorted(numbers[name] for name in set(names))
