"""Where a working CRIU and a minimal init are. Called by everything that checkpoints, and by `doctor`.

A CRIU counts as working when `probe` has seen it work on this kernel; the answer is remembered, so that only the first start pays
for the proof. Order: the one that was named, the system's, then private prefixes.
"""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from perdure import errors
from perdure.base import files, privileges, settings
from perdure.checkpoint.criu import prefix, prlimit, probe
from perdure.checkpoint.criu.run import Criu

__all__ = ["Candidate", "Criu", "Init", "Places", "candidates", "default_prefix", "examine", "find", "find_init", "places"]

_INITS = ("tini-static", "catatonit", "dumb-init", "tini")
_REMEDY = "bring one: perdure doctor --bring-criu"


class Places(msgspec.Struct, frozen=True):
    """Where to look."""

    named: str | None
    """A CRIU binary or a prefix that was asked for: then no other is looked at."""
    named_by: str
    """The setting's origin, such as ``$PERDURE_CRIU``."""
    search_path: str
    prefixes: tuple[str, ...]
    cache: str
    """Folder that remembers proofs and holds the compiled prlimit library."""


class Candidate(msgspec.Struct, frozen=True):
    """A CRIU that is there, and what its proof said; `outcome` None: it may not be started as this user, with the reason in `refused`."""

    criu: Criu
    outcome: probe.Outcome | None
    refused: str = ""


class Init(msgspec.Struct, frozen=True):
    """A minimal init: starts the workload, passes signals on, reaps."""

    path: str
    kind: Literal["tini", "catatonit", "dumb-init"]
    origin: str


def places(values: Mapping[str, settings.Value], environ: Mapping[str, str]) -> Places:
    """Return where to look, from the resolved settings and the environment."""
    chosen = values["criu"]
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "/nonexistent"), ".cache")
    return Places(
        named=chosen.value,
        named_by=chosen.origin,
        search_path=environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin",
        prefixes=(os.path.join(sys.prefix, "criu"), _user_prefix(environ), "/var/lib/perdure/criu"),
        # What root believes is kept where only root writes: HOME may be another user's under sudo.
        cache="/var/cache/perdure" if privileges.is_root() else os.path.join(cache, "perdure"),
    )


def default_prefix(environ: Mapping[str, str]) -> str:
    """Return where a prefix is brought to when nobody says where: root's is for all, a user's for that user."""
    return "/var/lib/perdure/criu" if privileges.is_root() else _user_prefix(environ)


def _user_prefix(environ: Mapping[str, str]) -> str:
    data = environ.get("XDG_DATA_HOME") or os.path.join(environ.get("HOME", "/nonexistent"), ".local/share")
    return os.path.join(data, "perdure/criu")


def find(where: Places) -> Criu:
    """Return the first CRIU that works here.

    Raises `errors.EnvironmentUnfit` with what is missing and what to type.
    """
    refusal = probe.why_not_here()
    if refusal is not None:
        raise errors.EnvironmentUnfit(refusal.message, hint=refusal.remedy or "")
    rejected = []
    for criu in candidates(where):
        candidate = examine(where, criu)
        if candidate.outcome is not None and candidate.outcome.passed:
            return candidate.criu
        rejected.append(f"{criu.program}: {_reason(candidate)}")
    if where.named is not None and not rejected:
        raise errors.EnvironmentUnfit(f"{where.named} ({where.named_by}) is neither a CRIU nor a prefix with one", hint=_REMEDY)
    said = "; ".join(rejected) or "there is none"
    raise errors.EnvironmentUnfit(f"no CRIU works here: {said}", hint=_REMEDY)


def find_working(where: Places) -> Criu | None:
    """Return what `find` does, or None where it raises."""
    try:
        return find(where)
    except errors.EnvironmentUnfit:
        return None


def candidates(where: Places) -> list[Criu]:
    """Return every CRIU that is there, the strongest first, none of them tried. Versions are empty until `examine`."""
    needed = prlimit.is_needed()
    found: list[Criu] = []

    def add(argv: tuple[str, ...], version: str, origin: str, root: str | None) -> None:
        found.append(Criu(argv=argv, version=version, origin=origin, prefix=root, needs_prlimit_preload=needed))

    if where.named is not None:
        record = prefix.read(Path(where.named))
        if record is not None:
            add(record.argv(Path(where.named)), record.criu_version, f"named by {where.named_by}", where.named)
        elif os.access(where.named, os.X_OK) and os.path.isfile(where.named):
            add((os.path.abspath(where.named),), "", f"named by {where.named_by}", None)
        return found
    system = shutil.which("criu", path=where.search_path)
    if system is not None:
        add((system,), "", "the system's own", None)
    for root in where.prefixes:
        record = prefix.read(Path(root))
        if record is not None:
            add(record.argv(Path(root)), record.criu_version, f"private prefix from Debian's {record.suite}", root)
    return found


def examine(where: Places, criu: Criu, *, fresh: bool = False) -> Candidate:
    """Prove `criu`, or remember its proof (`fresh`: prove again). The candidate's CRIU carries its version and its preload."""
    started = [part for part in criu.argv if part.startswith("/")]
    if not all(_is_trusted(Path(place)) for part in started for place in part.split(":")):
        return Candidate(criu, None, "it could be changed by somebody else")
    init = find_init(where, beside=criu)
    key = _key(criu)
    remembered = None if fresh else _recall(where, key)
    outcome = remembered or probe.probe(criu, init.path)
    if remembered is None:
        _remember(where, key, outcome)
    preload = _preload(where, criu) if criu.needs_prlimit_preload else None
    return Candidate(msgspec.structs.replace(criu, version=outcome.version, preload=preload, network_lock=outcome.network_lock), outcome)


