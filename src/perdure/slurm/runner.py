"""Run something on many nodes at once, through a command that the admin names, such as ``ssh {node}``. Called by install and uninstall.

No shell is started here. What runs on a node is a list of words; a runner that hands a command line to a shell over there, as ssh does,
gets it as one word, quoted for that shell.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from perdure import errors
from perdure.slurm.payload import Payload

DEFAULT = "ssh {node}"
AT_ONCE = 16
"""Nodes that are worked on at a time, unless the caller says otherwise: each gets 50 MB."""
_MOST_ANSWER_BYTES = 8 << 20
_LAST_WORDS_S = 10
_INTO_A_SHELL = frozenset({"ssh", "rsh"})
_HINT = 'write it like --runner "ssh {node}", or "nsenter -t 42 -m -p {command}" with the place of the command'


class Runner(msgspec.Struct, frozen=True):
    """A command by which words are run on a node: those of `words`, with ``{node}`` and, perhaps, ``{command}`` in them."""

    words: tuple[str, ...]

    def argv(self, node: str, command: list[str]) -> list[str]:
        """Return what to start here to run `command` on `node`.

        Where a word is ``{command}``, it becomes the command, quoted for a shell. Else the words of `command` follow: as they are, or for
        ssh as one quoted word.
        """
        quoted = shlex.join(command)
        if any("{command}" in word for word in self.words):
            return [word.replace("{node}", node).replace("{command}", quoted) for word in self.words]
        follow = [quoted] if os.path.basename(self.words[0]) in _INTO_A_SHELL else command
        return [*(word.replace("{node}", node) for word in self.words), *follow]


class Command(msgspec.Struct, frozen=True):
    """What is run on a node: its words, and what it reads: `first`, and then the content of the file `then`."""

    words: list[str]
    first: bytes = b""
    then: Path | None = None


class Answer(msgspec.Struct, frozen=True):
    """What came back from one node: an exit status (255 as well when the runner could not start), and what it said."""

    node: str
    status: int
    out: bytes
    err: str

    def document(self) -> Any:
        """Return the JSON document on standard output, or None."""
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(self.out)
        return None


def read(text: str) -> Runner:
    """Read a runner as it is written on a command line. Raises `errors.UsageError`."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise errors.UsageError(f"--runner: cannot read {text!r}: {error}", hint=_HINT) from error
    if not words or not any("{node}" in word for word in words):
        raise errors.UsageError(f"--runner: {text!r} does not say where {{node}} goes", hint=_HINT)
    return Runner(words)


def boot(payload: Payload, archive: Path, *, prefix: str, pythons: Iterable[str], arguments: list[str]) -> Command:
    """Return what to run on a node that has nothing of ours: our first program there, which reads the packed payload `archive`.

    ``{payload}`` in `arguments` becomes the folder over there that the payload is unpacked into, ``{apart}`` how many seconds its clock is
    ahead of the one here, the time of getting there included.
    """
    program = importlib.resources.files("perdure.slurm").joinpath("boot.py").read_bytes()
    told = json.dumps(
        {
            "near": os.path.dirname(prefix),
            "python": payload.python,
            "pythons": list(pythons),
            "packages": payload.packages,
            "arguments": arguments,
            "sent_s": time.time(),
        }
    ).encode()
    words = ["python3", "-I", "-c", f"import sys; exec(sys.stdin.buffer.read({len(program)}))"]
    return Command(words, program + f"{len(told)}\n".encode() + told, archive)


def run(
    runner: Runner, nodes: Iterable[str], command: Callable[[], Command], *, limit_s: float, at_once: int = AT_ONCE
) -> Iterator[Answer]:
    """Run on each of `nodes` what `command` returns when its turn comes, many at a time; yield their answers as they come.

    A node that takes longer than `limit_s` is given up: its runner is ended, and its status is 124.
    """
    with ThreadPoolExecutor(at_once) as pool:
        waiting: set[Future[Answer]] = {pool.submit(_one, runner, node, command, limit_s) for node in nodes}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def _one(runner: Runner, node: str, command: Callable[[], Command], limit_s: float) -> Answer:
    what = command()
    argv = runner.argv(node, what.words)
    try:
        # A session of its own, so that what a runner has started can be ended with it.
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, close_fds=True
        )
    except OSError as error:
        return Answer(node, 255, b"", f"cannot start {argv[0]}: {error.strerror}")
    pipe, process.stdin = cast("IO[bytes]", process.stdin), None
    feeder = threading.Thread(target=_feed, args=(pipe, what), daemon=True)
    feeder.start()
    late = False
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        late = True
        out, err = _end(process)
    feeder.join()
    said = err[-_MOST_ANSWER_BYTES:].decode("utf-8", "replace")
    return Answer(node, 124 if late else process.returncode, out[-_MOST_ANSWER_BYTES:], said)


def _end(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End a runner that takes too long, and all that it started; return what it had said."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def _feed(pipe: IO[bytes], what: Command) -> None:
    # A node that ends before it has read everything says why on its own.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(what.first)
        if what.then is not None:
            with open(what.then, "rb") as handle:
                while piece := handle.read(1 << 20):
                    pipe.write(piece)
