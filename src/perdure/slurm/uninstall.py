"""Take Perdure out of this node: exactly what the manifest lists, where it is still as it was made. Called by `perdure slurm uninstall`.

The entrance goes first, so that no new job comes to us. Jobs that are being kept go on, and go on being saved: what they run from stays
until the last of them has ended, and then a process that waits for them removes the rest.
"""

from __future__ import annotations

import os
import syslog
import time

import msgspec

from perdure import errors
from perdure.agent import client
from perdure.slurm import folder, manifest, occupants, placing, unit
from perdure.slurm.manifest import Entry, Manifest

_AGENT_S = 30.0
_LOG = "/var/log/perdure"


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What was done on a node."""

    node: str
    state: str
    """``removed``, ``leaving`` while jobs still use it, ``absent`` where nothing was installed, or, of a dry run, ``planned``."""
    waiting_for: tuple[int, ...] = ()
    """The processes that still use it."""
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    entries: tuple[Entry, ...] = ()
    """Of a dry run: what would be removed, in that order."""


def look() -> Removed:
    """Return what `uninstall` would remove on this node, and who still uses it; nothing is changed. Raises `errors.InputDenied`."""
    found = manifest.read()
    if found is None:
        return Removed(node=os.uname().nodename, state="absent")
    users = occupants.find(_versions(found.prefix))
    pids = tuple(user.pid for user in users if not user.is_agent)
    return Removed(node=os.uname().nodename, state="planned", waiting_for=pids, entries=(*reversed(found.entries), *found.stale))


def uninstall(*, purge: bool, wait: bool) -> Removed:
    """Take out what is installed on this node. With `purge`, the checkpoints in its store too: those of all nodes.

    With `wait`, return only when the last job that uses it has ended; else a process in the background waits.
    Raises `errors.PartialResult` when something cannot be removed, which stays listed; `errors.OutputError`, `errors.StoreLocked` and
    `errors.InputDenied`.
    """
    begun = time.monotonic()
    node = os.uname().nodename
    if not os.path.lexists(manifest.FOLDER):
        return Removed(node=node, state="absent")
    with manifest.locked() as bare:
        found = manifest.read()
        if found is None:
            if bare:  # cut off before its first word: nothing else was made
                manifest.forget()
                os.rmdir(manifest.FOLDER)
            return Removed(node=node, state="absent")
        notes = _close(found)
        leaving = msgspec.structs.replace(found, state="leaving")
        manifest.write(leaving)
        users = occupants.find(_versions(found.prefix))
        if not users:
            notes += _remove(leaving, purge=purge)
            return Removed(node=node, state="removed", notes=tuple(notes), elapsed_s=time.monotonic() - begun)
    pids = tuple(user.pid for user in users)
    if wait:
        notes += _complete(leaving, users, purge=purge)
        return Removed(node=node, state="removed", waiting_for=pids, notes=tuple(notes), elapsed_s=time.monotonic() - begun)
    _in_background(leaving, users, purge=purge)
    return Removed(node=node, state="leaving", waiting_for=pids, notes=tuple(notes), elapsed_s=time.monotonic() - begun)


def sweep(whole: Manifest) -> tuple[str, ...]:
    """Remove what an installation before this one has left; where jobs still use it, in the background when they have ended."""
    if not whole.stale:
        return ()
    users = _users_of_stale(whole)
    if not users:
        return tuple(_remove_stale(whole))
    _in_background(whole, users, purge=False)
    return (f"the version before stays until {len(users)} processes that run from it have ended",)


def _versions(prefix: str) -> str:
    return os.path.dirname(manifest.folder_of_prefix(prefix, "any"))


def _users_of_stale(whole: Manifest) -> tuple[occupants.Occupant, ...]:
    current = manifest.folder_of_prefix(whole.prefix, whole.id)
    roots = {
        entry.path
        for entry in whole.stale
        if entry.kind == "folder" and os.path.dirname(entry.path) == _versions(whole.prefix) and entry.path != current
    }
    return tuple(user for root in sorted(roots) for user in occupants.find(root))


def _remove_stale(whole: Manifest) -> list[str]:
    notes = [said for entry in reversed(whole.stale) if (said := placing.unmake(entry))]
    manifest.write(msgspec.structs.replace(whole, stale=()))
    return notes


def _close(found: Manifest) -> list[str]:
    """Take away the entrance and end the service."""
    notes = []
    has_unit = found.find(unit.PATH) is not None and os.path.isdir("/run/systemd/system")
    if has_unit and os.path.exists(unit.PATH):
        notes.append(unit.stop())
    notes += [placing.unmake(entry) for entry in reversed(found.entries) if entry.entrance]
    if has_unit:
        notes.append(unit.forget())
    occupants.end_agents(occupants.find(_versions(found.prefix)), limit_s=_AGENT_S)
    client.forget(client.SOCKET)
    return [note for note in notes if note]


def _remove(found: Manifest, *, purge: bool) -> list[str]:
    """Remove all that is left, the manifest last but for its folder. What cannot be removed stays listed, so that it can be tried again."""
    notes = _remove_store(found, purge=purge)
    kept = {found.store, f"{found.store}/{folder.MARK}", manifest.FOLDER}
    failed: list[Entry] = []
    for entry in reversed([entry for entry in (*found.stale, *found.entries) if entry.path not in kept]):
        try:
            notes.append(placing.unmake(entry))
        except errors.OutputError as error:
            notes.append(str(error))
            failed.append(entry)
    if failed:
        last = tuple(entry for entry in found.entries if entry.path == manifest.FOLDER)
        manifest.write(msgspec.structs.replace(found, entries=(*last, *reversed(failed)), stale=()))
        raise errors.PartialResult(f"not all could be removed: {'; '.join(filter(None, notes))}", hint="uninstall again when it can be")
    if os.path.isdir(_LOG):
        notes.append(f"the log of what was done with root's rights stays in {_LOG}")
    manifest.forget()
    notes += [placing.unmake(entry) for entry in found.entries if entry.path == manifest.FOLDER]
    return [note for note in notes if note]


def _remove_store(found: Manifest, *, purge: bool) -> list[str]:
    """Remove the checkpoints where that is asked for; the store's folder and mark where they are ours and nothing else is in it."""
    if not found.store:
        return []
    if "://" in found.store:
        return [f"checkpoints stay in {found.store}: remove them there"] if purge else []
    mark = f"{found.store}/{folder.MARK}"
    notes = []
    if purge and folder.read_mark(found.store):
        users = f"{found.store}/users"
        notes.append(placing.remove_tree(users, stores=True))
    try:
        rest = set(os.listdir(found.store)) - {folder.MARK, folder.MARK + manifest.NEW}
    except OSError:
        return notes
    if rest:
        return [*notes, f"checkpoints stay in {found.store}"]
    listed: list[Entry] = [entry for entry in found.entries if entry.path in {found.store, mark}]
    return [*notes, *(placing.unmake(entry) for entry in reversed(listed))]


def _complete(found: Manifest, users: tuple[occupants.Occupant, ...], *, purge: bool) -> list[str]:
    """Wait until nobody uses what is to go, and remove it, unless somebody has installed again meanwhile."""
    while True:
        occupants.wait_for(users)
        with manifest.locked(patient=True) as bare:
            if bare:  # all of it was removed meanwhile
                manifest.forget()
                os.rmdir(manifest.FOLDER)
                return []
            current = manifest.read()
            if current is None or (current.id, current.state) != (found.id, found.state):
                return []
            users = occupants.find(_versions(found.prefix)) if found.state == "leaving" else _users_of_stale(current)
            if not users:
                return _remove(current, purge=purge) if found.state == "leaving" else _remove_stale(current)


def _in_background(found: Manifest, users: tuple[occupants.Occupant, ...], *, purge: bool) -> None:
    """Let a process of its own wait and remove: it has all it needs in memory, also when the files it came from are gone."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(3, 4096)
        os.chdir("/")
        try:
            notes = _complete(found, users, purge=purge)
        except (errors.PerdureError, OSError) as error:
            notes = [str(error)]
        for note in notes:
            syslog.syslog(syslog.LOG_WARNING, f"perdure: {note}")
    finally:
        os._exit(0)
