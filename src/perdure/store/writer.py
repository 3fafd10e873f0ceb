"""One new checkpoint being written. Called by the saver, through `Repository.writer`.

The main thread decides where each block lies; reading and hashing (`scan`), compressing and sealing (`assembly`) happen in others. Nothing
but packs is written before `commit`, so that a crash leaves at most packs that no manifest names: garbage collection finds them.
"""

from __future__ import annotations

import contextlib
import os
import stat
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from perdure import errors
from perdure.model.checkpoint import BLOCK_BYTES, Manifest, Part, PartSize, Run, StoredFile
from perdure.store import accounts, blocks, layout, manifests, names, packs, placed
from perdure.store.assembly import Assembly
from perdure.store.extents import HOLE, Extents
from perdure.store.fingerprints import Former, Taken
from perdure.store.index import Index
from perdure.store.keys import SALT_BYTES, Keys
from perdure.store.known import KnownPacks
from perdure.store.objects import Objects
from perdure.store.packs import PackRef
from perdure.store.placed import Placed
from perdure.store.placing import Placing
from perdure.store.reuse import Reuse
from perdure.store.scan import CHUNK_BYTES, Chunk, Content, File, Scanned, Scanner, chunks


class Source(msgspec.Struct, frozen=True):
    """What a writer works with; put together by the repository."""

    objects: Objects
    keys: Keys
    random: Callable[[int], bytes]
    threads: int
    index: Index
    former: Former
    """Fingerprints of the checkpoint before."""
    body: manifests.Body | None
    """Where the content of the checkpoint before lies."""
    fingerprints: Callable[[str], Path]
    """The file of a workload's fingerprints."""
    progress: Callable[[int], None]
    avoid: frozenset[bytes]
    """Names of packs that are not to be used again."""


