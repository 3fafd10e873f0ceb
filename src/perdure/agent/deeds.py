"""What the agent does for a process besides starting seats: looking, saving, ending, forgetting, and reading the user's own store.

Called by `worker`, in a process of its own for each request. Everything goes through the folders and the repository of one user: what is
another's is not refused, it is not there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from typing import Any

import msgspec

from perdure import errors
from perdure._version import __version__
from perdure.agent import asked, checkpoints, slots
from perdure.agent.asked import Asked, Reply
from perdure.agent.caller import Caller
from perdure.agent.site import Site
from perdure.model.checkpoint import Owner, check_name
from perdure.store.repository import Repository
from perdure.supervisor import control, listing, lock, messages, place, removal, state, wire
from perdure.supervisor.place import Place
from perdure.supervisor.record import Workload

_TELL_S = 30.0
"""A client that does not read for so long is given up."""
_MARGIN_S = 60.0
_MOST_WAIT_S = 86400.0
_LOG_CHUNK_S = 0.2

Document = dict[str, Any]


class Deed:
    """One request of `caller` about the workloads of `owner`."""

    def __init__(self, channel: socket.socket, caller: Caller, owner: Owner, site: Site) -> None:
        self.channel = channel
        self.caller = caller
        self.owner = owner
        self.site = site
        self.folders = site.folders_of(owner)

    def do(self, what: asked.What) -> Document:
        """Do it, and return the answer. Raises what forbids it."""
        found: Document = meet(what, self)
        return found

    def known(self, name: str) -> Workload:
        """Return the workload `name`. Raises `errors.WorkloadMissing`, as for one of another user."""
        check_name(name)
        if not self.folders.database.exists():
            raise errors.WorkloadMissing(f"there is no workload {name!r} on this machine", hint="perdure ps lists them")
        with state.opened(self.folders.database) as database:
            return database.require(name)

    def running(self, name: str) -> Workload:
        """Return the workload `name`, which has a supervisor. Raises `errors.WorkloadMissing`."""
        found = self.known(name)
        if not lock.is_held(self.folders.lock(name)):
            raise errors.WorkloadMissing(f"{name} is not running", hint="see perdure ps")
        return found

    def place(self) -> Place:
        """Return where the owner's repository is."""
        return self.site.place_of(self.owner)

    @contextlib.contextmanager
    def repository(self) -> Iterator[Repository]:
        """Open the owner's repository while the block runs. Raises a store's errors."""
        with place.opened(self.place()) as repository:
            yield repository

    def tell(self, event: messages.Event) -> None:
        """Tell the caller that something goes on."""
        asked.reply(self.channel, Reply(event=event), within_s=_TELL_S)


@functools.singledispatch
def meet(what: Any, deed: Deed) -> Document:
    """Do `what`, for which a function is registered here or in `store_deeds`, and return the answer."""
    raise AssertionError(f"{what} of {deed.owner} is none of what can be asked")


@meet.register
def _ps(what: asked.Ps, deed: Deed) -> Document:
    doubts: list[Document] = []
    if not deed.folders.database.exists():
        found: tuple[listing.Listed, ...] = ()
    else:
        with state.opened(deed.folders.database) as database:
            for name in what.names:
                database.require(check_name(name))
            known = [one for one in database.workloads() if not what.names or one.name in what.names]
        found = listing.look(
            known,
            deed.folders,
            place=lambda _one: deed.place(),
            doubt=lambda one, error: doubts.append({"name": one.name, "message": str(error)}),
        )
    if what.names and not found:
        raise errors.WorkloadMissing(f"there is no workload {what.names[0]!r} on this machine", hint="perdure ps lists all")
    return {"workloads": msgspec.to_builtins(found), "doubts": doubts}


