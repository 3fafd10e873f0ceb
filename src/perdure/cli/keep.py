"""What the everyday commands share: where workloads are kept, how, and which store. Called by `run`, `ps` and their like."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import settings, units
from perdure.cli import console
from perdure.model.checkpoint import check_name
from perdure.store.backends import address, concerns
from perdure.supervisor import folders, place, quantities, state
from perdure.supervisor.record import Workload
from perdure.supervisor.voice import Voice

if TYPE_CHECKING:
    from perdure.supervisor.wanted import Setup

Name = Annotated[str, Parameter(help="The workload's name; see perdure ps.")]

_SAVER_THREADS = 2
"""Storing in the background takes no more of a node than this, unless the setting `threads` says otherwise."""


def where(values: Mapping[str, settings.Value]) -> folders.Folders:
    """Return the folders of state that the settings name."""
    return folders.choose(state=values["state"].value, run=values["run-dir"].value, environ=os.environ, uid=os.geteuid())


def store(
    values: dict[str, settings.Value], found: folders.Folders, *, known: str | None = None, known_key: str | None = None
) -> place.Place:
    """Return the store: the one that was asked for, else the one that is known of the workload, else the one in the state folder."""
    url = values["store"].value if values["store"].value is not None and (known is None or values["store"].origin == "--store") else known
    key_file = values["key-file"].value or known_key
    if url is None:
        url = str(found.state / "store")
    return place.Place(
        url=address.located(url),
        key_file=os.path.abspath(os.path.expanduser(key_file)) if key_file else None,
        cache=str(found.cache),
        threads=console.threads(values) or min(_SAVER_THREADS, os.cpu_count() or 1),
        lease_ttl_s=quantities.lease_ttl_s(values["lease-ttl"].value),
    )


def tell_concerns(voice: Voice, name: str, values: Mapping[str, settings.Value]) -> None:
    """Warn of who else could reach the store that was named, when it is a folder, and its key.

    A store in the state folder is as private as that.
    """
    url, key_file = values["store"].value, values["key-file"].value
    found = concerns.find(os.path.abspath(os.path.expanduser(url))) if url is not None and "://" not in url else ()
    if key_file is not None:
        found += concerns.about_key(os.path.expanduser(key_file))
    for finding in found:
        voice.warn(name, finding, words=f"{finding.message} ({finding.remedy})")


def require(found: folders.Folders, name: str) -> Workload:
    """Return what this machine knows of the workload `name`. Raises `errors.WorkloadMissing`."""
    check_name(name)
    if not found.database.exists():
        raise errors.WorkloadMissing(f"there is no workload {name!r} on this machine", hint="perdure ps lists them")
    with state.opened(found.database) as database:
        return database.require(name)


def end_ns(text: str | None, environ: Mapping[str, str]) -> int | None:
    """Return when the allotted time ends, in nanoseconds of UTC since 1970: as ``--end-time`` says, else as Slurm does; None: nobody says.

    Raises `errors.QuantityError`.
    """
    if text is None:
        told = environ.get("SLURM_JOB_END_TIME", "")
        return int(told) * 10**9 if told.isascii() and told.isdigit() and int(told) > 0 else None
    hint = "write it like 2026-11-30T08:00, 2026-11-30T08:00+01:00, or as seconds since 1970"
    if text.isascii() and text.isdigit():
        return int(text) * 10**9
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise errors.QuantityError(f"--end-time: cannot read {text!r} as a time", hint=hint) from error
    return math.floor(moment.astimezone(datetime.UTC).timestamp() * 1e9)


def duration(text: str, flag: str) -> float:
    """Read a duration given with `flag`, in seconds; 0 is one. Raises `errors.QuantityError`."""
    return units.parse_duration(text, name=flag)


def metrics(path: Path | None) -> str | None:
    """Return the absolute path of the file for Prometheus. Raises `errors.UsageError` for one that would not be read there."""
    if path is None:
        return None
    if path.suffix != ".prom":
        raise errors.UsageError(f"--metrics: {path} does not end in .prom", hint="the node exporter reads no other files")
    if not path.absolute().parent.is_dir():
        raise errors.UsageError(f"--metrics: there is no folder {path.absolute().parent}", hint="make it, or correct the path")
    return os.path.abspath(path)


def absolute(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Return `paths` made absolute, links left alone."""
    return tuple(os.path.abspath(path) for path in paths)


def setup(values: dict[str, settings.Value], found: folders.Folders) -> Setup:
    """Return what a supervisor needs to know of this machine and its settings."""
    from perdure.checkpoint.criu import locate
    from perdure.checkpoint.preflight import cpu
    from perdure.supervisor.wanted import Setup

    return Setup(
        folders=found,
        place=lambda known: store(
            values, found, known=(known.store or None) if known else None, known_key=known.options.key_file if known else None
        ),
        criu=lambda: locate.places(values, os.environ),
        staging=values["staging"].value,
        cpu_check=cpu.chosen(str(values["cpu-check"].value), values["cpu-check"].origin),
        gpu_lock_s=quantities.gpu_lock_s(values["gpu-lock-limit"]),
        rates=values["rates"].value,
    )


def voice(common: console.Common, events: Path | None) -> Voice:
    """Return how a supervisor of this command speaks."""
    return Voice(quiet=common.quiet, as_json=common.json, events=events, shows_progress=True)