class Writer:
    """See the module. Used by one thread; `close` ends it, committed or not."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._pool = ThreadPoolExecutor(source.threads, thread_name_prefix="store")
        self._asking = ThreadPoolExecutor(source.objects.parallel, thread_name_prefix="ask")
        self._scanner = Scanner(source.keys)
        self._buffers = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(2 * source.threads + 1)]
        self._known = KnownPacks(source.objects, source.keys, source.avoid)
        self._reuse = Reuse(source.body, self._known, self._asking, blocks.zero_id(source.keys.block))
        self._assembly = Assembly(
            source.objects,
            source.keys,
            pool=self._pool,
            depth=4 * source.threads,
            random=source.random,
            begin=self._known.begin,
            stored=self._stored,
        )
        self._placing = Placing(source.keys, source.index, self._known, self._reuse, self._assembly)
        self._taken = Taken()
        self._files: list[StoredFile] = []
        self._extents: list[Extents] = []
        self._new_blocks: dict[Part, int] = {}
        self._done_bytes = self._put_bytes = 0
        self._names: set[str] = set()
        self._half_done = self._committed = False

    def add(self, name: str, source: Path | int, *, part: Part, runs: Sequence[Run] | None = None, mode: int = 0o600) -> None:
        """Add the file `source`, a path (never a link) or a descriptor, as `name`: relative, in parts joined by ``/``, none of them ``..``.

        `runs` says which addresses its blocks belong to and covers the file; None: one run in the space ``file:NAME``. The file must not
        change meanwhile.

        Raises `errors.UsageError` for a name that cannot be one or was added before, or for runs that do not fit;
        `errors.CheckpointFailed` when the file cannot be read, is not a regular one or changes; `errors.StoreError`.
        """
        self._check_name(name)
        with _opened(name, source) as (descriptor, size_bytes):
            checked = _check_runs(name, runs, -(-size_bytes // BLOCK_BYTES))
            before, extents, _ = self._store(File(descriptor), checked, size_bytes)
            if os.fstat(descriptor).st_size != size_bytes:
                raise errors.CheckpointFailed(f"{name} changed while it was stored", hint="let nothing else touch the staging folder")
        self._half_done = False
        self._added(StoredFile(name, size_bytes, part, mode & 0o7777), extents, self._placing.new_blocks - before)

    def place(self, contents: Mapping[str, tuple[Content, int]]) -> dict[str, Placed]:
        """Store the content of files that are committed by another writer later, through `add_placed`: each with its size, by name.

        All of it is durable then. What was stored for all of them counts for the first. Raises as `add`.
        """
        done: list[tuple[str, int, Extents, bytes, int]] = []
        put_bytes = self._put_bytes
        for name, (content, size_bytes) in contents.items():
            self._check_name(name)
            runs = _check_runs(name, None, -(-size_bytes // BLOCK_BYTES))
            before, extents, prints = self._store(content, runs, size_bytes)
            done.append((name, size_bytes, extents, prints, self._placing.new_blocks - before))
            self._half_done = False
        self._half_done = True
        self._assembly.finish()
        self._half_done = False
        refs = self._known.refs()
        found: dict[str, Placed] = {}
        for name, size_bytes, extents, prints, new_blocks in done:
            put = self._put_bytes - put_bytes if not found else 0
            found[name] = placed.of_file(size_bytes, refs, extents, prints, new_blocks=new_blocks, put_bytes=put)
        return found

    def add_placed(self, name: str, record: Placed, *, part: Part, mode: int = 0o600) -> None:
        """Add a file whose content was stored before, by `place` of another writer.

        Raises `errors.StoreCorrupt` when it is not there any more, or damaged, and as `add`.
        """
        self._check_name(name)
        self._half_done = True
        self._known.check(record.packs, self._asking)
        for ref in record.packs:
            if not self._known.is_usable(ref):
                raise placed.unusable(ref)
        numbers = [HOLE, *map(self._known.number, record.packs)]
        extents = Extents()
        for pack, first, count in record.extents:
            extents.append(numbers[pack], first, count)
        self._taken.begin_file(_check_runs(name, None, extents.blocks))
        self._taken.extend(record.prints)
        self._put_bytes += record.put_bytes
        self._half_done = False
        self._added(StoredFile(name, record.size_bytes, part, mode & 0o7777), extents, record.new_blocks)

    def _check_name(self, name: str) -> None:
        self._check_whole()
        names.check(name)
        if name in self._names:
            raise errors.UsageError(f"{name} was added before")

    def _store(self, content: Content, runs: Sequence[Run], size_bytes: int) -> tuple[int, Extents, bytes]:
        """Store a file; returns how many new blocks there were before it, where it lies, and its fingerprints."""
        before, extents, prints = self._placing.new_blocks, Extents(), bytearray()
        self._half_done = True
        self._taken.begin_file(runs)
        self._add(content, runs, extents, size_bytes, prints)
        return before, extents, bytes(prints)

    def _added(self, file: StoredFile, extents: Extents, new_blocks: int) -> None:
        self._names.add(file.name)
        self._files.append(file)
        self._extents.append(extents)
        self._new_blocks[file.part] = self._new_blocks.get(file.part, 0) + new_blocks

    def _check_whole(self) -> None:
        """A file that failed halfway has left marks: nothing may be built on them."""
        if self._half_done or self._committed:
            raise ValueError("a writer ends with its first failure, and with its commit")

    def _add(self, content: Content, runs: Sequence[Run], extents: Extents, size_bytes: int, prints: bytearray) -> None:
        waiting: deque[tuple[Chunk, memoryview, Future[Scanned]]] = deque()
        start_bytes = self._done_bytes
        try:
            for chunk in chunks(runs, self._source.former, self._reuse.is_usable):
                if not self._buffers:
                    prints += self._take(*waiting.popleft(), extents)
                buffer = self._buffers.pop()
                waiting.append((chunk, buffer, self._pool.submit(self._scanner.scan, content, chunk, buffer)))
            while waiting:
                prints += self._take(*waiting.popleft(), extents)
            self._placing.settle(extents)
        finally:
            # A descriptor is closed next: no thread may still be reading from it.
            for _, buffer, future in waiting:
                future.cancel() or future.exception()
                self._buffers.append(buffer)
        self._done_bytes = start_bytes + size_bytes
        self._source.progress(self._done_bytes)

    def _take(self, chunk: Chunk, buffer: memoryview, future: Future[Scanned], extents: Extents) -> bytes:
        try:
            scanned = future.result()
            self._placing.place(chunk, scanned, buffer, extents)
        finally:
            self._buffers.append(buffer)
        self._taken.extend(scanned.prints)
        self._done_bytes += chunk.blocks * BLOCK_BYTES
        self._source.progress(self._done_bytes)
        return scanned.prints

    def _stored(self, number: int, ref: PackRef, ids: bytes, lengths: array[int]) -> None:
        self._known.stored(number, ref, packs.starts_of(lengths))
        self._put_bytes += ref.size_bytes
        self._source.index.add(ref, ids)

    def commit(
        self,
        describe: Callable[[tuple[PartSize, ...], tuple[StoredFile, ...]], Manifest],
        *,
        require: Callable[[], None] = lambda: None,
    ) -> Manifest:
        """Make everything durable, then the checkpoint visible, in one step. Returns the manifest with its final `sizes` and `files`.

        `describe` is called once, when all content is stored; the manifest that it returns names the checkpoint. Its `sizes` and `files`
        are set here: the manifest's own length counts among the new bytes. `require` raises `errors.StoreLocked` when the lock that keeps
        packs from being deleted is lost (`Lock.require`): it is asked before the manifest is written and again when it is there.

        Raises `errors.ObjectExists` when there is a checkpoint of that id, `errors.StoreCorrupt` when a pack that was to be shared is
        gone, `errors.StoreLocked` when `require` does: there is no checkpoint then; `errors.StoreError`.
        """
        self._check_whole()
        self._assembly.finish()
        self._known.check_again(self._asking)
        refs = self._known.refs()
        files = tuple(self._files)
        stored = accounts.stored_by_part(files, self._extents, self._known.starts())
        body = manifests.wrap_body(refs, self._extents)
        described = describe(accounts.sizes(files, stored, self._new_blocks, self._put_bytes), files)
        salt = self._source.random(SALT_BYTES)
        content, manifest = self._settle(described, salt, body, stored)
        # All packs are durable by now, which may have taken long.
        require()
        self._put_manifest(layout.manifest_key(manifest.id), content, require)
        with contextlib.suppress(errors.OutputError):
            # Without them the next checkpoint only takes longer.
            self._taken.save(self._source.fingerprints(manifest.id.workload), self._source.keys, salt)
        return manifest

    def _put_manifest(self, key: str, content: bytes, require: Callable[[], None]) -> None:
        self._source.objects.put_if_absent(key, content)
        self._committed = True
        try:
            require()
        except errors.StoreLocked:
            # It arrived so late that packs may be deleted which nothing named until then.
            with contextlib.suppress(errors.StoreError):
                self._source.objects.delete(key)
            raise

    def _settle(self, described: Manifest, salt: bytes, body: bytes, stored: dict[Part, int]) -> tuple[bytes, Manifest]:
        """Return the manifest object, and the manifest in which its own length is counted."""
        size_bytes = head_bytes = 0
        while True:
            files = tuple(self._files)
            sizes = accounts.sizes(files, stored, self._new_blocks, self._put_bytes + size_bytes)
            manifest = msgspec.structs.replace(described, sizes=sizes, files=files, pinned=False)
            # The head never shrinks from one turn to the next, and grows by steps: soon it stays.
            content, head_bytes = manifests.encode(self._source.keys, salt, manifest, body, least_head_bytes=head_bytes)
            if len(content) == size_bytes:
                return content, manifest
            size_bytes = len(content)

    def close(self) -> None:
        """End the threads; without a commit before, nothing of it can be seen."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._assembly.close()
        self._asking.shutdown(wait=True, cancel_futures=True)
        self._buffers.clear()


@contextlib.contextmanager
def _opened(name: str, source: Path | int) -> Iterator[tuple[int, int]]:
    try:
        # O_NONBLOCK: a FIFO of that name must not stop us before it is refused.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(source, flags) if isinstance(source, Path) else os.dup(source)
    except OSError as error:
        raise errors.CheckpointFailed(
            f"{name} cannot be read: {error.strerror}", hint="see what is wrong with the staging folder"
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise errors.CheckpointFailed(f"{name} is not a regular file", hint="let nothing else touch the staging folder")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)


def _check_runs(name: str, runs: Sequence[Run] | None, count: int) -> tuple[Run, ...]:
    if runs is None:
        return (Run(f"file:{name}", 0, count),) if count else ()
    kept = tuple(run for run in runs if run.blocks)
    if any(run.blocks < 0 or run.address < 0 or run.address % BLOCK_BYTES for run in kept) or sum(run.blocks for run in kept) != count:
        raise errors.UsageError(f"the runs of {name} do not cover its {count} blocks")
    if any(run.address + run.blocks * BLOCK_BYTES > 2**64 for run in kept):
        raise errors.UsageError(f"the runs of {name} lie beyond all addresses")
    return kept
