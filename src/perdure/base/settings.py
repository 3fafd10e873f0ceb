"""Configuration with its origin.

Strongest first: a flag, a ``PERDURE_*`` variable, ``./perdure.toml``, ``$XDG_CONFIG_HOME/perdure/config.toml``,
``/etc/perdure/config.toml``, the default.

`SETTINGS` is the one list of what can be set; the reference page is generated from it. An unknown key in a file, or an
unknown ``PERDURE_`` variable, is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perdure import errors


class Setting(msgspec.Struct, frozen=True):
    """One thing that can be configured. `default` None means *not set*."""

    key: str
    default: str | None
    doc: str

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "PERDURE_" + self.key.upper().replace("-", "_")


SETTINGS: tuple[Setting, ...] = (
    Setting("cluster", None, "cluster name for records that carry none"),
    Setting("tz", "UTC", "time zone of times without an offset, an IANA name such as Europe/Berlin"),
    Setting("policy", None, "policy file: costs, prices and deadlines per workload"),
    Setting("level", "0.90", "two-sided level of all intervals, between 0.5 and 0.999"),
    Setting("memory-limit", "2GiB", "memory that reading and analysing a history may use; beyond it, disk is used"),
    Setting("ledger", "effects.db", "effects ledger: a file, or postgresql://HOST/DATABASE (the password belongs in ~/.pgpass)"),
    Setting("store", None, "checkpoint store: a folder, or s3://BUCKET/PREFIX; default: store in the state folder"),
    Setting("state", None, "state folder of `perdure run`; default: /var/lib/perdure for root, else $XDG_STATE_HOME/perdure"),
    Setting(
        "run-dir",
        None,
        "folder for sockets and epoch files, on a file system in memory; default: /run/perdure for root, else $XDG_RUNTIME_DIR/perdure",
    ),
    Setting(
        "lease-ttl",
        None,
        "how long a life's lease lasts in a store that other machines reach, at most 300s: so long a restore elsewhere waits for a machine "
        "that fell silent, and so long a workload may go on without its store; default: 120s. Setting it says that other machines reach "
        "the store, even a folder that looks local",
    ),
    Setting(
        "agent-socket",
        None,
        "socket of the node's agent, by which ordinary users reach it; default: /run/perdure/agent.sock",
    ),
    Setting("audit-log", None, "file that the agent notes every privileged action in, - for stderr; default: /var/log/perdure/agent.log"),
    Setting(
        "user-quota",
        "50%",
        "how much of the store the checkpoints of one user of the agent or of Slurm may take: a size such as 200GiB, a share of the room "
        "that there would be without them, or none. A share bounds only a store in a folder",
    ),
    Setting(
        "rates",
        None,
        "file of rates that `perdure advise --rates` made of the site's history: with `--every auto`, the mean time to failure for a "
        "workload's size; without, a day is assumed",
    ),
    Setting("slurm-bin", None, "folder of Slurm's commands, where they are not in a usual place; perdure slurm install writes it"),
    Setting("key-file", None, "file of 32 secret bytes or more: the store is then encrypted, and cannot be read without it"),
    Setting("criu", None, "CRIU to use: a program, or the prefix that `perdure doctor --bring-criu` made; default: the first that works"),
    Setting(
        "staging", None, "folder where images wait to be stored; default: memory if they fit, else the fastest local disk that has room"
    ),
    Setting(
        "cpu-check",
        "features",
        "what of a checkpoint's processor has to be there for a restore: features (those that programs use), strict (all), off",
    ),
    Setting(
        "gpu-lock-limit",
        "30s",
        "how long work on a GPU may take to come to rest for a checkpoint or perdure suspend, at most 600s: its calls of CUDA wait "
        "meanwhile; after it, the workload just goes on",
    ),
    Setting("threads", None, "threads for reading, analysing and storing; default: all of this machine's"),
)

_BY_KEY = {setting.key: setting for setting in SETTINGS}


class Value(msgspec.Struct, frozen=True):
    """A setting's value and where it came from (``--flag``, ``$VARIABLE``, a file's path or ``default``)."""

    key: str
    value: str | None
    origin: str


def config_files(environ: Mapping[str, str], *, working_directory: Path) -> tuple[Path, ...]:
    """Return the configuration files that are looked for, strongest first, existing or not."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME", "/nonexistent"), ".config")
    return (
        working_directory / "perdure.toml",
        Path(home) / "perdure" / "config.toml",
        Path("/etc/perdure/config.toml"),
    )


