"""The shim's object: compiled on the node against the site's own headers, or taken from what was compiled for the same Slurm.

Called by `checks`, before anything is installed, and by `perdure slurm payload`. The same sources, headers and compiler give the same
bytes.
"""

from __future__ import annotations

import importlib.resources
import shutil
import subprocess
import tempfile
from pathlib import Path

from perdure import errors

FLAGS = (
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-fstack-protector-strong",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,relro,-z,now",
)
_COMPILERS = ("cc", "gcc", "clang")
_LONGEST_S = 120


def compiler() -> str | None:
    """Return the C compiler, or None."""
    return next((found for name in _COMPILERS if (found := shutil.which(name, path="/usr/bin:/bin:/usr/local/bin"))), None)


def sources() -> dict[str, bytes]:
    """Return the shim's source files by name."""
    folder = importlib.resources.files("perdure.slurm").joinpath("shim")
    return {
        item.name: item.read_bytes() for item in sorted(folder.iterdir(), key=lambda item: item.name) if item.name.endswith((".c", ".h"))
    }


def build(headers: str, cc: str, *, prefix: str) -> bytes:
    """Return the object for an installation at `prefix`, compiled by `cc` against `headers`, the folder that has ``slurm/spank.h``.

    Raises `errors.EnvironmentUnfit` with the compiler's first complaint.
    """
    with tempfile.TemporaryDirectory(prefix="perdure-shim-") as folder:
        for name, content in sources().items():
            Path(folder, name).write_bytes(content)
        programs = sorted(name for name in sources() if name.endswith(".c"))
        argv = [cc, *FLAGS, f'-DPERDURE_PREFIX="{prefix}"', "-I", headers, "-o", "perdure_spank.so", *programs]
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LONGEST_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise errors.EnvironmentUnfit(f"{cc} does not compile the shim: {error}", hint="install a C compiler that works") from error
        if done.returncode != 0:
            complaint = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise errors.EnvironmentUnfit(f"{cc} does not compile the shim: {complaint}", hint="are the headers Slurm's own?")
        return Path(folder, "perdure_spank.so").read_bytes()
