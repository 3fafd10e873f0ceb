"""The agent: listens for processes of this node, knows who they are by what the kernel says, and starts a worker for each that asks.

Called by `perdure agent`. Nothing that a user sends is read here. A connection costs a descriptor until it speaks, and then a process; both
are bounded for each user, so that whoever fills a bound fills their own. The agent remembers nothing: it can end, or be killed, and
another takes its place, while seats go on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
from collections.abc import Iterator, Mapping

import msgspec

from perdure import errors
from perdure.agent import audit, caller, fresh, worker
from perdure.agent.asked import Reply
from perdure.agent.audit import Audit
from perdure.agent.caller import Caller
from perdure.agent.limits import Bounds, Ledger
from perdure.agent.site import Site
from perdure.base import linkless
from perdure.supervisor import lock, signals, wire
from perdure.supervisor.reactor import READ, Reactor, Timer, now_s

_BACKLOG = 1024
_TIDY_S = 60.0
_FOR_ALL = 0o666
_DESCRIPTORS = 4096
_OUT_OF = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S = 0.5
_ENDS = "the agent ended before it took the request: nothing was done"


class _Connection(msgspec.Struct, eq=False):
    """One that has not spoken yet."""

    socket: socket.socket
    caller: Caller
    timer: Timer


class Server:
    """Listens at `path`. `environ` is root's."""

    def __init__(self, path: str, site: Site, environ: Mapping[str, str], bounds: Bounds | None = None) -> None:
        self._path = path
        self._site = site
        self._bounds = bounds or Bounds()
        self._ledger = Ledger(self._bounds)
        self._audit = Audit(site.values["audit-log"].value or audit.DEFAULT)
        self._environment = fresh.environment(environ)
        self._connections: set[_Connection] = set()
        self._workers: dict[int, tuple[int, int]] = {}
        self._ends = False

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises `errors.OutputError` when the socket cannot be made, and `errors.WorkloadBusy` when another agent listens.
        """
        _make_room()
        self._site.folders.make_roots()
        with (
            contextlib.closing(Reactor()) as reactor,
            lock.held(self._site.folders.state / "agent.lock", "the agent"),
            _listening(self._path) as listener,
            signals.delivered(reactor) as inbox,
        ):
            inbox.hand_to(self._signalled)
            self._listen(listener, reactor)
            self._tidy(reactor)
            tell_manager("READY=1")
            self._audit.note("start", uid=0, pid=os.getpid(), result="listening")
            self._ledger.begin(0, now_s())
            self._watch(fresh.start("perdure.agent.leftovers", [], {}, self._environment), 0, reactor)
            while not self._ends:
                reactor.turn()
            tell_manager("STOPPING=1")
            self._turn_away(listener, reactor)
        self._audit.note("stop", uid=0, pid=os.getpid(), result=f"{len(self._workers)} workers go on")

    def _turn_away(self, listener: socket.socket, reactor: Reactor) -> None:
        """Tell all whose requests were not taken, those that still wait to be let in too, that the next agent can be asked."""
        listener.shutdown(socket.SHUT_RD)  # from now on whoever connects is refused by the kernel, and finds the next agent
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # there are no more, or no descriptors: a connection that is reset says the same
                break
            _refuse(connection, _ENDS, is_ending=True)
            connection.close()
        for waiting in list(self._connections):
            _refuse(waiting.socket, _ENDS, is_ending=True)
            self._drop(waiting, reactor)

    def _signalled(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._ends = True

    def _tidy(self, reactor: Reactor) -> None:
        self._ledger.forget(now_s())
        reactor.after(_TIDY_S, lambda: self._tidy(reactor))

    def _listen(self, listener: socket.socket, reactor: Reactor) -> None:
        reactor.watch(listener.fileno(), READ, lambda: self._accept(listener, reactor))

    def _accept(self, listener: socket.socket, reactor: Reactor) -> None:
        """Take those that wait: whoever connects faster than they are taken would keep others out."""
        for _ in range(_BACKLOG):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF:
                    # It would be ready again at once, and nothing is freed by trying.
                    reactor.forget(listener.fileno())
                    reactor.after(_PAUSE_S, lambda: self._listen(listener, reactor))
                return
            self._admit(connection, reactor)

    def _admit(self, connection: socket.socket, reactor: Reactor) -> None:
        try:
            found = caller.identify(connection)
        except OSError:
            connection.close()
            return
        refusal = self._ledger.open(found.uid)
        if refusal:
            _refuse(connection, refusal)
            connection.close()
            _let_go(found)
            return
        waiting = _Connection(connection, found, reactor.after(self._bounds.idle_s, lambda: self._drop(waiting, reactor)))
        self._connections.add(waiting)
        reactor.watch(connection.fileno(), READ, lambda: self._speaks(waiting, reactor))

    def _drop(self, waiting: _Connection, reactor: Reactor) -> None:
        """Let go of a connection."""
        self._connections.discard(waiting)
        waiting.timer.cancel()
        reactor.forget(waiting.socket.fileno())
        waiting.socket.close()
        _let_go(waiting.caller)
        self._ledger.close(waiting.caller.uid)

    def _speaks(self, waiting: _Connection, reactor: Reactor) -> None:
        """There is something to read: somebody else reads it."""
        try:
            if not waiting.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                self._drop(waiting, reactor)
                return
        except BlockingIOError:
            return
        except OSError:
            self._drop(waiting, reactor)
            return
        uid = waiting.caller.uid
        refusal = self._ledger.begin(uid, now_s())
        if not refusal:
            try:
                self._start(waiting, reactor)
            except OSError as error:
                self._ledger.end(uid)
                refusal = f"no process can be started: {error.strerror}"
        if refusal:
            self._audit.note("refuse", uid=uid, pid=waiting.caller.pid, result=refusal)
            _refuse(waiting.socket, refusal)
        self._drop(waiting, reactor)

    def _start(self, waiting: _Connection, reactor: Reactor) -> None:
        found = waiting.caller
        descriptors = {worker.CHANNEL: waiting.socket.fileno()} | ({} if found.pidfd is None else {worker.PIDFD: found.pidfd})
        self._watch(fresh.start("perdure.agent.worker", worker.arguments(found), descriptors, self._environment), found.uid, reactor)

    def _watch(self, pid: int, uid: int, reactor: Reactor) -> None:
        pidfd = os.pidfd_open(pid)
        self._workers[pidfd] = (pid, uid)
        reactor.watch(pidfd, READ, lambda: self._ended(pidfd, reactor))

    def _ended(self, pidfd: int, reactor: Reactor) -> None:
        pid, uid = self._workers.pop(pidfd)
        reactor.forget(pidfd)
        os.close(pidfd)
        self._ledger.end(uid)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            self._audit.note("lost", uid=uid, result=f"process {pid} was ended by {signal.Signals(os.WTERMSIG(status)).name}")


def _make_room() -> None:
    """Let this process hold as many descriptors as the bounds allow connections and workers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (soft, hard) and soft < _DESCRIPTORS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_DESCRIPTORS, hard), hard))


