"""Our own terminal, while the workload has one behind ours: raw, of the same size, and given back whatever happens. Called by `supervise`.

Keys go through to the workload's terminal, whose line discipline turns Ctrl-C into a signal for the workload's foreground job. When the
workload's main process stops (Ctrl-Z), we stop too, so that the shell gets its prompt; when we go on, so does it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import tty

_SIZE = struct.Struct("HHHH")
_SUSPEND = b"\x1a"

LOOKS_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""After a key that may suspend, the main process is looked at after these pauses: nobody but its parent is told that it stopped."""


class Terminal:
    """The terminal at descriptor 0. Nothing is changed before `enter`, and `leave` gives back what was found.

    One that is `lent` is nobody else's to read: whoever lent it sees to that.
    """

    def __init__(self, *, lent: bool = False) -> None:
        self._lent = lent
        self._found: list[object] | None = None

    def is_ours(self) -> bool:
        """Tell whether we are the terminal's foreground job, which alone may read and change it."""
        if self._lent:
            return True
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            return False

    def enter(self) -> bool:
        """Make the terminal raw. Returns whether it is; not while we are in the background."""
        if not self.is_ours():
            return False
        try:
            if self._found is None:
                self._found = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
        except termios.error:
            return False
        return True

    def leave(self) -> None:
        """Give the terminal back as it was found."""
        if self._found is not None:
            # A terminal that hung up cannot be given back.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._found)  # type: ignore[arg-type]
            self._found = None

    def fit(self, master: int) -> None:
        """Give the workload's terminal, whose other side is `master`, the size of ours. Its foreground job is told by the kernel."""
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(_SIZE.size))
            if _SIZE.unpack(size)[0]:
                fcntl.ioctl(master, termios.TIOCSWINSZ, size)

    def adopt(self, slave: int) -> None:
        """Give the workload's terminal the modes of ours, before anything runs on it."""
        with contextlib.suppress(termios.error):
            termios.tcsetattr(slave, termios.TCSANOW, termios.tcgetattr(0))


def may_suspend(typed: bytes) -> bool:
    """Tell whether what was typed may have asked the workload to stop."""
    return _SUSPEND in typed


def stop_ourselves() -> None:
    """Stop this process and its job until somebody lets it go on; returns then."""
    found = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0, signal.SIGTSTP)
    # Delivered before kill returns. An orphaned job is not stopped by it; SIGSTOP would hang it for ever.
    signal.signal(signal.SIGTSTP, found)