def load(
    environ: Mapping[str, str],
    *,
    working_directory: Path,
    explicit_file: Path | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> dict[str, Value]:
    """Resolve every setting and say where each came from.

    `flags` holds what the command line gave (None: not given); `explicit_file` (``--config``) replaces the three usual files.

    Raises `errors.SettingError` for an unknown key or variable, an unreadable or malformed file, or a value that is not
    text or a number.
    """
    values = {setting.key: Value(setting.key, setting.default, "default") for setting in SETTINGS}
    files = (explicit_file,) if explicit_file else config_files(environ, working_directory=working_directory)
    for path in reversed(files):
        for key, text in _read(path, required=explicit_file is not None).items():
            values[key] = Value(key, text, str(path))
    for variable, text in environ.items():
        if not variable.startswith("PERDURE_") or variable in _RESERVED:
            continue
        key = variable.removeprefix("PERDURE_").lower().replace("_", "-")
        if key not in _BY_KEY:
            raise errors.SettingError(f"unknown variable {variable}", hint=_nearest(key, prefix="PERDURE_"))
        values[key] = Value(key, text, f"${variable}")
    for key, flag in (flags or {}).items():
        if flag is not None:
            values[key] = Value(key, flag, f"--{key}")
    return values


def threads(values: Mapping[str, Value]) -> int | None:
    """Return the setting `threads` as a number ≥ 1, or None for all of this machine's. Raises `errors.SettingError`."""
    text = values["threads"].value
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise errors.SettingError(f"threads: {text!r} is not a whole number of at least 1 ({values['threads'].origin})")
    return int(text)


_RESERVED = frozenset({"PERDURE_DEBUG", "PERDURE_EPOCH_FILE", "PERDURE_EVAL_RUN", "PERDURE_TASK", "PERDURE_UNMANAGED", "PERDURE_WORKLOAD"})
"""Variables that are not settings: PERDURE_DEBUG shows the traceback of a bug; in a workload, PERDURE_EPOCH_FILE names the file that
holds its life's epoch, and PERDURE_WORKLOAD is its name; in a job that was opted in and is not saved, PERDURE_UNMANAGED is the reason; in
what prepares the task of a job that was opted in, PERDURE_TASK is for Slurm's shim; in an evaluation, PERDURE_EVAL_RUN is the run that a
process belongs to."""


def _read(path: Path, *, required: bool) -> dict[str, str]:
    try:
        document = msgspec.toml.decode(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise errors.SettingError(f"{path}: no such file", hint="give --config a file that exists") from None
        return {}
    except NotADirectoryError:
        return {}
    except OSError as error:
        raise errors.SettingError(f"{path}: {error.strerror}", hint="make it readable or remove it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.SettingError(f"{path}: not valid TOML: {error}") from error
    read = {}
    for key, value in document.items():
        if key not in _BY_KEY:
            raise errors.SettingError(f"{path}: unknown key {key!r}", hint=_nearest(key, prefix=""))
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise errors.SettingError(f"{path}: {key} must be text or a number")
        read[key] = str(value)
    return read


def _nearest(key: str, *, prefix: str) -> str:
    close = difflib.get_close_matches(key, _BY_KEY, n=1, cutoff=0.5)
    name = (prefix + close[0].upper().replace("-", "_") if prefix else close[0]) if close else ""
    return f"did you mean {name}?" if name else f"known keys: {', '.join(_BY_KEY)}"
