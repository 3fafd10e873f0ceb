"""One request to the agent, met in a process of its own: a fresh interpreter with root's environment and nothing else of anybody's.

Started by `server`, as a program: descriptor 3 is the connection, 4 the caller's pidfd where there is one, and the command line says who
the caller is. What crashes or hangs here costs one request. A request for a seat makes this process the seat.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import traceback

import msgspec

from perdure import errors
from perdure.agent import asked, replies, site
from perdure.agent import request as requests
from perdure.agent.asked import Reply
from perdure.agent.audit import DEFAULT, Audit
from perdure.agent.caller import Caller
from perdure.agent.replies import Ended
from perdure.agent.site import Site
from perdure.agent.trusted import Trusted
from perdure.model.checkpoint import Owner
from perdure.supervisor import wire

CHANNEL = 3
PIDFD = 4

_REQUEST_S = 10.0
_TELL_S = 30.0


def arguments(caller: Caller) -> list[str]:
    """Return the command line's words that tell this program who asks."""
    return [msgspec.json.encode(msgspec.structs.replace(caller, pidfd=PIDFD if caller.pidfd is not None else None)).decode("ascii")]


def main(words: list[str]) -> int:
    """Meet one request; returns the exit status, which only the agent's log sees."""
    os.setsid()
    os.umask(0o022)
    os.chdir("/")
    for descriptor in (CHANNEL, PIDFD):
        with contextlib.suppress(OSError):  # without a pidfd there is none
            os.set_inheritable(descriptor, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # what users sent must not end up in a core file of root's
    caller = msgspec.json.decode(words[0], type=Caller)
    with socket.socket(fileno=CHANNEL) as channel:
        channel.settimeout(_REQUEST_S)
        first = channel.recv(1, socket.MSG_PEEK)
        channel.settimeout(None)
        if first == requests.MAGIC[:1]:
            return _seat(channel, caller)
        return _answer(channel, caller)


def _seat(channel: socket.socket, caller: Caller) -> int:
    """Become a seat, in the caller's own surroundings."""
    from perdure.agent import seat, surroundings

    try:
        if caller.uid == 0:
            raise errors.UsageError("root asks no agent for a workload", hint="perdure run does without it")
        found = surroundings.of(caller)
        surroundings.put_on(found)
    except errors.PerdureError as error:
        _audit().note("refuse", uid=caller.uid, pid=caller.pid, result=error.code, why=str(error))
        ended = Ended(error.exit_status, wire.document(error))
        channel.settimeout(_TELL_S)
        channel.sendall(replies.encode(replies.Reply(ended=ended)) + b"\n", socket.MSG_NOSIGNAL)
        return error.exit_status
    finally:
        if caller.pidfd is not None:
            os.close(caller.pidfd)
    return seat.serve(channel, caller.owner, Trusted(caller_pid=caller.pid, limits=found.limits))


def _answer(channel: socket.socket, caller: Caller) -> int:
    """Read a request, do what it asks for, and answer it."""
    from perdure.agent import (
        deeds,
        store_deeds,  # noqa: F401 - it registers what is done in a store
    )

    audit = _audit()
    about: dict[str, str | int | None] = {}
    what = "ask"
    try:
        place = site.read(os.environ)
        wanted = asked.receive(channel, within_s=_REQUEST_S)
        what, about = str(wanted.what.__struct_config__.tag), deeds.subject(wanted)
        owner = _owner(wanted, caller)
        audit.note(what, uid=caller.uid, pid=caller.pid, result="begun", user=wanted.user, **about)
        answer = deeds.Deed(channel, caller, owner, place).do(wanted.what)
        reply, result = Reply(answer=answer), "done"
    except errors.PerdureError as error:
        reply, result = Reply(refused=wire.document(error)), error.code
    except OSError as error:
        # The other side is gone, or takes what it asked for too slowly: nobody is there to be told.
        audit.note(what, uid=caller.uid, pid=caller.pid, result=f"left: {error.strerror or error}", **about)
        return errors.AgentUnavailable.exit_status
    except Exception as error:  # noqa: BLE001 - the top of a request; what went wrong in root's process is not for the user to read
        traceback.print_exc()
        audit.note("bug", uid=caller.uid, pid=caller.pid, result=type(error).__name__, why=str(error), asked=what)
        told = errors.PerdureError("a fault in Perdure", hint="the administrator finds more in the agent's log")
        reply, result = Reply(refused=wire.document(told)), told.code
    audit.note(what, uid=caller.uid, pid=caller.pid, result=result, **about)
    try:
        asked.reply(channel, reply, within_s=_TELL_S)
    except OSError:
        return errors.AgentUnavailable.exit_status
    return 0


def _owner(wanted: asked.Asked, caller: Caller) -> Owner:
    """Return about whose workloads the request is. Raises `errors.UsageError` when that is not for the caller to say."""
    if wanted.user is None or wanted.user == caller.uid:
        return caller.owner
    if caller.uid != 0:
        raise errors.UsageError("only root may name another user", hint="leave --user out")
    if not 0 <= wanted.user < 2**32 - 1:
        raise errors.UsageError(f"{wanted.user} is no user", hint="give a user's number")
    return Owner(uid=wanted.user, gid=wanted.user, groups=())


def _audit() -> Audit:
    try:
        found: Site = site.read(os.environ)
    except errors.PerdureError:
        return Audit(DEFAULT)
    return Audit(found.values["audit-log"].value or DEFAULT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
