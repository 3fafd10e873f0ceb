"""The admin's policy: which jobs are opted in, or never are, and with which options. Called by install and `perdure slurm policy`.

`/etc/perdure/slurm.toml` is what people write; `/etc/perdure/slurm.shim` is what the shim reads in each task, in a form that needs no
parser worth the name. The first is never read in a job, the second never by people; `render` makes the second, and `parse_shim` reads
it back, so that both can be compared. The format is written down in docs/howto/slurm-install.md.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from perdure import errors
from perdure.base import files, units

POLICY_FILE = "/etc/perdure/slurm.toml"
SHIM_FILE = "/etc/perdure/slurm.shim"

MAGIC = "perdure-shim 1"
"""First line of the shim's file: what it is, and its format's number."""
LONGEST_NAME_BYTES = 255
LONGEST_OPTION_BYTES = 255
LARGEST_BYTES = 256 * 1024
"""Of either file. The shim reads into memory of this size."""

_KINDS = {"partitions": "partition", "qos": "qos", "accounts": "account", "users": "user"}
"""Lists in the policy, in the order of their lines in the shim's file."""
_HINT = 'write it like [opt-in] and partitions = ["preempt"]'


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names that a job is found by; one that matches in any list is meant. A user of digits only is a user id."""

    partitions: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"opt_in": "opt-in"}):
    """What the admin says: whom it covers, whom never, and the options of those that give none of their own. Empty: nobody."""

    opt_in: Names = Names()
    never: Names = Names()
    options: Mapping[str, str] = {}


def _duration(text: str) -> None:
    if units.parse_duration(text) <= 0:
        raise errors.QuantityError(f"{text!r} must be above 0", hint=f"write it like {units.DURATION_EXAMPLES}")


def _every(text: str) -> None:
    if text not in {"auto", "never"} and units.parse_duration(text) < 1:
        raise errors.QuantityError(f"{text!r} is shorter than a second", hint="give auto, never, or a duration such as 10m")


def _before_end(text: str) -> None:
    if text != "auto":
        units.parse_duration(text)


def _keep(text: str) -> None:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise errors.QuantityError(f"{text!r} is not a whole number of at least 1", hint="write it like keep = 3")


def _tcp(text: str) -> None:
    if text not in {"close", "keep"}:
        raise errors.QuantityError(f"{text!r} is neither close nor keep")


OPTIONS: dict[str, tuple[Callable[[str], None], str]] = {
    "every": (_every, "time between two checkpoints: auto, never, or such as 10m"),
    "mttf": (_duration, "mean time to failure for every = auto, such as 3d"),
    "keep": (_keep, "checkpoints to keep of each job"),
    "before-end": (_before_end, "save and requeue this long before the time limit: auto, or such as 5m"),
    "grace": (_duration, "longest time for saving after SIGTERM"),
    "tcp": (_tcp, "established connections to others at a restore: close or keep"),
}
"""What `[options]` can set, how a value is checked, and what it means."""


def parse(content: bytes, *, source: str = POLICY_FILE) -> Policy:
    """Read a policy from TOML. `source` names it in errors.

    Raises `errors.SettingError` for text that is not TOML, an unknown table, key or option (naming the nearest), a name that the shim's
    file cannot hold, or an option whose value cannot be read.
    """
    if len(content) > LARGEST_BYTES:
        raise errors.SettingError(f"{source}: larger than {units.format_size(LARGEST_BYTES)}", hint=_HINT)
    try:
        document: dict[str, Any] = msgspec.toml.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.SettingError(f"{source}: not valid TOML: {error}", hint=_HINT) from error
    _known(document, ("opt-in", "never", "options"), source, "")
    for table in ("opt-in", "never"):
        if isinstance(document.get(table), dict):
            _known(document[table], tuple(_KINDS), source, f"[{table}] ")
    if isinstance(document.get("options"), dict):
        document["options"] = _options(document["options"], source)
    try:
        policy = msgspec.convert(document, Policy)
    except msgspec.ValidationError as error:
        raise errors.SettingError(f"{source}: {error}", hint=_HINT) from error
    for names in (policy.opt_in, policy.never):
        for key in _KINDS:
            for name in getattr(names, key):
                _check_name(name, f"{source}: {key}")
    return policy


def _known(table: Mapping[str, Any], known: tuple[str, ...], source: str, where: str) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise errors.SettingError(f"{source}: {where}unknown key {key!r}", hint=hint)


def _options(table: Mapping[str, Any], source: str) -> dict[str, str]:
    _known(table, tuple(OPTIONS), source, "[options] ")
    read = {}
    for key, value in table.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise errors.SettingError(f"{source}: [options] {key} must be text or a whole number")
        text = "".join(str(value).lower().split())
        try:
            OPTIONS[key][0](text)
        except errors.QuantityError as error:
            raise errors.SettingError(f"{source}: [options] {key}: {error}", hint=error.hint or OPTIONS[key][1]) from error
        read[key] = text
    return read


def _check_name(name: str, where: str) -> None:
    size = len(name.encode("utf-8", "surrogateescape"))
    if not name or size > LONGEST_NAME_BYTES or any(character.isspace() or not character.isprintable() for character in name):
        raise errors.SettingError(
            f"{where}: {name!r} is not a name", hint=f"1 to {LONGEST_NAME_BYTES} bytes, without spaces or control characters"
        )


def render(policy: Policy) -> bytes:
    """Return the shim's file for `policy`: the same bytes for the same policy. Raises `errors.SettingError` when it is too large."""
    lines = [f"never-{kind} {name}" for key, kind in _KINDS.items() for name in sorted(set(getattr(policy.never, key)))]
    lines += [f"{kind} {name}" for key, kind in _KINDS.items() for name in sorted(set(getattr(policy.opt_in, key)))]
    lines += [f"option {key}={policy.options[key]}" for key in OPTIONS if key in policy.options]
    content = "".join(f"{line}\n" for line in (MAGIC, *lines, f"end {len(lines)}")).encode()
    if len(content) > LARGEST_BYTES:
        raise errors.SettingError(
            f"the policy's names take more than {units.format_size(LARGEST_BYTES)}", hint="opt in by partition or account"
        )
    return content


