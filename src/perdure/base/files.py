"""Atomic, private files. The one place that writes a result: to a temporary name beside it, fsync, replace, fsync the folder.

A crash or a full disk at any point leaves the old file or none, never half of the new one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perdure import errors
from perdure.base import text

PUBLIC_MODE = 0o644
PRIVATE_MODE = 0o600  # accounting data names people and paths: readable by its owner alone


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, mode: int = PRIVATE_MODE) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, move it there atomically with permissions `mode`.

    The file exists, empty, with mode 0600 when it is yielded. When the block raises, it is removed and `path` is
    untouched. A `path` that is a link to a file is replaced itself, not what it points to.

    Raises `errors.OutputError` for a folder that is missing or not writable, for a full disk, and for what is no file, such as /dev/null:
    root would put a file in its place.
    """
    target = Path(path)
    _require_file(target)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise _output_error(target, error) from error
    temporary = Path(name)
    os.close(descriptor)
    try:
        yield temporary
        # A writer such as DuckDB may have replaced the file by one with the process's umask.
        os.chmod(temporary, mode)
        with open(temporary, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, target)
        _sync_directory(target.parent)
    except OSError as error:
        raise _output_error(target, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def refuse_same(output: str | os.PathLike[str] | None, *inputs: str | os.PathLike[str] | None) -> None:
    """Raise `errors.UsageError` when `output` is one of the files `inputs` that it is made from: that would be lost."""
    for each in inputs:
        with contextlib.suppress(OSError):
            if output is not None and each is not None and os.path.samefile(each, output):
                raise errors.UsageError(f"{output} is what this reads, and would be lost", hint="write to another file")


def kept_path(path: str) -> str:
    """Return the absolute path of `path`, ``~`` expanded, for records that name it. Raises `errors.UsageError` when it is not UTF-8."""
    absolute = os.path.abspath(os.path.expanduser(path))
    if text.visible(absolute) != absolute:
        raise errors.UsageError(
            f"{absolute!r} is not UTF-8: no record of ours can hold it", hint="rename the folder, or name another place"
        )
    return absolute


def give_up_unwritable_stdout() -> None:
    """Let what is still to be written to stdout go nowhere, if it cannot be written: Python would fail over it once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _require_file(target: Path) -> None:
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise _output_error(target, error) from error
    if stat.S_ISDIR(mode):
        raise errors.OutputError(f"cannot write {target}: it is a directory", hint="name a file inside it")
    if not stat.S_ISREG(mode):
        raise errors.OutputError(f"cannot write {target}: it is a device, a pipe or a socket", hint="name a file")


def write_bytes(path: str | os.PathLike[str], content: bytes, *, mode: int = PRIVATE_MODE) -> None:
    """Write `content` to `path` atomically. Raises `errors.OutputError`."""
    with replacing(path, mode=mode) as temporary, open(temporary, "wb") as handle:
        handle.write(content)


def write_text(path: str | os.PathLike[str], content: str, *, mode: int = PRIVATE_MODE) -> None:
    """Write `content` to `path` as UTF-8, atomically. Surrogates from bad input bytes are written back as those bytes."""
    write_bytes(path, content.encode("utf-8", "surrogateescape"), mode=mode)


def _output_error(target: Path, error: OSError) -> errors.OutputError:
    reason = error.strerror or str(error)
    hint = {
        "FileNotFoundError": f"make the folder first: mkdir -p {target.parent}",
        "PermissionError": "choose a folder that you may write to",
    }.get(type(error).__name__, "free some space or choose another disk" if error.errno in (28, 122) else "")
    return errors.OutputError(f"cannot write {target}: {reason}", hint=hint)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
