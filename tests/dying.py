"""A crash at every step: run something in a child that ends without a word at its n-th call to the system."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator

_STEPS = ("open", "os.", "shutil.", "fcntl.")


def crashes(work: Callable[[], object], prepare: Callable[[], object], *, every: int = 1) -> Iterator[int]:
    """Yield after each crash: before step 1, before step 2, … until `work` gets through. `prepare` sets everything up anew each time.

    With `every`, only that one of so many steps is tried, where each costs much and their neighbours are alike.

    Steps are what the interpreter audits: opening, linking, renaming, cutting, changing owner and time. What was written and not synced is
    still there afterwards, as after a killed process; a machine that loses power is another matter.
    """
    for step in range(0, 10_000, every):
        prepare()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _die_at(step)
                work()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, 9), "it failed instead of crashing"
        yield step
        if code == 0:
            return


def _die_at(step: int) -> None:
    left = step

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        is_look = event == "os.listdir" or (bool(arguments) and isinstance(arguments[0], str) and arguments[0].startswith("/proc/"))
        if event.startswith(_STEPS) and not is_look:
            if left == 0:
                os._exit(9)
            left -= 1

    sys.addaudithook(watch)


def without_unnamed_files(work: Callable[[], object]) -> None:
    """Run `work` in a child to which the system says that it knows no files without a name, as NFS and others do."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sys.addaudithook(_refuse_unnamed)
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _refuse_unnamed(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