@meet.register
def _logs(what: asked.Logs, deed: Deed) -> Document:
    deed.known(what.name)
    try:
        descriptor = os.open(deed.folders.log(what.name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise errors.WorkloadMissing(f"{what.name} has written nothing yet", hint="see perdure ps") from None
    try:
        answer = {"size_bytes": os.fstat(descriptor).st_size, "path": str(deed.folders.log(what.name))}
        deed.channel.settimeout(_TELL_S)
        # Read by the user's own process, which nothing keeps from reading slowly; it cannot be written through.
        socket.send_fds(deed.channel, [wire.encode(Reply(answer=answer)) + b"\n"], [descriptor])
    finally:
        os.close(descriptor)
    # The connection stays for as long as the workload has a supervisor, or the other side listens.
    deed.channel.settimeout(_LOG_CHUNK_S)
    while lock.is_held(deed.folders.lock(what.name)):
        with contextlib.suppress(TimeoutError):
            if not deed.channel.recv(1):
                break
    return {}


@meet.register
def _checkpoint(what: asked.Checkpoint, deed: Deed) -> Document:
    return _controlled(deed, what.name, messages.Checkpoint(stop=what.stop), patience_s=None)


@meet.register
def _stop(what: asked.Stop, deed: Deed) -> Document:
    _require_span("a grace", what.grace_s)
    return _controlled(deed, what.name, messages.Stop(grace_s=what.grace_s), patience_s=what.grace_s + _MARGIN_S)


@meet.register
def _suspend(what: asked.Suspend, deed: Deed) -> Document:
    _require_span("a wait", what.within_s)
    return _controlled(deed, what.name, messages.Suspend(within_s=what.within_s), patience_s=None)


@meet.register
def _resume(what: asked.Resume, deed: Deed) -> Document:
    return _controlled(deed, what.name, messages.Resume(), patience_s=None)


def _require_span(what: str, seconds: float) -> None:
    if not 0 <= seconds <= _MOST_WAIT_S:
        raise errors.QuantityError(f"{what} of {seconds} s is out of range", hint=f"give at most {_MOST_WAIT_S:g}s")


def _controlled(deed: Deed, name: str, wanted: messages.Request, *, patience_s: float | None) -> Document:
    """Ask the supervisor of the workload `name`, and return its answer."""
    deed.running(name)
    found: Document = msgspec.to_builtins(control.ask(deed.folders.socket(name), wanted, on_event=deed.tell, patience_s=patience_s))
    return found


@meet.register
def _remove(what: asked.Remove, deed: Deed) -> Document:
    deed.known(what.name)
    where = deed.place() if what.checkpoints else None
    with state.opened(deed.folders.database) as database:
        removed = removal.remove(what.name, database, deed.folders, where)
    return {"removed_checkpoints": [str(one) for one in removed]}


@meet.register
def _check(what: asked.Check, deed: Deed) -> Document:
    from perdure.agent import checks

    known = deed.known(what.name) if what.name is not None else None
    pid, found = checks.save(deed.site, deed.owner, what, known)
    return {"pid": pid, "findings": msgspec.to_builtins(found)}


@meet.register
def _check_restore(what: asked.CheckRestore, deed: Deed) -> Document:
    from perdure.agent import checks, surroundings

    with deed.repository() as repository:
        chosen = checkpoints.choose(repository, what.checkpoint)
        if deed.caller.uid != 0:
            # A restore would take place there: the control group tells which GPUs are the job's, and who may not go there is told so.
            surroundings.put_on(surroundings.of(deed.caller))
        found = checks.restore(deed.site, deed.owner, repository, chosen, what)
    return {"checkpoint": str(chosen), "findings": msgspec.to_builtins(found)}


@meet.register
def _status(_what: asked.Status, deed: Deed) -> Document:
    return {"version": __version__, "seats": slots.count(deed.folders.state), "most_seats": slots.MOST_OF_A_USER}


def subject(wanted: Asked) -> dict[str, str | int | None]:
    """Return what the audit log says of a request: what it is about."""
    what = wanted.what
    return {
        "workload": getattr(what, "name", None),
        "checkpoint": getattr(what, "checkpoint", None) if isinstance(getattr(what, "checkpoint", None), str) else None,
        "target_pid": getattr(what, "pid", None),
    }
