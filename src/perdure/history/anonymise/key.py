"""The secret of an anonymisation: random for each, never in the output; kept only in a file that the user asks for."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from perdure import errors

KEY_BYTES = 32


def make() -> bytes:
    """Return a new random key of `KEY_BYTES` bytes."""
    return secrets.token_bytes(KEY_BYTES)


def load_or_make(path: Path) -> bytes:
    """Return the key in `path`; if there is no such file, make a key and write it there, readable by its owner alone.

    The file holds 64 hexadecimal digits and a line end.

    Raises `errors.InputDenied` and `errors.InputFormat` for a file that cannot be used or that others may read,
    `errors.OutputError` when it cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _write(path)
    except OSError as error:
        raise errors.InputDenied(f"{path}: {error.strerror}", hint="a key is a plain file of yours") from error
    with open(descriptor, "rb") as handle:
        status = os.fstat(handle.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise errors.InputFormat(f"{path}: not a plain file", hint="name a file that is not there, and a key is made")
        if status.st_mode & 0o077:
            raise errors.InputDenied(
                f"{path}: others may read this key", hint=f"chmod 600 {path}, or make a new one: the data it hid may be known"
            )
        text = handle.read(4096)
    try:
        key = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise errors.InputFormat(
            f"{path}: not a key of {2 * KEY_BYTES} hexadecimal digits", hint="name a file that is not there, and a key is made"
        )
    return key


def _write(path: Path) -> bytes:
    key = make()
    try:
        # Not `base.files.replacing`: it must never take the place of a key that came into being meanwhile.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as handle:
            handle.write(key.hex().encode("ascii") + b"\n")
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        raise errors.OutputError(f"cannot write the key {path}: {error.strerror}", hint="choose another --key-file") from error
    return key
