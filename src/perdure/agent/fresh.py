"""Start a program of the agent's as a fresh process: a new interpreter, with root's environment and the descriptors that are named.

Called by `server`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Mapping

from perdure.supervisor import signals

_KEPT = ("PERDURE_", "AWS_", "PYTHONPATH", "SSL_CERT_", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
"""Variables of root's that are needed: settings, and what a store in the network is reached with."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ABOVE = 64


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what such processes get of `environ`, root's."""
    kept = {key: value for key, value in environ.items() if key.upper().startswith(_KEPT)}
    return kept | {"PATH": _PATH, "LC_ALL": "C.UTF-8", "HOME": "/root"}


def start(module: str, words: list[str], descriptors: Mapping[int, int], variables: dict[str, str]) -> int:
    """Start `module` with the arguments `words`; `descriptors` are its own, by number, besides 0 and 1 (nothing) and 2 (ours).

    Returns its PID. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, null)
        actions = []
        for number, descriptor in {0: null, 1: null, 2: 2, **descriptors}.items():
            # Above the numbers that they are put on, so that none is overwritten before it is moved.
            copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE)
            stack.callback(os.close, copy)
            actions.append((os.POSIX_SPAWN_DUP2, copy, number))
        argv = [sys.executable, "-P", "-s", "-m", module, *words]
        every = [*signals.HANDLED, *signals.IGNORED]
        return os.posix_spawn(sys.executable, argv, variables, file_actions=actions, setsigmask=[], setsigdef=every)
