"""A terminal with an interactive shell on it, as a person has one. For tests."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

_SHOWN_S = 120.0


class Screen:
    """A terminal whose shell stands in folder `work` with `environment`."""

    def __init__(self, work: Path, environment: Mapping[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.resize(30, 90)
        self.text = b""
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=work,
            env={**environment, "PS1": "READY> ", "TERM": "dumb"},
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),  # noqa: PLW1509 - no thread runs here
        )
        os.close(slave)
        self.expect(b"READY> ")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def expect(self, wanted: bytes, limit_s: float = _SHOWN_S) -> bytes:
        """Wait until `wanted` is shown; what came up to it is forgotten and returned."""
        end_s = time.monotonic() + limit_s
        while wanted not in self.text:
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"no {wanted!r} in {self.text!r}"
            if select.select([self.master], [], [], left_s)[0]:
                self.text += os.read(self.master, 1 << 16)
        before, _, self.text = self.text.partition(wanted)
        return before

    def modes(self) -> list:
        return termios.tcgetattr(self.master)[:4]

    def close(self) -> None:
        self.shell.send_signal(signal.SIGKILL)
        self.shell.wait()
        os.close(self.master)
