"""From the place that a caller names to the backend that keeps it. Called by the ledger and by the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

from perdure import errors
from perdure.effects.backend import Backend
from perdure.effects.identity import Surroundings

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def open_backend(where: str | os.PathLike[str], surroundings: Surroundings, *, create: bool) -> Backend:
    """Return the backend for a path or a ``postgresql://`` address; with `create`, a ledger that is absent is made at first use.

    Raises `errors.UsageError` for any other address, and `errors.MissingExtra` without psycopg.
    """
    text = os.fspath(where)
    scheme = _URL.match(text)
    if scheme and scheme[1].lower() in ("postgresql", "postgres"):
        from perdure.effects.postgres import Postgres

        return Postgres(text, create=create)
    if scheme or not text:
        # Not shown: an address may hold a password.
        raise errors.UsageError("not the address of a ledger", hint="name a file, or postgresql://USER@HOST/DATABASE")
    from perdure.effects.sqlite import Sqlite

    return Sqlite(Path(text), surroundings, create=create)
