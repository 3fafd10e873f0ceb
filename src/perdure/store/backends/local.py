"""A directory as a place for objects: the default store, on a local disk or a shared file system. Opened by `address`.

The object `packs/ab/cd` is the file of that name. It is written under a temporary name beside its own, synced, and renamed: no object is
ever seen half, and no rename crosses into another file system or quota. Temporary names begin with ``+``, which no key does.

On NFS: rename and link are atomic on the server; an fsync is a COMMIT there; a folder may be cached by another client for some seconds, so
that its listing is late there, while opening a file by name asks the server ("close to open"). What must be exact is therefore decided by
`put_if_absent`, never by a listing. A file that is removed or replaced there while it is open here is stale: it is opened anew by its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from perdure import errors
from perdure.store import layout
from perdure.store.backends import contract, exclusive, leftovers, listing, local_errors, names, places
from perdure.store.backends.contract import ObjectInfo

_Result = TypeVar("_Result")
_STALE = 2
"""How often a file is opened anew that a file server says is stale: a lease or a lock that was replaced may be replaced again."""


class LocalBackend:
    """A `contract.Backend` in a directory. Any number of threads and processes, on any number of machines, may use one at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Name the directory. It is made by `create` and opened by the first call that needs it."""
        self._path = Path(path).absolute()
        self._root: int | None = None
        self._lock = threading.Lock()
        self._durable: set[str] = set()

    @property
    def url(self) -> str:
        """The directory's absolute path."""
        return str(self._path)

    @property
    def parallel(self) -> int:
        """Four: while one call waits for the disk's fsync, others write."""
        return 4

    def create(self) -> None:
        """Make the directory, and remove what writers that died left in it an hour ago or longer.

        Raises `errors.StoreError` where it cannot be made, `errors.StoreFull`, `errors.StoreUnavailable`.
        """
        with self._explaining():
            for folder in (*reversed(self._path.parents), self._path):
                if not os.path.lexists(folder):
                    folder.mkdir(places.DIRECTORY_MODE, exist_ok=True)
                    folder.chmod(places.DIRECTORY_MODE)
                    _sync(folder.parent)
            leftovers.sweep(self._opened())

    def exists(self) -> bool:
        """Tell whether the directory is there. Raises `errors.StoreError` for what is none, or may not be entered."""
        with self._explaining():
            try:
                self._opened()
            except errors.StoreMissing:
                return False
            return True

    def put(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the file, replacing one of that name."""

        def replace(parent: int, temporary: str, name: str) -> None:
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

        self._write(names.check_key(key), names.check_content(key, content), replace)

    def put_if_absent(self, key: str, content: bytes | bytearray | memoryview) -> None:
        """Write the file unless one of that name is there: then raise `errors.ObjectExists`."""
        view = names.check_content(names.check_key(key), content)
        try:
            if not self._settled(key):
                self._write(key, view, exclusive.rename_if_absent)
                return
        except FileExistsError:
            self._settled(key)
        raise names.exists(key)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of the file.

        Raises `errors.StoreCorrupt` for one that is larger than any object of ours, `errors.ObjectUnreadable` for one that the disk does
        not give out while it gives out others.
        """
        names.check_range(start, length)
        names.check_key(key)

        def read(descriptor: int) -> bytes:
            return _range(descriptor, key, start, length)

        with self._explaining(key):
            try:
                return self._read(key, read)
            except OSError as error:
                if error.errno not in local_errors.UNREADABLE or not self._answers():
                    raise
            try:
                return self._read(key, read)
            except OSError as error:
                if error.errno not in local_errors.UNREADABLE:
                    raise
                raise local_errors.unreadable(error, self._path, key) from error

    def size(self, key: str) -> int:
        """Return the size of the file."""
        names.check_key(key)
        with self._explaining(key):
            return self._read(key, lambda descriptor: os.fstat(descriptor).st_size)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the files below `prefix`, in order of their keys. Raises `errors.StoreError` for a link or special file among them."""
        names.check_prefix(prefix)
        with self._explaining(prefix):
            yield from listing.walk(self._opened(), prefix)

    def delete(self, key: str, *, once: bool = False) -> None:
        """Remove the file. Its folder stays: another writer may be on its way into it."""
        del once
        *parts, name = names.check_key(key).split("/")
        with self._explaining(key):
            root = self._opened()
            try:
                with places.directory(root, parts) as parent:
                    os.unlink(name, dir_fd=parent)
                    os.fsync(parent)
            except FileNotFoundError:
                return
            except NotADirectoryError:
                places.refuse_links(root, parts)

    def close(self) -> None:
        """Let go of the directory; a later call opens it again."""
        with self._lock:
            if self._root is not None:
                os.close(self._root)
                self._root = None

    def _read(self, key: str, read: Callable[[int], _Result]) -> _Result:
        """Return what `read` makes of the open file. One that another machine removed or replaced since it was opened is opened anew."""
        for _ in range(_STALE):
            try:
                with places.reading(self._opened(), key) as descriptor:
                    return read(descriptor)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
        with places.reading(self._opened(), key) as descriptor:
            return read(descriptor)

    def _answers(self) -> bool:
        """Tell whether the disk gives out the object that every store has: then it has not gone as a whole."""
        try:
            with places.reading(self._opened(), layout.CONFIG) as descriptor:
                # Memory may hold it long after the disk has gone.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                return bool(places.read(descriptor, 0, 1))
        except (OSError, errors.StoreError):
            return False

    def _write(self, key: str, content: memoryview, publish: Callable[[int, str, str], None]) -> None:
        """Write `content` to a temporary file and let `publish` give it its name. Raises `FileExistsError` as `publish` does."""
        *parts, name = key.split("/")
        with self._explaining(key):
            root = self._opened()
            places.make_directories(root, parts, self._durable)
            with places.directory(root, parts) as parent:
                temporary = leftovers.temporary_name(secrets.token_hex(8))
                descriptor = places.create_file(parent, temporary)
                try:
                    # Tells a sweep that the writer lives. Where locks are refused the file's age alone must tell.
                    with contextlib.suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    places.write(descriptor, content)
                    os.fsync(descriptor)
                    publish(parent, temporary, name)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=parent)
                    raise
                finally:
                    os.close(descriptor)
                os.fsync(parent)

    def _settled(self, key: str) -> bool:
        """Tell whether the object is there, and if so see to it that its name is on disk.

        Its writer may have been killed between the rename and the fsync, and who is told "exists" builds on it.
        """
        *parts, name = key.split("/")
        with self._explaining(key):
            try:
                with places.directory(self._opened(), parts) as parent:
                    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
                    os.fsync(parent)
            except FileNotFoundError:
                return False
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(mode):
                raise places.not_an_object(key)
            return True

    def _opened(self) -> int:
        """Return the directory's descriptor. One that was removed in the meantime, and perhaps made anew, is opened again."""
        with self._lock:
            if self._root is not None and _is_gone(self._root):
                os.close(self._root)
                self._root = None
                self._durable.clear()
            if self._root is None:
                try:
                    # Links are followed here, and only here: the user named this path.
                    self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                except FileNotFoundError:
                    raise errors.StoreMissing(
                        f"there is no store at {self._path}", hint="name the one that was used: --store PATH or URL"
                    ) from None
            return self._root

    @contextlib.contextmanager
    def _explaining(self, key: str = "") -> Iterator[None]:
        """Turn what the system says into errors of the contract; `FileExistsError` is for the caller."""
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise local_errors.explain(error, self._path, key) from error


def _range(descriptor: int, key: str, start: int, length: int | None) -> bytes:
    available = max(0, os.fstat(descriptor).st_size - start)
    wanted = available if length is None else min(length, available)
    if wanted > contract.MAX_OBJECT_BYTES:
        raise errors.StoreCorrupt(
            f"{key} has {available} bytes, more than any object", hint="see what is damaged: perdure store verify", object_key=key
        )
    return places.read(descriptor, start, wanted)


def _is_gone(root: int) -> bool:
    """Tell whether the open folder was removed, on this machine or on its server."""
    try:
        return os.fstat(root).st_nlink == 0
    except OSError as error:
        if error.errno == errno.ESTALE:
            return True
        raise


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
