"""Which pack holds a block: a cache in SQLite beside the store, never part of it. Called by the writer and the repository.

Nothing rests on it: the writer checks each answer against the pack itself, and a file that is damaged, locked or lost costs only that
blocks are stored again which the store holds already. It is therefore written without waiting for the disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from perdure.store.packs import PackRef

_FORMAT = 2
_CACHE_KIB = 32 * 1024
_ASK_AT_ONCE = 256
_SLOT_BITS = 16
"""A place is the pack's number and, in this many bits, the slot: packs have at most 65,536."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS packs
    (number INTEGER PRIMARY KEY AUTOINCREMENT, name BLOB NOT NULL UNIQUE, size_bytes INTEGER NOT NULL, slots INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS blocks (id INTEGER PRIMARY KEY, place INTEGER NOT NULL);
PRAGMA user_version = {_FORMAT};
"""
_FIND = (
    f"SELECT blocks.id, packs.name, packs.size_bytes, packs.slots, blocks.place & {(1 << _SLOT_BITS) - 1}"
    f" FROM blocks JOIN packs ON packs.number = blocks.place >> {_SLOT_BITS} WHERE blocks.id IN ({{}})"
)


class Index:
    """Open, or make, the index in the file `path`. Used by one thread. Never raises: without a usable file it knows nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = self._open()
        except sqlite3.OperationalError:
            self.close()  # locked or not writable: another time
        except sqlite3.DatabaseError:
            self._start_over()

    def _open(self) -> sqlite3.Connection:
        with contextlib.suppress(FileExistsError, OSError):
            # SQLite would make it readable by all.
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
        # The writer's thread uses it; the one that opened the store closes it.
        self._connection = connection = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        if connection.execute("PRAGMA user_version").fetchone()[0] not in (0, _FORMAT):
            raise sqlite3.DatabaseError("another format")
        connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB}; {_SCHEMA}")
        return connection

    def _start_over(self) -> None:
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}{suffix}")
        try:
            self._connection = self._open()
        except sqlite3.Error:
            self.close()

    def _lost(self, error: sqlite3.Error) -> None:
        if isinstance(error, sqlite3.OperationalError):
            self.close()
        else:
            self._start_over()

    def find(self, ids: Sequence[bytes]) -> dict[bytes, tuple[PackRef, int]]:
        """Return pack and slot of those of `ids` that seem to be known: blocks are told apart here by half of their ids."""
        found = {}
        for start in range(0, len(ids), _ASK_AT_ONCE):
            if self._connection is None:
                break
            asked = {number: block_id for block_id in ids[start : start + _ASK_AT_ONCE] for number in _numbers(block_id)}
            try:
                rows = self._connection.execute(_FIND.format(",".join("?" * len(asked))), list(asked)).fetchall()
            except sqlite3.Error as error:
                self._lost(error)
                break
            for number, name, size_bytes, slots, slot in rows:
                found[asked[number]] = (PackRef(name, size_bytes, slots), slot)
        return found

    def add(self, pack: PackRef, ids: bytes) -> None:
        """Remember the blocks of a pack, `ids` one after the other."""
        if self._connection is None:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(
                "INSERT OR IGNORE INTO packs (name, size_bytes, slots) VALUES (?, ?, ?)", (pack.name, pack.size_bytes, pack.slots)
            )
            number = self._connection.execute("SELECT number FROM packs WHERE name = ?", (pack.name,)).fetchone()[0]
            # In the order of the keys: neighbours lie on one page of the tree.
            rows = sorted(zip(_numbers(ids), range(number << _SLOT_BITS, (number << _SLOT_BITS) + pack.slots), strict=True))
            self._connection.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?)", rows)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._lost(error)

    def packs(self) -> frozenset[bytes]:
        """Return the names of the packs that are known."""
        if self._connection is None:
            return frozenset()
        try:
            return frozenset(name for (name,) in self._connection.execute("SELECT name FROM packs"))
        except sqlite3.Error as error:
            self._lost(error)
            return frozenset()

    def forget(self, names: Collection[bytes]) -> None:
        """Forget packs and the blocks in them."""
        if self._connection is None or not names:
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM packs WHERE name = ?", _rows(names))
            self._connection.execute(f"DELETE FROM blocks WHERE place >> {_SLOT_BITS} NOT IN (SELECT number FROM packs)")
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._lost(error)

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def _numbers(ids: bytes) -> tuple[int, ...]:
    """Return the first half of each id as a number: in SQLite such keys take a third less time and room than blobs."""
    return struct.unpack(f"<{len(ids) // 8}q", ids)[::2]


def _rows(names: Iterable[bytes]) -> list[tuple[bytes]]:
    return [(name,) for name in names]
