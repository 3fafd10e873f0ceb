"""Install Perdure on this node, or mend and renew what is installed. Called by `perdure slurm install`.

Checks come first, then the manifest, then the libraries, which are tried, and last the entrance, by which new jobs come to us. What is cut
off before the manifest says ``whole`` is taken back at once, or by `uninstall`, or completed by installing again.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time

import msgspec

from perdure import errors
from perdure.model.finding import Finding, Severity
from perdure.slurm import checks, folder, layout, manifest, placing, uninstall, unit
from perdure.slurm.manifest import Entry, Manifest
from perdure.slurm.payload import Payload
from perdure.slurm.site import Site

_TRIAL_S = 120
_ROOMS = "perdure.cli.app, perdure.supervisor.start, perdure.supervisor.saver, perdure.agent.seat, perdure.store.repository"
"""What a job needs, imported once from where it was put before a job depends on it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was done on a node, or would be."""

    node: str
    version: str
    id: str
    state: str
    """``planned`` for a dry run, else ``installed``, ``mended``, ``renewed`` or ``unchanged``."""
    findings: tuple[Finding, ...]
    entries: tuple[Entry, ...]
    store_id: str
    """The mark of the store as this node sees it; empty when it has none."""
    changed: int = 0
    """Paths that were made or replaced."""
    size_bytes: int = 0
    """Of all files."""
    elapsed_s: float = 0.0
    notes: tuple[str, ...] = ()


def install(site: Site, payload: Payload, *, dry_run: bool) -> Outcome:
    """Install `payload` on this node for `site`; with `dry_run`, only say what would be made.

    Raises `errors.Findings` (with the findings in `args[1]`) when a check finds a problem, `errors.OutputError`, `errors.StoreLocked`,
    `errors.EnvironmentUnfit` when what was put there does not run. Then everything is as before.
    """
    begun = time.monotonic()
    node, findings = checks.look(site, payload, trying=not dry_run)
    if dry_run:
        old = manifest.read()
        plan = _plan(site, payload, node, old, bare=manifest.is_bare(), findings=findings)
        return _outcome(site, payload, plan, findings, state="planned")
    _refuse(findings)
    placed = place(site, payload, node)
    notes = placed.notes + tuple(filter(None, [unit.start()] if node.systemd and not site.shim_only else []))
    outcome = _outcome(site, payload, placed.plan, findings, state=placed.state)
    return msgspec.structs.replace(outcome, changed=placed.changed, elapsed_s=time.monotonic() - begun, notes=notes)


class Placed(msgspec.Struct, frozen=True):
    """What an installation made."""

    plan: layout.Plan
    state: str
    changed: int
    notes: tuple[str, ...]


def place(site: Site, payload: Payload, node: checks.Node) -> Placed:
    """Make all that `payload` needs on `node`, which was checked. Whatever goes wrong, what was there before is as it was.

    Raises what `install` does.
    """
    with manifest.locked() as bare:
        try:
            old = manifest.read()
            plan = _plan(site, payload, node, old, bare=bare)
        except errors.PerdureError:
            if bare:
                manifest.forget()
                os.rmdir(manifest.FOLDER)
            raise
        changed, notes = _carry_out(site, payload, plan, old)
    if old is None:
        state = "installed"
    elif old.id != plan.id:
        state = "renewed"
    else:
        state = "mended" if changed or old.state != "whole" else "unchanged"
    return Placed(plan, state, changed, notes)


def _refuse(findings: tuple[Finding, ...]) -> None:
    found = [finding for finding in findings if finding.severity is Severity.PROBLEM]
    if found:
        first = f"{found[0].subject} {found[0].message}" + (f", and {len(found) - 1} more" if len(found) > 1 else "")
        raise Unfit(f"nothing was installed: {first}", hint=found[0].remedy or "", findings=findings)


class Unfit(errors.Findings):
    """A check found what forbids an installation; `findings` holds all that was found."""

    def __init__(self, message: str, *, hint: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message, hint=hint)
        self.findings = findings


def _plan(
    site: Site, payload: Payload, node: checks.Node, old: Manifest | None, *, bare: bool, findings: tuple[Finding, ...] = ()
) -> layout.Plan:
    if site.shim_only and old is not None and old.id != layout.SHIM_ONLY:
        raise errors.UsageError("Perdure is installed here, and not its shim alone", hint="take it out first: perdure slurm uninstall")
    plan = layout.plan(site, payload, node, old=old, bare=bare)
    if plan.conflicts:
        conflicts = tuple(
            Finding(
                code="slurm-conflict",
                severity=Severity.PROBLEM,
                subject=path,
                message="is there, and not from an installation",
                remedy="--replace puts it aside, and back at the end",
                path=path,
            )
            for path in plan.conflicts
        )
        _refuse((*findings, *conflicts))
    return plan


def _carry_out(site: Site, payload: Payload, plan: layout.Plan, old: Manifest | None) -> tuple[int, tuple[str, ...]]:
    """Make what `plan` says, after the manifest; return how many paths changed, and what to tell."""
    planned = {entry.path for entry in plan.entries}
    stale = tuple(entry for entry in ((*old.stale, *old.entries) if old else ()) if entry.path not in planned)
    new = Manifest(
        format=manifest.FORMAT,
        version=payload.version,
        id=plan.id,
        prefix=site.prefix,
        store=site.store,
        state="making",
        entries=plan.entries,
        stale=stale,
    )
    manifest.write(new)
    try:
        changed = _make(payload, [step for step in plan.steps if not step.entry.entrance], old)
        if not site.shim_only:
            _try(site.prefix, plan, payload, compiling=bool(changed))
            _sync(manifest.folder_of_prefix(site.prefix, plan.id))
        changed += _make(payload, [step for step in plan.steps if step.entry.entrance], old)
    except (errors.PerdureError, KeyboardInterrupt, SystemExit):
        _take_back(new, old)
        raise
    whole = msgspec.structs.replace(new, state="whole")
    manifest.write(whole)
    return changed, uninstall.sweep(whole)


def _make(payload: Payload, steps: list[layout.Step], old: Manifest | None) -> int:
    changed = 0
    for step in steps:
        was = old.find(step.entry.path) if old is not None else None
        if step.item is not None and placing.digest(step.entry.path) != step.item.sha256:
            changed += placing.make(step.entry, payload.content(step.item), was=was)
        elif step.item is None:
            changed += placing.make(step.entry, step.content, was=was)
    return changed


def _take_back(new: Manifest, old: Manifest | None) -> None:
    """Undo what was made; the installation before, whose entrance still leads to what it had, stays."""
    known = {entry.path for entry in (*old.entries, *old.stale)} if old is not None else set()
    for entry in reversed(new.entries):
        if entry.path not in known and entry.path != manifest.FOLDER:
            placing.unmake(entry)
    if old is not None:
        for entry in old.entries:
            if entry.kind == "link":
                placing.make(entry, None, was=None)  # those of the entrance lead to what stays
        manifest.write(old)
        return
    manifest.forget()
    if new.entries[0].path == manifest.FOLDER:
        placing.unmake(new.entries[0])


def _try(prefix: str, plan: layout.Plan, payload: Payload, *, compiling: bool) -> None:
    """Compile the libraries where they are, and import what a job needs.

    Raises `errors.EnvironmentUnfit` when they do not run.
    """
    root = manifest.folder_of_prefix(prefix, plan.id)
    python = f"{root}/bin/python{payload.python}"
    trials = [[python, "-I", "-c", f"import {_ROOMS}"], [f"{root}/bin/perdure", "--version"]]
    if compiling:
        # Not by a process for each processor: jobs run on this node.
        trials.insert(0, [python, "-I", "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash", f"{root}/lib"])
    for argv in trials:
        try:
            done = subprocess.run(
                argv,
                cwd="/",
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TRIAL_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise errors.EnvironmentUnfit(f"{argv[0]} does not run here: {error}", hint="look at its folder's file system") from error
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise errors.EnvironmentUnfit(
                f"what was installed does not run here: {said}", hint="pack the payload on a machine like this one"
            )


def _sync(place: str) -> None:
    """Write the file system of `place` to its disk: one call for some thousand files."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise errors.OutputError(f"cannot write {place} to its disk: {os.strerror(number)}", hint="look at that disk")
    finally:
        os.close(descriptor)


def _outcome(site: Site, payload: Payload, plan: layout.Plan, findings: tuple[Finding, ...], *, state: str) -> Outcome:
    return Outcome(
        node=os.uname().nodename,
        version=payload.version,
        id=plan.id,
        state=state,
        findings=findings,
        entries=plan.entries,
        store_id=folder.read_mark(site.store) if site.is_folder else "",
        size_bytes=sum(entry.size_bytes for entry in plan.entries),
    )
