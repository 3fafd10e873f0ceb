"""What must be true of a node before anything is installed on it. Called by `install`; changes nothing on the node.

What is tried leaves nothing: CRIU's proof and the shim's object are made in temporary folders. The findings have stable codes; the page on
installing lists them.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import privileges, units
from perdure.base.proc import mounts
from perdure.checkpoint.criu import locate
from perdure.model.finding import Finding, Severity
from perdure.slurm import compiling, daemons, folder
from perdure.slurm.compiling import Shim
from perdure.slurm.payload import Payload, prebuilt
from perdure.slurm.site import CRIU_CACHE, Site

_CLOCKS_APART_S = 5.0
"""More than a slow start of the first program there explains; leases are judged by clocks."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


class Node(msgspec.Struct, frozen=True):
    """A node as the checks found it."""

    python: str
    """The Python that Perdure will run on: a program outside any environment."""
    python_version: str
    slurm: daemons.Slurm
    shim: Shim | None
    """The shim; None: there is none for this node, and the findings say why."""
    systemd: bool
    criu: str
    """The version that works; empty: none."""


class _Report:
    """Findings as they are made."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def problem(self, code: str, subject: str, message: str, remedy: str) -> None:
        self.findings.append(Finding(code=f"slurm-{code}", severity=Severity.PROBLEM, subject=subject, message=message, remedy=remedy))

    def warning(self, code: str, subject: str, message: str, remedy: str) -> None:
        self.findings.append(Finding(code=f"slurm-{code}", severity=Severity.WARNING, subject=subject, message=message, remedy=remedy))

    def info(self, code: str, subject: str, message: str) -> None:
        self.findings.append(Finding(code=f"slurm-{code}", severity=Severity.INFO, subject=subject, message=message))


def look(site: Site, payload: Payload, *, trying: bool) -> tuple[Node, tuple[Finding, ...]]:
    """Return this node as it is, and what speaks against installing `payload` on it for `site`.

    With `trying`, the store's folder is tried by a file that is removed at once.
    """
    report = _Report()
    if not privileges.is_root():
        report.problem("root", "user", "only root can install on a node", "run it as root, or with --runner through a root account")
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    slurm = daemons.look(home=site.slurm)
    systemd = os.path.isdir("/run/systemd/system")
    version = ".".join(map(str, sys.version_info[:3]))
    if site.shim_only:
        shim = _slurm(report, site, slurm, payload)
        _place(report, site.prefix)
        return Node(python, version, slurm, shim, systemd, ""), tuple(report.findings)
    _python(report, payload, python)
    shim = _slurm(report, site, slurm, payload)
    _room(report, site.prefix, payload)
    criu = _criu(report, payload)
    if site.is_folder:
        report.findings += folder.judge(site.store, expected=site.store_id, trying=trying)
    else:
        report.info("store-untried", site.store, "is first reached by the first job that is kept")
    if site.clock_apart_s is not None and abs(site.clock_apart_s) > _CLOCKS_APART_S:
        apart = units.format_duration(abs(site.clock_apart_s))
        report.warning(
            "clock", "clock", f"is {apart} from that of the machine that installs", "let NTP or chrony set it: leases go by clocks"
        )
    return Node(python, version, slurm, shim, systemd, criu), tuple(report.findings)


def _python(report: _Report, payload: Payload, python: str) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != payload.python or platform.machine() != payload.machine:
        report.problem(
            "payload",
            "payload",
            f"is made for Python {payload.python} on {payload.machine}; this is {version} on {platform.machine()}",
            "pack one where these are the same: perdure slurm payload -o FILE",
        )
    for place in (Path(python), *Path(python).parents):
        status = place.stat()
        if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            report.problem("python", python, f"can be changed by those who may write {place}", "name root's own Python with --python")
            return
        if not status.st_mode & stat.S_IXOTH:
            report.warning("python-private", python, f"users may not enter {place}: they cannot use perdure", f"chmod o+x {place}")


def _slurm(report: _Report, site: Site, slurm: daemons.Slurm, payload: Payload) -> Shim | None:
    if not slurm.version:
        report.problem("missing", "Slurm", "neither slurmd nor scontrol is found", "name its folder: --slurm /opt/slurm")
        return None
    if slurm.numbers < daemons.OLDEST:
        report.problem("old", f"Slurm {slurm.version}", "does not tell jobs when they end", "use Slurm 22.05 or newer")
        return None
    if not slurm.runs_jobs:
        report.info("no-jobs", "slurmd", "is not installed here: commands only, no shim")
        return None
    if slurm.plugstack is None:
        report.problem("configuration", "slurm.conf", "is not found", "set SLURM_CONF, or name Slurm's folder with --slurm")
    elif slurm.is_fetched and not daemons.lists(slurm.plugstack, line(site.prefix)):
        report.problem(
            "configless",
            slurm.plugstack,
            "comes from the controller, which writes over what is changed here",
            f"add to the controller's plugstack.conf, and have nodes fetch it (scontrol reconfigure): {line(site.prefix).strip()}",
        )
    _commands(report, slurm)
    _order(report, site, slurm)
    return _shim(report, site, slurm, payload)


def _commands(report: _Report, slurm: daemons.Slurm) -> None:
    missing = [name for name in ("scontrol", "squeue") if not os.access(f"{slurm.commands}/{name}", os.X_OK)]
    if missing:
        report.problem(
            "commands",
            " and ".join(missing),
            "not found: no job could be kept, since nobody could be asked what becomes of it",
            "install Slurm's client commands, or name the folder they are in bin of: --slurm /opt/slurm",
        )


def _order(report: _Report, site: Site, slurm: daemons.Slurm) -> None:
    drop_in = None if slurm.include is None else f"{slurm.include}/{daemons.DROP_IN}"
    later = daemons.following(slurm.plugstack, line(site.prefix).split()[1], drop_in=drop_in)
    if later:
        report.warning(
            "plugin-order",
            ", ".join(later),
            "comes after Perdure's plugin: a task that it puts into a container may not find Perdure's program there, and then fails",
            f"put it before {line(site.prefix).strip()}",
        )


def line(prefix: str) -> str:
    """Return the line by which Slurm loads the shim: a job whose Slurm cannot load it runs all the same."""
    return f"optional {prefix}/lib/slurm/perdure_spank.so\n"


def _shim(report: _Report, site: Site, slurm: daemons.Slurm, payload: Payload) -> Shim | None:
    cc = compiling.compiler()
    why = "there is no C compiler here" if cc is None else "Slurm's headers are not here"
    if cc is not None and slurm.headers is not None:
        if slurm.headers_version == slurm.version.partition("-")[0]:
            try:
                return compiling.build(slurm.headers, cc, prefix=site.prefix)
            except errors.EnvironmentUnfit as error:
                why = str(error)
        else:
            why = f"the headers are of Slurm {slurm.headers_version or 'of unknown version'}, and Slurm is {slurm.version}"
    items = [payload.find(path) for path in prebuilt(slurm.version, platform.machine())]
    if payload.prefix == site.prefix and all(items):
        return Shim(*(payload.content(item) for item in items if item is not None))
    report.problem(
        "shim",
        "shim",
        f"cannot be made: {why}; and the payload has none for Slurm {slurm.version}",
        "install a compiler and Slurm's headers (Debian: gcc libslurm-dev), or pack where they are: perdure slurm payload -o FILE",
    )
    return None


def _place(report: _Report, prefix: str) -> Path:
    """Judge the way to `prefix`, and return what there is of it."""
    place = Path(prefix)
    while not place.is_dir():
        place = place.parent
    for above in (place, *place.parents):
        status = above.stat()
        if status.st_uid != 0 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            report.problem(
                "prefix", prefix, f"could be exchanged by those who may write {above}", f"chown root {above}; chmod go-w {above}"
            )
    return place


def _room(report: _Report, prefix: str, payload: Payload) -> None:
    place = _place(report, prefix)
    free = shutil.disk_usage(place).free
    # What Python compiles takes about as much again as its sources.
    if free < 2 * payload.size_bytes:
        report.problem("room", prefix, f"has {units.format_size(free)} free", f"make room for {units.format_size(2 * payload.size_bytes)}")
    covering = mounts.covering(os.path.realpath(place), mounts.of(os.getpid()))
    if covering is not None and "noexec" in covering.options:
        report.problem("noexec", prefix, "is on a file system that runs no programs (noexec)", "name another: --prefix")


def _criu(report: _Report, payload: Payload) -> str:
    record = payload.sources.get("criu/perdure-prefix.json")
    prefixes = ("/var/lib/perdure/criu",) if record is None else (os.path.dirname(record), "/var/lib/perdure/criu")
    with tempfile.TemporaryDirectory(prefix="perdure-proof-") as cache:
        where = locate.Places(named=None, named_by="", search_path=_SYSTEM_PATH, prefixes=prefixes, cache=cache)
        had_notes = os.path.lexists(CRIU_CACHE)
        try:
            return locate.find(where).version
        except errors.EnvironmentUnfit as error:
            report.problem("criu", "CRIU", str(error), error.hint or "pack one that works: perdure slurm payload --criu FOLDER")
            return ""
        finally:
            if not had_notes:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(CRIU_CACHE)
