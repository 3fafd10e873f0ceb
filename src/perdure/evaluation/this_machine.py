"""What the paper of an evaluation asks of the machine it is written on. Called by lock, init and their commands."""

from __future__ import annotations

import datetime
import os
import pwd
import shutil
import socket
from pathlib import Path

import msgspec


class Signature(msgspec.Struct, frozen=True):
    """Who wrote something, where and when."""

    at_unix_s: float
    user: str
    host: str


def hostname() -> str:
    """Return this node's name, as runs record it."""
    return socket.gethostname()


def user() -> str:
    """Return the name of the user who runs this, or the number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def utc(at_unix_s: float) -> str:
    """Return a time for people: ``2026-11-29 23:15 UTC``."""
    return datetime.datetime.fromtimestamp(at_unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def sign(now_unix_s: float) -> Signature:
    """Return the signature of whoever runs this, now."""
    return Signature(now_unix_s, user(), hostname())


def has_command(program: str, working_directory: str | None) -> bool:
    """Tell whether `program` can be run here: by its path, which counts from `working_directory`, or by its name in PATH."""
    if "/" in program:
        path = os.path.join(working_directory or ".", program)
        return os.path.isfile(path) and os.access(path, os.X_OK)
    return shutil.which(program) is not None


def has_folder(path: str) -> bool:
    """Tell whether `path` is a folder here."""
    return os.path.isdir(path)


def gpus() -> int:
    """Return how many GPUs the NVIDIA driver knows here, 0 without one."""
    try:
        return sum(1 for _ in Path("/proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return 0


def has_slurm() -> bool:
    """Tell whether Slurm's commands are here."""
    return all(shutil.which(program) for program in ("sbatch", "sinfo"))