def parse_shim(content: bytes) -> Policy:
    """Read what `render` wrote. Raises `errors.InputFormat` for anything else: the shim refuses the same, and opts nobody in."""
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    body = lines[1:-2]
    if lines[0] != MAGIC or lines[-1] or len(lines) < 3 or lines[-2] != f"end {len(body)}":
        raise errors.InputFormat("not a whole file of the shim", hint="make it anew: perdure slurm policy apply")
    found: dict[str, list[str]] = {}
    for line in body:
        word, _, rest = line.partition(" ")
        if not rest:
            raise errors.InputFormat(f"not a line of the shim's file: {line!r}", hint="make it anew: perdure slurm policy apply")
        found.setdefault(word, []).append(rest)
    known = {"option", *_KINDS.values(), *(f"never-{kind}" for kind in _KINDS.values())}
    if found.keys() - known:
        raise errors.InputFormat(f"not a line of the shim's file: {min(found.keys() - known)!r}")
    return Policy(
        opt_in=Names(**{key: tuple(found.get(kind, ())) for key, kind in _KINDS.items()}),
        never=Names(**{key: tuple(found.get(f"never-{kind}", ())) for key, kind in _KINDS.items()}),
        options=dict(text.partition("=")[::2] for text in found.get("option", ())),
    )


def load(path: str = POLICY_FILE, *, trusted: bool) -> Policy:
    """Read the policy at `path`; one that is not there says nothing. With `trusted`, others than root must not be able to change it.

    Raises `errors.SettingError`, `errors.InputDenied`.
    """
    try:
        with open(path, "rb") as handle:
            found = os.fstat(handle.fileno())
            content = handle.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise errors.InputDenied(f"{path}: {error.strerror}", hint="make it a file that can be read") from error
    if trusted and (found.st_uid != 0 or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise errors.InputDenied(f"{path} can be changed by others than root", hint=f"chown root {path} && chmod 644 {path}")
    return parse(content, source=path)


def apply(policy: Policy, path: str = SHIM_FILE) -> bool:
    """Write the shim's file for `policy`, all of it or nothing, and tell whether it changed. Jobs that start later are judged by it.

    Raises `errors.OutputError`.
    """
    content = render(policy)
    try:
        if Path(path).read_bytes() == content:
            return False
    except OSError:
        pass
    files.write_bytes(path, content, mode=files.PUBLIC_MODE)
    return True