def _refuse(connection: socket.socket, why: str, *, is_ending: bool = False) -> None:
    """Say why nothing is done. It is left open: what is watched is forgotten before it is closed."""
    document = wire.document(errors.AgentUnavailable(why, hint="try again in a moment"))
    with contextlib.suppress(OSError):
        connection.send(wire.encode(Reply(refused=document, is_ending=is_ending)) + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _let_go(found: Caller) -> None:
    if found.pidfd is not None:
        os.close(found.pidfd)


@contextlib.contextmanager
def _listening(path: str) -> Iterator[socket.socket]:
    """Listen at `path`, for everybody, while the block runs. Raises `errors.OutputError`.

    The socket stays afterwards, and refuses: whoever finds it knows that there is an agent, and may wait for the next.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    with listener:
        try:
            with linkless.parent(path) as (folder, name):
                new = f"/proc/self/fd/{folder}/.{os.getpid()}"  # an address has room for a hundred bytes
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)
                listener.bind(new)
                os.chmod(new, _FOR_ALL)
                listener.listen(_BACKLOG)
                # In place of the one before, where nobody listens any more: the lock says so.
                os.rename(new, name, dst_dir_fd=folder)
        except OSError as error:
            raise errors.OutputError(f"cannot listen at {path}: {error.strerror}", hint="see the setting agent-socket") from error
        yield listener


def tell_manager(state: str) -> None:
    """Tell the service manager that started us, where there is one (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier:
        notifier.sendto(state.encode("ascii"), "\0" + address[1:] if address.startswith("@") else address)
