"""The supervisor's side of `dropper`, the step that becomes an ordinary user below a root init. Called by `launch` and `alive`."""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator

import msgspec

from perdure import errors
from perdure.checkpoint import dropper, tree
from perdure.checkpoint.tree import Tree

COMMAND = (sys.executable, "-I", "-S", dropper.__file__)
"""How the step is started, in the folder where somebody listens."""

_START_S = 60.0
"""Time for an interpreter to start; it takes milliseconds where its files are at hand."""
_REPLY_BYTES = 4096


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the step is to become: a command with its surroundings, and a user. Nothing of it is ever in a file or a command line."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    working_directory: str
    umask: int
    uid: int
    gid: int
    groups: tuple[int, ...]
    limits: tuple[tuple[int, int, int], ...]
    """Resource, soft and hard limit."""


@contextlib.contextmanager
def listening(folder: str) -> Iterator[socket.socket]:
    """Listen in `folder`, which only root can write, for the step that is about to start; only root can come in. Raises OSError."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        way = f"/proc/self/fd/{directory}/{dropper.SOCKET}"  # a socket's path has room for a hundred bytes
        with contextlib.suppress(FileNotFoundError):
            os.unlink(way)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(way)
            try:
                os.chmod(way, 0o600)
                listener.listen(1)
                yield listener
            finally:
                os.unlink(way)
    finally:
        os.close(directory)


def hand_over(listener: socket.socket, started: Tree, order: Order) -> None:
    """Tell the step below the init of `started` what to run and as whom; return when the command has taken its place.

    Raises `errors.CommandMissing` and `errors.CommandRefused` for a command that cannot be run, `errors.InputDenied` where the user may
    not go, and `errors.EnvironmentUnfit` when the step ends or does not answer.
    """
    with _accepted(listener, started) as channel:
        channel.settimeout(_START_S)
        try:
            channel.sendall(marshal.dumps(msgspec.structs.asdict(order)))
            channel.shutdown(socket.SHUT_WR)
            reply = b""
            while received := channel.recv(_REPLY_BYTES):
                reply += received
        except OSError as error:
            raise errors.EnvironmentUnfit(f"the starter of the command does not answer: {error}", hint="see perdure doctor") from error
    if not reply:
        return
    kind, what, more = reply.decode().split("\0")
    if kind != "failed":
        raise unusable(what, more, is_missing=kind == "missing")
    where = f" {more}" if more else ""
    raise errors.InputDenied(
        f"cannot start {order.argv[0]} as user {order.uid}:{where} {os.strerror(int(what))}", hint="see whether the user may go there"
    )


def _accepted(listener: socket.socket, started: Tree) -> socket.socket:
    """Wait for the step below the init, unless that ends first; whoever else comes is turned away."""
    ended = tree.open_pidfd(started)
    try:
        ready = select.poll()  # not select(): descriptors may have numbers above 1023
        for descriptor in (listener.fileno(), ended):
            ready.register(descriptor, select.POLLIN)
        end_s = time.monotonic() + _START_S
        while (left_s := end_s - time.monotonic()) > 0:
            found = {descriptor for descriptor, _ in ready.poll(left_s * 1000.0)}
            if listener.fileno() in found:
                channel, _ = listener.accept()
                peer = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
                if peer[1] == os.geteuid():
                    return channel
                channel.close()
            elif found:
                raise errors.EnvironmentUnfit("the starter of the command ended before it began", hint="see perdure doctor")
    finally:
        os.close(ended)
    raise errors.EnvironmentUnfit("the starter of the command does not answer", hint="see perdure doctor")


def unusable(message: str, hint: str, *, is_missing: bool) -> errors.UsageError:
    """Return the error for a command that cannot be run, with the exit status that shells use for it."""
    return (errors.CommandMissing if is_missing else errors.CommandRefused)(message, hint=hint)
