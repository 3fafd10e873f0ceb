"""A machine of one's own for installing on: this one's programs, with folders that are thrown away. For tests of `perdure slurm install`.

What runs in it is a child in a mount namespace of its own: /opt, /var and /run are empty, /etc and /usr/local/bin are as here and can be
written, /shared stands in for a file system that all nodes see, and Slurm has a configuration. When the child ends, all of it is gone.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_EMPTY = ("/opt", "/var", "/run", "/srv")
_CLONE_NEWNS, _CLONE_NEWPID = 0x00020000, 0x20000000
WATCHED = ("/opt", "/etc", "/var", "/run", "/usr/local/bin", "/srv")
STORE = "/srv/shared/perdure"
# No controller answers, and that is soon known: whoever asks would else wait ten seconds each time.
_SLURM = """\
ClusterName=island
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
MessageTimeout=2
"""
_LARGE_BYTES = 1 << 20


def missing() -> str | None:
    """Return why there can be none here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [name for name in ("slurmd", "scontrol", "cc") if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if lacking:
        return f"needs {', '.join(lacking)}"
    if not Path("/usr/include/slurm/spank.h").is_file():
        return "needs Slurm's headers (libslurm-dev)"
    hidden = [place for place in _EMPTY for needed in (sys.prefix, __file__) if needed.startswith(f"{place}/")]
    if hidden:
        return f"the checkout lies in {hidden[0]}, which is empty there"
    tried = subprocess.run(["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "t", "/mnt"], capture_output=True)
    return None if tried.returncode == 0 else "may not mount"


def visit(work: Callable[[], object], scratch: Path) -> None:
    """Run `work` there, with `scratch`, an empty folder, for what is changed. What it raises fails the test that asked."""
    child = os.fork()
    if child == 0:
        _finish(lambda: _depart(work, scratch))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "it failed there: see above"


def _finish(work: Callable[[], object]) -> NoReturn:
    """Run `work` and end this process, with 0 when it went well."""
    status = 1
    try:
        work()
        status = 0
    finally:
        if status:
            traceback.print_exc(file=sys.__stderr__)
        os._exit(status)


def _depart(work: Callable[[], object], scratch: Path) -> None:
    """Leave for the island, where the first process does `work`: when it ends, all others there do."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    first = os.fork()
    if first == 0:
        _finish(lambda: (_furnish(scratch), work()))
    _, status = os.waitpid(first, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _furnish(scratch: Path) -> None:
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    _mount("-t", "tmpfs", "island", str(scratch))
    for place in ("/etc", "/usr/local/bin"):
        upper, work = scratch / place.replace("/", "-") / "upper", scratch / place.replace("/", "-") / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        _mount("-t", "overlay", "island", "-o", f"lowerdir={place},upperdir={upper},workdir={work}", place)
    for place in _EMPTY:
        _mount("-t", "tmpfs", "-o", "mode=0755", "island", place)
    for folder in ("/var/lib", "/var/cache", "/run/lock", "/srv/shared"):
        os.makedirs(folder, 0o755)
    os.makedirs("/etc/slurm", exist_ok=True)
    Path("/etc/slurm/slurm.conf").write_text(_SLURM)
    for path in ("/etc/perdure", "/usr/local/bin/perdure", "/etc/slurm/plugstack.conf", "/etc/slurm/plugstack.conf.d"):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    os.environ.pop("SLURM_CONF", None)
    os.chdir("/")


def _mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, stdin=subprocess.DEVNULL)


def snapshot() -> dict[str, tuple[object, ...]]:
    """Return every path there that an installation could touch, with its kind, mode, owner and content."""
    found: dict[str, tuple[object, ...]] = {}
    for top in WATCHED:
        for folder, below, names in os.walk(top):
            for name in [".", *below, *names]:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                content = os.readlink(path) if os.path.islink(path) else ""
                if os.path.isfile(path) and not os.path.islink(path):
                    content = _digest(path, status) if status.st_size < _LARGE_BYTES else _digest_of_large(path, _identity(status))
                found[path] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
    return found


def _digest(path: str, _status: object) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


_digest_of_large = functools.lru_cache(maxsize=None)(_digest)
"""Whoever changes a file changes the time of its last change too: it is not read again before that."""


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def difference(before: dict[str, tuple[object, ...]], after: dict[str, tuple[object, ...]]) -> dict[str, object]:
    """Return the paths that are not the same in both."""
    return {
        path: (before.get(path), after.get(path)) for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)
    }
