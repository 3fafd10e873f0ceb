"""Import what takes long to import, and is needed only once a file has been read, while DuckDB reads it. Called by `advise`."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator

_LATER = ("perdure.advisor.analysis", "scipy.special")
"""Half a second with NumPy, during which DuckDB's threads go on: they work without Python's lock."""


@contextlib.contextmanager
def imports() -> Iterator[None]:
    """Import the modules beside the body, which may import them itself and then waits for them; none is left half imported after it."""
    importer = threading.Thread(target=_import, name="perdure-imports", daemon=True)
    importer.start()
    try:
        yield
    finally:
        importer.join()


def _import() -> None:
    for name in _LATER:
        # Who needs it imports it again, and says then what to do.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
