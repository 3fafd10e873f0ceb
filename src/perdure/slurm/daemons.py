"""What Slurm there is on this node: its version, its configuration, where its plugins are listed, its headers. Called by `checks`.

Asked of Slurm's own commands where they answer; a controller that is away leaves what stands in slurm.conf.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

OLDEST = (22, 5)
"""The first Slurm that tells a job when it ends."""
_ASK_S = 10
_PATHS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/slurm/sbin", "/opt/slurm/bin")
_CONFIGURATIONS = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
    "/var/spool/slurmd/conf-cache/slurm.conf",
)
DROP_IN = "zzz-perdure.conf"
"""The last of its folder: a plugin after ours is not called for a task that is handed over, and could not put it into a container."""
FORMER_DROP_IN = "perdure.conf"
"""What it was called before."""


class Slurm(msgspec.Struct, frozen=True):
    """Slurm as it is found on this node."""

    version: str
    """Such as ``24.11.5``; empty: there is none."""
    configuration: str | None
    """Its slurm.conf."""
    plugstack: str | None
    """The file that lists SPANK plugins, there or not."""
    include: str | None
    """A folder of which that file reads every ``*.conf``."""
    headers: str | None
    """The folder to compile against: it holds ``slurm/spank.h``."""
    headers_version: str
    runs_jobs: bool
    """There is a slurmd: jobs run here."""
    commands: str | None = None
    """The folder of its commands: scontrol, squeue."""

    @property
    def is_fetched(self) -> bool:
        """Tell whether the configuration comes from the controller, which would write over what is changed here."""
        place = os.path.realpath(self.configuration or "/")
        return place.startswith("/run/") or "/conf-cache/" in place

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version's numbers."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:3])


def look(*, home: str | None) -> Slurm:
    """Return what there is of Slurm. `home`: the folder it is installed in, with bin, sbin and include; None: the usual places."""
    path = ":".join([*([f"{home}/sbin", f"{home}/bin"] if home else []), os.environ.get("PATH", ""), *_PATHS])
    scontrol, slurmd = shutil.which("scontrol", path=path), shutil.which("slurmd", path=path)
    version = next((found for program, flag in ((slurmd, "-V"), (scontrol, "-V")) if program and (found := _version(program, flag))), "")
    told = _told(scontrol)
    configuration = told.get("SLURM_CONF") or os.environ.get("SLURM_CONF") or next(filter(os.path.isfile, _CONFIGURATIONS), None)
    plugstack = told.get("PlugStackConfig") or _plugstack(configuration)
    headers, of = _headers(home, scontrol)
    commands = os.path.dirname(scontrol) if scontrol else None
    return Slurm(version, configuration, plugstack, included(plugstack), headers, of, slurmd is not None, commands)


def scontrol(home: str | None) -> str | None:
    """Return Slurm's command to ask, or None."""
    return shutil.which("scontrol", path=":".join([*([f"{home}/bin"] if home else []), os.environ.get("PATH", ""), *_PATHS]))


def _ask(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_ASK_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _version(program: str, flag: str) -> str:
    match = re.search(r"(?m)^slurm\S* (\d+\.\d+\.\d+\S*)", _ask([program, flag]))
    return match[1] if match else ""


def _told(program: str | None) -> dict[str, str]:
    """Return what `scontrol show config` says, as far as it says anything."""
    if program is None:
        return {}
    found = {}
    for line in _ask([program, "show", "config"]).splitlines():
        key, equals, value = line.partition("=")
        if equals and value.strip() not in {"", "(null)"}:
            found[key.strip()] = value.strip()
    return found


def _plugstack(configuration: str | None) -> str | None:
    if configuration is None:
        return None
    named = re.search(r"(?im)^\s*PlugStackConfig\s*=\s*(\S+)", _text(configuration))
    return named[1] if named else os.path.join(os.path.dirname(configuration), "plugstack.conf")


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def included(plugstack: str | None) -> str | None:
    """Return a folder that `plugstack` reads every ``*.conf`` of, and that is there."""
    if plugstack is None:
        return None
    for pattern in re.findall(r"(?m)^\s*include\s+(\S+)", _text(plugstack)):
        whole = pattern if pattern.startswith("/") else os.path.join(os.path.dirname(plugstack), pattern)
        folder, name = os.path.split(whole)
        if name in {"*", "*.conf"} and os.path.isdir(folder) and glob.escape(folder) == folder:
            return folder
    return None


def lists(plugstack: str | None, line: str) -> bool:
    """Tell whether `plugstack`, or a file that it includes, has `line`: put there by hand, or by another node that has the same file."""
    if plugstack is None:
        return False
    patterns = re.findall(r"(?m)^\s*include\s+(\S+)", _text(plugstack))
    files = [path for pattern in patterns for path in glob.glob(os.path.join(os.path.dirname(plugstack), pattern))]
    return any(line.split() == one.split() for path in (plugstack, *files) for one in _text(path).splitlines())


def following(plugstack: str | None, plugin: str, *, drop_in: str | None) -> tuple[str, ...]:
    """Return the plugins that Slurm calls after `plugin`, in the order of its files.

    Where `plugin` is not listed yet, it is taken to be alone in the file `drop_in`, or to become the last line of `plugstack`.
    """
    listed = list(_stack(plugstack, plugin, drop_in)) if plugstack else []
    places = [place for place, one in enumerate(listed) if one == plugin]
    return tuple(listed[places[-1] + 1 :]) if places else ()


def _stack(file: str, plugin: str, drop_in: str | None) -> Iterator[str]:
    """Yield the plugins in the order in which Slurm calls them."""
    if file == drop_in:
        yield plugin
        return
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == "include":
            pattern = os.path.join(os.path.dirname(file), words[1])
            found = {*glob.glob(pattern), *([drop_in] if drop_in and fnmatch.fnmatch(drop_in, pattern) else ())}
            for path in sorted(found - {file}):
                yield from _stack(path, plugin, drop_in)
        elif len(words) > 1 and words[0] in {"required", "optional"}:
            yield words[1]


def _headers(home: str | None, program: str | None) -> tuple[str | None, str]:
    beside = [str(Path(os.path.realpath(program)).parent.parent / "include")] if program else []
    for folder in [*([f"{home}/include"] if home else []), *beside, "/usr/include", "/usr/local/include"]:
        if os.path.isfile(f"{folder}/slurm/spank.h"):
            return folder, _headers_version(folder)
    return None, ""


def _headers_version(folder: str) -> str:
    """Return what the headers are of: SLURM_VERSION_NUMBER holds a byte each for year, month and patch."""
    for name in ("slurm_version.h", "slurm.h"):
        match = re.search(r"(?m)^#define\s+SLURM_VERSION_NUMBER\s+(0x[0-9a-fA-F]+)", _text(f"{folder}/slurm/{name}"))
        if match:
            number = int(match[1], 16)
            return f"{number >> 16}.{number >> 8 & 0xFF:02d}.{number & 0xFF}"
    return ""
