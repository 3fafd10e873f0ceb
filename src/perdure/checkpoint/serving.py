"""Hand images to a restore as it asks for them, instead of laying all of them down before. Called by `restore`.

With ``--stream`` CRIU asks for each image over a socket in the folder of the images and reads it from a pipe (criu/img-streamer.c). The
images of a folder go through as they lie there; memory pages come from wherever the caller has them, and are read, verified and copied
while CRIU fills the tasks.

Words are protocol buffers with their length before them, 4 bytes, lowest first. CRIU says a name; the answer says whether there is such an
image; then CRIU sends the pipe's writing end with one byte.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from perdure import errors
from perdure.checkpoint.images import wire

Content = Callable[[], Iterable[Sequence[memoryview]]]
"""Returns an image's content in parts, each verified when it is handed out."""

_SOCKET = "streamer-serve.sock"
_LONGEST_ADDRESS = 107
_LENGTH = struct.Struct("<I")
_MOST_NAME_BYTES = 255
_PIPE_BYTES = 1024 * 1024
"""What an ordinary user may ask for too (fs.pipe-max-size)."""
_PLAIN_PIPE_BYTES = 16 * 4096
"""What a new pipe takes at least without anybody reading."""
_COPY_BYTES = 1024 * 1024
_VECTORS = 1024


def fits(images: Path) -> bool:
    """Tell whether the socket's address has room for the path of the folder `images`."""
    return len(os.fsencode(images / _SOCKET)) <= _LONGEST_ADDRESS


class Server:
    """Serves the images in the folder `images`, and those that `contents` names. A context; CRIU is run inside.

    `images` is private to root: who may connect is who may enter it.
    """

    def __init__(self, images: Path, contents: Mapping[str, Content]) -> None:
        self._images = images
        self._contents = contents
        self._senders: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.problem: BaseException | None = None
        """The first thing that went wrong with a content; CRIU has then seen the end of its pipe too early, and given up."""

    def __enter__(self) -> Server:
        with contextlib.ExitStack() as undo:
            self._folder = os.open(self._images, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, self._folder)
            self._listening = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
            self._listening.bind(str(self._images / _SOCKET))
            self._listening.listen(1)
            self._over = os.eventfd(0, os.EFD_CLOEXEC)
            undo.pop_all()
        self._thread = threading.Thread(target=self._serve, name="perdure-images", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._over, 1)
        self._thread.join()
        # Nobody reads any more: a sender that waits for room is told so by the pipe, whose other end is closed.
        for sender in self._senders:
            sender.join()
        self._listening.close()
        os.close(self._over)
        os.close(self._folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._images / _SOCKET)

    def _serve(self) -> None:
        # CRIU ends when it has what it wants, or fails and says why: neither is told here.
        with contextlib.suppress(OSError, errors.InputFormat), selectors.DefaultSelector() as ready:
            ready.register(self._over, selectors.EVENT_READ)
            ready.register(self._listening, selectors.EVENT_READ)
            if self._over in {key.fd for key, _ in ready.select()}:
                return
            connection, _ = self._listening.accept()
            ready.unregister(self._listening)
            with connection:
                ready.register(connection, selectors.EVENT_READ)
                while self._over not in {key.fd for key, _ in ready.select()}:
                    if not self._answer(connection):
                        return

    def _answer(self, connection: socket.socket) -> bool:
        """Answer one request; false when there are no more."""
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
        if not 0 < length <= _MOST_NAME_BYTES + 8:
            return False
        name = (wire.content(wire.parse(_receive(connection, length)), 1) or b"").decode("ascii", "replace")
        source = self._source(name)
        reply = bytes([0x08, source is not None])
        connection.sendall(_LENGTH.pack(len(reply)) + reply)
        if source is not None:
            self._send(source, _receive_descriptor(connection))
        return True

    def _source(self, name: str) -> Content | int | None:
        """Return where the image `name` comes from: a content, or a descriptor; None: there is none."""
        if name in self._contents:
            return self._contents[name]
        if not name or "/" in name or name in (".", "..", _SOCKET) or len(name) > _MOST_NAME_BYTES:
            return None
        try:
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:
            return None

    def _send(self, source: Content | int, pipe: int) -> None:
        if isinstance(source, int) and os.fstat(source).st_size <= _PLAIN_PIPE_BYTES:
            self._copy(source, pipe)  # which takes all of it at once
            return
        # CRIU opens one image while it reads another.
        sender = threading.Thread(target=self._copy, args=(source, pipe), name="perdure-image", daemon=True)
        self._senders.append(sender)
        sender.start()

    def _copy(self, source: Content | int, pipe: int) -> None:
        try:
            if isinstance(source, int):
                _copy_file(source, pipe)
            else:
                with contextlib.suppress(OSError):
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                _copy_parts(source(), pipe)
        except BrokenPipeError:
            pass  # CRIU has read what it wanted, or has failed and says why
        except BaseException as problem:  # noqa: BLE001 - raised again by whoever called CRIU
            with self._lock:
                self.problem = self.problem or problem
        finally:
            os.close(pipe)
            if isinstance(source, int):
                os.close(source)


def _copy_file(source: int, pipe: int) -> None:
    while os.splice(source, pipe, _COPY_BYTES):
        pass


def _copy_parts(content: Iterable[Sequence[memoryview]], pipe: int) -> None:
    for parts in content:
        left = [part for part in parts if part]
        while left:
            done = os.writev(pipe, left[:_VECTORS])
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]


def _receive(connection: socket.socket, wanted: int) -> bytes:
    got = b""
    while len(got) < wanted:
        part = connection.recv(wanted - len(got))
        if not part:
            raise ConnectionError("CRIU asks for no more")
        got += part
    return got


def _receive_descriptor(connection: socket.socket) -> int:
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptor = array.array("i", content)[0]
            os.set_inheritable(descriptor, False)
            return descriptor
    raise ConnectionError("CRIU sent no pipe")
