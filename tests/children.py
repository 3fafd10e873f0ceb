"""Forked children of tests: a copy of the test's process, with its memory, that ends with a status of its own."""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable


def in_child(run: Callable[[], object]) -> int:
    """Run `run` in a forked child and return its process id. The child ends with 0, or with 1 and a traceback."""
    with warnings.catch_warnings():
        # Python warns of threads, which a child lacks: the children of these tests use nothing that such a thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)  # a child must not go on as a second test run
        os._exit(0)
    return child


def exit_status(child: int) -> int:
    """Wait for a child and return its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_for(is_true: Callable[[], bool], limit_s: float = 120.0) -> None:
    """Wait until `is_true`, and fail after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.01)
