"""Read a policy file. The decision itself reads no files; the library's `load_policy` and the command line come here."""

from __future__ import annotations

import os
from pathlib import Path

from perdure import errors
from perdure.decision.policy import Policy, parse_policy

_LARGEST_BYTES = 4 * 1024 * 1024
"""No policy written by people comes near; a history given by mistake does."""


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy from a TOML file; see `decision.policy.FIELDS` for what it may set.

    Raises `errors.InputMissing`, `errors.InputDenied` or `errors.InputFormat` for a file that cannot be read or is no text, and
    `errors.SettingError` for a key that is unknown or a value that is wrong.
    """
    name = os.fspath(path)
    try:
        with open(Path(path), "rb") as handle:
            content = handle.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise errors.InputMissing(f"{name}: no such policy file", hint="give --policy a file that exists") from None
    except IsADirectoryError:
        raise errors.InputMissing(f"{name}: is a directory, not a policy file", hint="name the file inside it") from None
    except OSError as error:
        raise errors.InputDenied(f"{name}: {error.strerror}", hint="make it readable") from error
    if len(content) > _LARGEST_BYTES:
        raise errors.InputFormat(f"{name}: too large for a policy file", hint="is it a history? That is the command's own argument")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise errors.InputFormat(f"{name}: not a policy file: not UTF-8 text", hint="a policy is a TOML file") from error
    return parse_policy(text, source=name)
