"""A store opened by its address. Called by the supervisor's `place`, and by the helper that stores GPU memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from perdure import errors
from perdure.store.backends.address import open_backend
from perdure.store.repository import Repository

_MOST_KEY_BYTES = 1 << 20


@contextlib.contextmanager
def opened(url: str, *, key_file: str | None, cache: str, threads: int) -> Iterator[Repository]:
    """Open the store at `url` while the block runs. Raises as `Repository.open`, `errors.InputMissing`, `errors.InputDenied`."""
    backend = open_backend(url)
    try:
        yield Repository.open(backend, key=read_key(key_file), cache=cache_of(cache, url), threads=threads, random=os.urandom)
    finally:
        backend.close()


def cache_of(cache: str, url: str) -> Path:
    """Return the folder, below the one of all stores, of what can be made anew of the store at `url`."""
    return Path(cache) / hashlib.blake2b(url.encode(), digest_size=8).hexdigest()


def read_key(path: str | None) -> bytes | None:
    """Return what the key file at `path` holds; None without one. Raises `errors.InputMissing`, `errors.InputDenied`."""
    if path is None:
        return None
    try:
        with open(path, "rb") as handle:
            return handle.read(_MOST_KEY_BYTES + 1)
    except PermissionError as error:
        raise errors.InputDenied(f"cannot read the key file {path}", hint="give one that you may read") from error
    except OSError as error:
        raise errors.InputMissing(f"cannot read the key file {path}: {error.strerror}", hint="see the setting key-file") from error
