"""Start a workload so that it can be saved: a session, a PID and an IPC namespace of its own, a minimal init, nothing of ours inside.

Called by the supervisor from its main thread: the kernel ends the tree when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.base import files
from perdure.checkpoint import dropper, dropping, namespaces, tree, views
from perdure.checkpoint.criu.locate import Init
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import Owner

_STARTER = Path(__file__).with_name("starter.py")
_REPLY_BYTES = 4096
_START_S = 60.0
"""Time for an interpreter to start; it takes milliseconds where its files are at hand."""

_FIRST_PID = 10_000
_PID_SPAN = 20_000
"""First PIDs lie in 10,000 to 29,999: below every kernel's default limit of 32,768, above what a fresh namespace counts up to."""


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to start. `init` is an installed one (`install_init`); `stdin`, `stdout`, `stderr` are our descriptors for its streams."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    working_directory: str
    init: Init
    stdin: int = 0
    stdout: int = 1
    stderr: int = 2
    terminal: bool = False
    """The streams are a terminal's: it becomes the controlling one of the workload's session."""
    first_pid: int
    """Number of the workload's first process in its PID namespace; see `first_pid`."""
    umask: int = 0o022
    limits: tuple[tuple[int, int, int], ...] = ()
    """Resource, soft and hard limit of an owner's command, for those that are not to be this process's."""
    owner: Owner | None = None
    """The ordinary user that the command runs as; None: as this process. The init stays root, with nothing of the user's in it."""
    folder: str | None = None
    """Where the init of an owner's workload works: a folder that only root can write. CRIU makes a folder there for an instant, too."""


def first_pid(workload: str) -> int:
    """Return the first PID of the workload of that name: its own, and the same each time.

    Programs on one machine share /tmp and /dev/shm and tell each other apart by PID there; two workloads that both begin at 2 would
    take each other's files.
    """
    number = int.from_bytes(hashlib.blake2b(workload.encode("utf-8"), digest_size=8).digest(), "big")
    return _FIRST_PID + number % _PID_SPAN


def install_init(init: Init, folder: Path) -> Init:
    """Put a copy of `init` into `folder` under its digest and return the copy.

    An image maps the init program by its path, and an upgrade of the system must not change what lies there.
    Raises `errors.OutputError`, `errors.InputError`, and `errors.EnvironmentUnfit` where programs may not be run from `folder`.
    """
    try:
        content = Path(init.path).read_bytes()
    except OSError as error:
        raise errors.InputError(f"cannot read the init program {init.path}: {error.strerror}", hint="see perdure doctor") from error
    target = folder / hashlib.sha256(content).hexdigest()[:32]
    try:
        present = target.read_bytes() == content and stat.S_IMODE(target.stat().st_mode) == 0o755
    except OSError:
        present = False
    if not present:
        # The folder is entered by the workload's user, and written by nobody but its owner.
        with contextlib.suppress(FileExistsError):
            os.makedirs(folder, mode=0o755)
        files.write_bytes(target, content, mode=0o755)
    # Many systems mount /run so.
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise errors.EnvironmentUnfit(f"{folder} lies on a file system that is mounted noexec", hint="choose another folder")
    return msgspec.structs.replace(init, path=str(target))


def launch(spec: LaunchSpec) -> Tree:
    """Start the workload and return its tree, when its init program runs.

    Raises `errors.CommandMissing` (exit status 127) and `errors.CommandRefused` (126) for a command that cannot be run, and
    `errors.EnvironmentUnfit` when this machine or user cannot make the namespaces.
    """
    if threading.current_thread() is not threading.main_thread():
        raise AssertionError("the tree would end with this thread")
    if spec.owner is not None and spec.folder is not None:
        with dropping.listening(spec.folder) as listener:
            started = _start(spec, dropping.COMMAND, {}, spec.folder)
            with _ending(started.pid):
                dropping.hand_over(listener, started, _order(spec, spec.owner))
        return started
    program = find_command(spec.argv[0], environment=spec.environment, working_directory=spec.working_directory)
    return _start(spec, (program, *spec.argv[1:]), spec.environment, spec.working_directory)


