"""Names of files in a checkpoint: relative, and never out of the folder that they are restored into.

Called by the writer and by extraction.
"""

from __future__ import annotations

from perdure import errors

MAX_BYTES = 4096
_MAX_PART_BYTES = 255


def is_safe(name: str) -> bool:
    """Tell whether `name` is relative and stays below the folder it is put into, on any file system."""
    if "\0" in name:
        return False
    try:
        parts = name.encode("utf-8", "surrogateescape").split(b"/")
    except UnicodeEncodeError:
        return False
    return len(name) <= MAX_BYTES and all(part not in (b"", b".", b"..") and len(part) <= _MAX_PART_BYTES for part in parts)


def check(name: str) -> None:
    """Raise `errors.UsageError` unless `name` is safe."""
    if not is_safe(name):
        raise errors.UsageError(f"{name!r} cannot be the name of a stored file", hint="use relative names without . and ..")
