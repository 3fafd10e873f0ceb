"""The shim's object: compiled on the node against the site's own headers, or taken from what was compiled for the same Slurm.

With it goes the program that it puts in the place of a task's command, which needs no headers. Called by `checks`, before anything is
installed, and by `perdure slurm payload`. The same sources, headers and compiler give the same bytes.
"""

from __future__ import annotations

import importlib.resources
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

from perdure import errors

FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now")
OBJECT = ("decide.c", "policy.c", "record.c", "say.c", "seat.c", "spank.c")
PROGRAM = ("main.c", "reply.c", "request.c", "say.c", "task.c")
_COMPILERS = ("cc", "gcc", "clang")
_LONGEST_S = 120


class Shim(msgspec.Struct, frozen=True):
    """What is made for one Slurm."""

    plugin: bytes
    """The object that Slurm loads."""
    program: bytes
    """What stands for the command of a task."""


def compiler() -> str | None:
    """Return the C compiler, or None."""
    return next((found for name in _COMPILERS if (found := shutil.which(name, path="/usr/bin:/bin:/usr/local/bin"))), None)


def sources() -> dict[str, bytes]:
    """Return the shim's source files by name."""
    folder = importlib.resources.files("perdure.slurm").joinpath("shim")
    return {
        item.name: item.read_bytes() for item in sorted(folder.iterdir(), key=lambda item: item.name) if item.name.endswith((".c", ".h"))
    }


def build(headers: str, cc: str, *, prefix: str) -> Shim:
    """Return what an installation at `prefix` needs, compiled by `cc` against `headers`, the folder that has ``slurm/spank.h``.

    Raises `errors.EnvironmentUnfit` with the compiler's first complaint.
    """
    plugin = _make([cc, *FLAGS, "-fPIC", "-shared", _place(prefix), "-I", headers, *OBJECT])
    return Shim(plugin, make_program(cc, prefix=prefix))


def make_program(cc: str, *, prefix: str) -> bytes:
    """Return the program for an installation at `prefix`. Raises `errors.EnvironmentUnfit`."""
    argv = [cc, *FLAGS, _place(prefix), *PROGRAM]
    try:
        # Then no library of a job's, or of a container that is entered after the shim's turn, reaches it.
        return _make([*argv, "-static"])
    except errors.EnvironmentUnfit:
        return _make(argv)


def _place(prefix: str) -> str:
    return f'-DPERDURE_PREFIX="{prefix}"'


def _make(argv: list[str]) -> bytes:
    """Run the compiler with `argv` among the sources; return what it made."""
    with tempfile.TemporaryDirectory(prefix="perdure-shim-") as folder:
        for name, content in sources().items():
            Path(folder, name).write_bytes(content)
        made = Path(folder, "made")
        try:
            done = subprocess.run(
                [*argv, "-o", made.name],
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise errors.EnvironmentUnfit(
                f"{argv[0]} does not compile the shim: {error}", hint="install a C compiler that works"
            ) from error
        if done.returncode != 0:
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise errors.EnvironmentUnfit(f"{argv[0]} does not compile the shim: {complaint}", hint="are the headers Slurm's own?")
        return made.read_bytes()
