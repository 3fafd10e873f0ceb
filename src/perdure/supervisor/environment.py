"""The environment a workload starts with, and files of variables. Called by `run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from perdure import errors

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_MOST_BYTES = 1 << 20

EPOCH_FILE = "PERDURE_EPOCH_FILE"
WORKLOAD = "PERDURE_WORKLOAD"


def read(path: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Read variables from the file at `path`.

    One ``KEY=VALUE`` a line, the value taken as it is, quotes too; a bare ``KEY`` is taken from `environ` when it is set there. Empty
    lines and those that begin with ``#`` are passed over. Raises `errors.InputMissing`, `errors.InputDenied`, `errors.InputFormat`.
    """
    try:
        with open(path, "rb") as handle:
            content = handle.read(_MOST_BYTES + 1)
    except PermissionError as error:
        raise errors.InputDenied(f"cannot read {path}", hint="make it readable") from error
    except OSError as error:
        raise errors.InputMissing(f"cannot read {path}: {error.strerror}", hint="give --env-file a file that exists") from error
    if len(content) > _MOST_BYTES or b"\0" in content:
        raise errors.InputFormat(f"{path} is no file of variables", hint="write one KEY=VALUE a line")
    return parse(content.decode("utf-8", "surrogateescape"), environ, name=str(path))


def parse(text: str, environ: Mapping[str, str], *, name: str) -> dict[str, str]:
    """Read the text of such a file, called `name`. Raises `errors.InputFormat`."""
    found: dict[str, str] = {}
    # A value may hold what Python takes for line ends too: form feeds, U+2028.
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        if not _NAME.fullmatch(key):
            raise errors.InputFormat(f"{name}: line {number} is not KEY=VALUE", hint="write one KEY=VALUE a line, # for comments")
        if equals:
            found[key] = value
        elif key in environ:
            found[key] = environ[key]
    return found
