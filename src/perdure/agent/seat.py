"""The supervisor of one ordinary user's workload: root, with that user's process at the other end of a socket.

Called by the agent, in a process of its own, and by the scheduler's adapters, as a descendant of the job. The user's process sends one
request (`request`) and then signals, a byte each; it is told lines of JSON (`replies`). When it goes away, the workload ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable

from perdure import errors
from perdure.agent import replies, site, slots, streams, wishes
from perdure.agent import request as requests
from perdure.agent.audit import DEFAULT, Audit, prepare
from perdure.agent.replies import Ended, Reply
from perdure.agent.request import Request
from perdure.agent.site import Site
from perdure.agent.told import Told
from perdure.agent.trusted import Trusted
from perdure.agent.wishes import Wishes
from perdure.model.checkpoint import Owner
from perdure.supervisor import start, wire
from perdure.supervisor.line import Line
from perdure.supervisor.scheduler import Scheduler
from perdure.supervisor.voice import Voice
from perdure.supervisor.wanted import Wanted

_REQUEST_S = 30.0
"""A client has its request ready when it connects; a loaded node may need a while to start it."""
_MOST_TRACE = 500
"""The last lines of a fault, which say where it was."""
_LEAVE_S = 60.0
"""After the user's process is gone, a supervisor that waits for something of that user's ends all the same, after so long."""


Refuse = Callable[[errors.PerdureError, Callable[[Reply], None]], bool]
"""Asked when a workload cannot be begun: returns whether it may not be run otherwise either, after the user was told by the second."""


def serve(
    channel: socket.socket,
    owner: Owner,
    trusted: Trusted,
    *,
    scheduler: Scheduler | None = None,
    refuse: Refuse = lambda _error, _say: False,
) -> int:
    """Do what the user's process at the other end of `channel` asks for, as the workload of `owner`, until that ends.

    This process becomes the supervisor: its descriptors 0, 1 and 2 become the user's. Returns the workload's exit status, or an error's.
    """
    channel.set_inheritable(False)
    line = Line(channel)
    # Descriptor 2 becomes the user's, who is not to read the log there.
    stderr = os.dup(2)
    audit = Audit(DEFAULT, stderr=stderr)
    kept: _Seat | None = None
    try:
        place = site.read(os.environ)
        log = place.values["audit-log"].value or DEFAULT
        with contextlib.suppress(errors.OutputError):
            prepare(log)
        audit = Audit(log, stderr=stderr)
        request, descriptors = requests.receive(channel, within_s=_REQUEST_S)
        # From now on descriptor 2 is the user's: what Python itself would say of a fault is not for it.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as this process lives
        streams.install(descriptors)
        kept = _Seat(line, owner, trusted, place, audit)
        ended = Ended(kept.keep(request, scheduler))
    except errors.PerdureError as error:
        audit.note("refuse", uid=owner.uid, pid=trusted.caller_pid, result=error.code, job=trusted.job or None, why=str(error))
        ended = _ended(error, kept, line, refuse)
    except Exception as error:  # noqa: BLE001 - the top of a request; what went wrong in root's process is not for the user to read
        trace = "".join(traceback.format_exception(error))
        audit.note(
            "bug", uid=owner.uid, pid=trusted.caller_pid, result=type(error).__name__, job=trusted.job or None, why=trace[-_MOST_TRACE:]
        )
        told = errors.PerdureError("a fault in Perdure; nothing of the workload runs", hint="the administrator finds more in the audit log")
        ended = _ended(told, kept, line, refuse)
    line.tell_last(replies.encode(Reply(ended=ended)))
    return ended.status


def _ended(error: errors.PerdureError, kept: _Seat | None, line: Line, refuse: Refuse) -> Ended:
    """Return what to tell of an end by `error`. Told as an error before the workload began, it may be run without us."""
    has_begun = kept is not None and kept.has_begun
    is_refused = not has_begun and refuse(error, lambda reply: line.tell(replies.encode(reply)))
    return Ended(error.exit_status, None if is_refused else wire.document(error))


class _Seat:
    """One request, and the workload that comes of it."""

    def __init__(self, line: Line, owner: Owner, trusted: Trusted, place: Site, audit: Audit) -> None:
        self._line = line
        self._owner = owner
        self._trusted = trusted
        self._site = place
        self._audit = audit
        self._told: Told | None = None

    @property
    def has_begun(self) -> bool:
        """Tell whether the workload runs, or ran."""
        return self._told is not None and self._told.has_begun

    def keep(self, request: Request, scheduler: Scheduler | None) -> int:
        """Do it, and return the workload's exit status."""
        wished = wishes.read((*self._trusted.options, *request.options))
        wanted = self._wanted(request, wished)
        folders = self._site.folders_of(self._owner)
        slots.require_room(folders.state, wanted.name)
        with slots.taken(self._site.folders.state, folders.state, self._owner):
            self._note("run" if wanted.command else "restore", wanted, "begun", command=" ".join(wanted.command) or None)
            try:
                status = self._run(wanted, wished, scheduler)
            except errors.PerdureError as error:
                self._note("end", wanted, error.code)
                raise
            self._note("end", wanted, f"status {status}")
        return status

    def _run(self, wanted: Wanted, wished: Wishes, scheduler: Scheduler | None) -> int:
        setup = self._site.setup_of(self._owner, cpu_check=wished.cpu_check, scheduler=scheduler)
        if wished.detach:
            return start.run(wanted, setup, detach=True, voice=Voice(quiet=wished.quiet, as_json=False))
        _Watch(self._line).start()
        self._told = Told(self._line, quiet=wished.quiet, events=wished.events, in_words=scheduler is not None)
        return start.run(wanted, setup, detach=False, voice=self._told)

    def _wanted(self, request: Request, wished: Wishes) -> Wanted:
        """Put together what root knows and what the user asks for; root's word counts."""
        trusted = self._trusted
        name = trusted.name or wished.name
        if name is None and not request.argv:
            raise errors.UsageError("neither a command nor a name was given", hint="give one")
        if wished.origin is not None and wished.origin.workload != name:
            raise errors.UsageError(f"{wished.origin} is no checkpoint of {name}", hint="perdure store ls shows which there are")
        return Wanted(
            name=name,
            command=request.argv,
            working_directory=request.working_directory,
            environment=request.environment,
            options=wished.options if request.argv else None,
            fresh=trusted.fresh if trusted.fresh is not None else wished.fresh,
            origin=wished.origin,
            must_resume=wished.must_resume or not request.argv,
            end_ns=trusted.end_ns if trusted.end_ns is not None else wished.end_ns,
            owner=self._owner if self._owner.uid else None,
            line=None if wished.detach else self._line,
            umask=request.umask,
            limits=trusted.limits,
            rewritten=request.argv[:1] if trusted.is_script else (),
        )

    def _note(self, what: str, wanted: Wanted, result: str, *, command: str | None = None) -> None:
        self._audit.note(
            what,
            uid=self._owner.uid,
            pid=self._trusted.caller_pid,
            result=result,
            workload=wanted.name,
            job=self._trusted.job or None,
            checkpoint=str(wanted.origin) if wanted.origin else None,
            command=command,
        )


class _Watch(threading.Thread):
    """Ends this process when the user's is gone and the supervisor does not end the workload by itself: it waits for something then.

    The kernel ends the workload with it, and the next run clears away.
    """

    def __init__(self, line: Line) -> None:
        super().__init__(daemon=True)
        self._descriptor = os.dup(line.fileno())

    def run(self) -> None:
        """Wait for the end of the line, and then for the end of everything."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        poll.poll()
        time.sleep(_LEAVE_S)
        os._exit(errors.AgentUnavailable.exit_status)
