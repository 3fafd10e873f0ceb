"""Ask the workload for its counter over HTTP, in a thread of its own, so that a slow answer delays nothing else. Called by `conduct`.

The thread can enter the network namespace of the workload, where that has one.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import queue
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

from perdure.evaluation import probes
from perdure.evaluation.plan_workload import Progress

_CLONE_NEWNET = 0x40000000
_LONGEST_ANSWER_BYTES = 4 << 20
_BETWEEN_S = 0.1
_ANSWER_S = 5.0

_libc = ctypes.CDLL(None, use_errno=True)


class Asking:
    """Asks until it is closed; one for each life. `network` is a path such as /proc/PID/ns/net, or None for our own network.

    `clock` gives the time of an answer, in seconds.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float], network: str | None) -> None:
        self._progress = progress
        self._clock = clock
        self._pattern: re.Pattern[str] | None = probes.pattern_of(progress)
        self._answers: queue.SimpleQueue[tuple[float, float]] = queue.SimpleQueue()
        self._closed = threading.Event()
        # No proxy stands between the harness and a workload on this node.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._thread = threading.Thread(target=self._ask_on, args=(network,), daemon=True, name="perdure-asking")
        self._thread.start()

    def poll(self) -> Iterator[tuple[float, float]]:
        """Yield times and counters of the answers since the last look; an answer with the same counter is none."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._answers.get_nowait()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()
        self._thread.join(_ANSWER_S + 1.0)

    def _ask_on(self, network: str | None) -> None:
        if network is not None and not _enter(network):
            return  # the life that lived there is over
        last: float | None = None
        while not self._closed.is_set():
            began_s = time.monotonic()
            counter = self._ask()
            if counter is not None and counter != last:
                last = counter
                self._answers.put((self._clock(), counter))
            self._closed.wait(max(0.0, _BETWEEN_S - (time.monotonic() - began_s)))

    def _ask(self) -> float | None:
        try:
            with self._opener.open(self._progress.url or "", timeout=_ANSWER_S) as answer:
                text = answer.read(_LONGEST_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, urllib.error.URLError, http.client.HTTPException, ValueError):
            return None
        if self._progress.kind == "metrics":
            return probes.metric_in(text, self._progress.metric or "")
        return probes.number_in(text, self._pattern)


def _enter(network: str) -> bool:
    """Move this thread, and no other, into a network namespace; False when it is gone."""
    try:
        descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return bool(_libc.setns(descriptor, _CLONE_NEWNET) == 0)
    finally:
        os.close(descriptor)