def find_init(where: Places, *, beside: Criu | None = None) -> Init:
    """Return a static minimal init: from PATH, then from the prefix of `beside` or one that was named, then from any.

    A static one, because the libraries of a dynamic one would have to be the same wherever the workload is restored.

    Raises `errors.EnvironmentUnfit`.
    """
    for name in _INITS:
        path = shutil.which(name, path=where.search_path)
        if path is not None and _is_static(Path(path)) and _is_trusted(Path(path)):
            return Init(path, _kind(name), "the system's own")
    roots = [root for root in (beside.prefix if beside else None, where.named, *where.prefixes) if root is not None]
    for root in roots:
        record = prefix.read(Path(root))
        if record is not None and _is_trusted(Path(root) / record.init):
            return Init(str(Path(root) / record.init), "tini", f"private prefix {root}")
    raise errors.EnvironmentUnfit("there is no static minimal init (tini-static, catatonit or dumb-init)", hint=_REMEDY)


def _kind(name: str) -> Literal["tini", "catatonit", "dumb-init"]:
    return "catatonit" if name == "catatonit" else "dumb-init" if name == "dumb-init" else "tini"


def _is_static(path: Path) -> bool:
    """Tell whether the ELF file at `path` names no interpreter."""
    with open(path, "rb") as handle:
        head = handle.read(64)
        if head[:5] != b"\x7fELF\x02":
            return False
        offset, size, count = (
            int.from_bytes(head[32:40], "little"),
            int.from_bytes(head[54:56], "little"),
            int.from_bytes(head[56:58], "little"),
        )
        handle.seek(offset)
        table = handle.read(size * count)
    return all(table[at : at + 4] != b"\x03\0\0\0" for at in range(0, len(table), max(size, 1)))


def _is_trusted(path: Path) -> bool:
    """Tell whether only root, this user, or the owner of this very installation could have put `path`, or what leads to it, there."""
    installation = Path(sys.prefix).resolve()
    try:
        found = path.resolve(strict=True)
        owners = {0, os.geteuid(), installation.stat().st_uid}
        # Whoever can change what leads to the installation can change this program, too.
        above = [folder for folder in found.parents if folder != installation and folder not in installation.parents]
        return all(_is_kept(place.stat(), owners) for place in (found, *above))
    except (OSError, RuntimeError):
        return False


def _is_kept(found: os.stat_result, owners: set[int]) -> bool:
    """Tell whether nobody but `owners` can change the file, or replace what is in the folder (a sticky one lets each replace only his)."""
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in owners and (not shared or (stat.S_ISDIR(found.st_mode) and bool(found.st_mode & stat.S_ISVTX)))


def _reason(candidate: Candidate) -> str:
    if candidate.outcome is None:
        return candidate.refused
    explanation = candidate.outcome.explanation
    return f"{candidate.outcome.step}: {explanation.message}" if explanation else candidate.outcome.step


def _preload(where: Places, criu: Criu) -> str | None:
    """Return the prlimit library, made now if need be; None when it can be neither found nor made."""
    folders = [*([criu.prefix] if criu.prefix else []), where.cache]
    for folder in folders:
        path = Path(folder) / prlimit.name()
        if path.is_file() and _is_trusted(path):
            return str(path)
    try:
        _make_private(Path(where.cache))
        return str(prlimit.build(Path(where.cache)))
    except (errors.EnvironmentUnfit, errors.OutputError):
        return None  # only tasks of other users need it; `doctor` says so, and the dump explains itself


class _Proof(msgspec.Struct, frozen=True):
    key: str
    outcome: probe.Outcome


def _key(criu: Criu) -> str:
    found = os.stat(criu.program)
    return "|".join((criu.program, str(found.st_mtime_ns), str(found.st_size), platform.release(), str(probe.REVISION)))


def _recall(where: Places, key: str) -> probe.Outcome | None:
    return next((proof.outcome for proof in _proofs(where) if proof.key == key), None)


def _remember(where: Places, key: str, outcome: probe.Outcome) -> None:
    """Keep a proof. A failure is kept only when its cause is known to stay: it may have been the machine's bad moment."""
    if not outcome.passed and (outcome.explanation is None or outcome.explanation.code not in _LASTING):
        return
    kept = [proof for proof in _proofs(where) if proof.key != key][-15:]
    try:
        _make_private(Path(where.cache))
        files.write_bytes(Path(where.cache) / _PROOFS, msgspec.json.encode([*kept, _Proof(key, outcome)]))
    except errors.OutputError:
        return  # the next start proves again


_PROOFS = "criu-proofs.json"
_LASTING = frozenset({"criu-vdso-bounds", "criu-socket-passcred"})


def _proofs(where: Places) -> list[_Proof]:
    path = Path(where.cache) / _PROOFS
    if not _is_trusted(path):
        return []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    with open(descriptor, "rb") as handle:
        try:
            return msgspec.json.decode(handle.read(1 << 20), type=list[_Proof])
        except msgspec.DecodeError:
            return []


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.OutputError(f"cannot make {folder}: {error.strerror}") from error