def _start(spec: LaunchSpec, command: tuple[str, ...], variables: dict[str, str], folder: str) -> Tree:
    """Start the init with `command` below it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs, views.View() as view:
        pid = _spawn(spec, theirs.fileno())
        theirs.close()
        with _ending(pid):
            entrance = None
            if view.namespace is not None:
                view.start_proc(pid, spec.first_pid)
                entrance = f"/proc/{os.getpid()}/fd/{view.namespace}"
            # Where it has no /proc of its own, nobody else has set its numbers.
            first_pid = None if entrance else spec.first_pid
            _hand_over(ours, _request(spec, command, variables, folder) | {"mounts": entrance, "first_pid": first_pid})
    return Tree(pid=pid, start_ticks=tree.start_ticks_of(pid))


@contextlib.contextmanager
def _ending(pid: int) -> Iterator[None]:
    """End the tree of `pid`, our child, when the block raises."""
    try:
        yield
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _request(spec: LaunchSpec, command: tuple[str, ...], variables: dict[str, str], folder: str) -> dict[str, object]:
    return {
        "argv": [*_init_argv(spec.init), *command],
        "environment": list(variables.items()),
        "working_directory": folder,
        "terminal": spec.terminal,
        "umask": spec.umask,
        "own_ipc": True,
    }


def _line(document: dict[str, object]) -> bytes:
    return json.dumps(document).encode("ascii") + b"\n"


def _order(spec: LaunchSpec, owner: Owner) -> dropping.Order:
    return dropping.Order(
        argv=spec.argv,
        environment=tuple(spec.environment.items()),
        working_directory=spec.working_directory,
        umask=spec.umask,
        uid=owner.uid,
        gid=owner.gid,
        groups=owner.groups,
        limits=spec.limits,
    )


def _init_argv(init: Init) -> list[str]:
    """Return the start of the command line: signals go to the command's whole group, as from a terminal."""
    match init.kind:
        case "tini" | "catatonit":
            return [init.path, "-g", "--"]
        case "dumb-init":
            return [init.path, "--"]


def _spawn(spec: LaunchSpec, control: int) -> int:
    try:
        return namespaces.spawn_first(_STARTER, (spec.stdin, spec.stdout, spec.stderr, control))
    except OSError as error:
        raise _unfit(error) from error


def _hand_over(channel: socket.socket, request: dict[str, object]) -> None:
    channel.settimeout(_START_S)
    try:
        channel.sendall(_line(request))
        reply = channel.recv(_REPLY_BYTES)
    except OSError as error:
        raise errors.EnvironmentUnfit(f"the starter of the workload does not answer: {error}", hint="see perdure doctor") from error
    if reply:
        told = msgspec.json.decode(reply, type=dict[str, int | str | None])
        raise _unfit(OSError(told["errno"], os.strerror(int(told["errno"] or 0)), told["path"]))


def _unfit(error: OSError) -> errors.EnvironmentUnfit:
    about = f" ({error.filename})" if error.filename else ""
    hint = "run this as root" if error.errno in (errno.EPERM, errno.EACCES) else "see perdure doctor"
    return errors.EnvironmentUnfit(f"cannot start a workload in namespaces of its own: {error.strerror}{about}", hint=hint)


def find_command(name: str, *, environment: Mapping[str, str], working_directory: str) -> str:
    """Return the path of the program that a shell would run for `name`, absolute or as given.

    Raises `errors.CommandMissing` and `errors.CommandRefused`.
    """
    try:
        return dropper.find(name, environment.get("PATH"), working_directory)
    except dropper.Unusable as error:
        raise dropping.unusable(str(error), error.hint, is_missing=error.is_missing) from None
