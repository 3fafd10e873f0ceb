"""Whether a store can take a checkpoint now. Called by `perdure check`; the supervisor has its store open already."""

from __future__ import annotations

import os
from collections.abc import Iterator

from perdure import errors
from perdure.base import units
from perdure.checkpoint.preflight.codes import finding
from perdure.model.finding import Finding
from perdure.store.backends.address import open_backend


def check(url: str, expected_bytes: int) -> Iterator[Finding]:
    """Yield what keeps the store at `url` (a folder, or ``s3://…``) from taking a checkpoint whose images take `expected_bytes`."""
    try:
        backend = open_backend(url)
        try:
            backend.exists()
        finally:
            backend.close()
    except errors.PerdureError as error:
        yield finding("store-away", url, str(error), remedy=error.hint or None)
        return
    if "://" not in url or url.startswith("file://"):
        yield from _folder(url.removeprefix("file://"), expected_bytes)


def _folder(path: str, expected_bytes: int) -> Iterator[Finding]:
    existing = os.path.abspath(path)
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    if not os.access(existing, os.W_OK | os.X_OK):
        yield finding("store-away", path, f"{existing} cannot be written", path=path, remedy="name a store that can be written: --store")
        return
    there = os.statvfs(existing)
    room_bytes = there.f_bavail * there.f_frsize
    if room_bytes < expected_bytes:
        yield finding(
            "store-room",
            path,
            f"has room for {units.format_size(room_bytes)}; the images take up to {units.format_size(expected_bytes)} before compression,"
            " and only what has changed is stored",
            path=path,
        )
