"""Watch one run through all its lives: every source of progress and every checkpoint of the workload's own. Called by `conduct`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from perdure import errors
from perdure.evaluation import probes
from perdure.evaluation.asking import Asking
from perdure.evaluation.local import Life
from perdure.evaluation.places import Places
from perdure.evaluation.plan_workload import Workload

_SAVED_EVERY_S = 0.5
"""Names of files are compared this often: a folder on a parallel file system may hold many."""
OUTPUT = "output.log"


class Watch:
    """Tells of progress by `signal(at_s, counter)` and of the workload's own checkpoints by `saved(at_s, counter)`.

    Raises `errors.UsageError` for a workload without a progress signal.
    """

    def __init__(
        self,
        workload: Workload,
        there: Places,
        clock: Callable[[], float],
        *,
        signal: Callable[[float, float], None],
        saved: Callable[[float, float], None],
    ) -> None:
        if workload.progress is None:
            raise errors.UsageError("the plan has no workload.progress", hint="say where the workload's own counter is read")
        self._progress = workload.progress
        self._there = there
        self._clock = clock
        self._signal = signal
        self._saved = saved
        self._pattern = probes.pattern_of(workload.progress)
        own = workload.own_checkpoint
        base = workload.working_directory or "."
        self._own_lines = None if own is None or own.kind != "log" else probes.OwnCheckpointLines(own)
        self._own_files = None if own is None or own.kind != "file" else probes.Saved(own, base, there.expand)
        self._polled = _source(workload, there, base)
        self._asking: Asking | None = None
        self._lines = probes.Lines()
        self._log = -1
        self._looked_s = -float("inf")

    @property
    def is_each_heard(self) -> bool:
        """Every signal of the workload is heard; else it is looked at now and then."""
        return self._progress.kind == "log"

    def begin(self, number: int) -> None:
        """Life `number` is about to start; the bytes that it prints are kept in a file of their own."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._log = os.open(self._there.raw / f"life-{number}-{OUTPUT}", flags, 0o600)
        self._lines = probes.Lines()
        if self._polled is not None:
            self._polled.rearm(is_restored=False)

    def began(self, life: Life) -> None:
        """The life was started: over HTTP it can be asked from now on."""
        if self._progress.kind in ("http", "metrics"):
            network = None
            with contextlib.suppress(errors.ProcessGone):
                network = f"/proc/{life.node()}/ns/net"
            self._asking = Asking(self._progress, self._clock, network)

    def restored(self) -> None:
        """The workload was just brought back: files that were brought back with it are no progress."""
        if self._polled is not None:
            self._polled.rearm(is_restored=True)

    def existing(self) -> float | None:
        """Return the counter that the workload can begin from without Perdure, None when it saved nothing yet."""
        self._looked_s = self._clock()
        return None if self._own_files is None else max((counter for counter, _ in self._own_files.poll()), default=None)

    def printed(self, content: bytes, at_s: float) -> None:
        """The command printed `content`."""
        left = memoryview(content)
        while left:
            left = left[os.write(self._log, left) :]
        for line in self._lines.feed(content):
            if self._progress.kind == "log" and self._polled is None:
                counter = probes.number_in(line, self._pattern)
                if counter is not None:
                    self._signal(at_s, counter)
            if self._own_lines is not None:
                counter = self._own_lines.counter(line)
                if counter is not None:
                    self._saved(at_s, counter)

    def poll(self, *, is_up: bool) -> None:
        """Look at all that has to be looked at. While it is brought back (not `is_up`), a file that holds the counter says nothing."""
        if self._asking is not None:
            for at_s, counter in self._asking.poll():
                self._signal(at_s, counter)
        if self._polled is not None and (is_up or self._progress.kind == "log"):
            for counter in self._polled.poll():
                self._signal(self._clock(), counter)
        if self._clock() - self._looked_s >= _SAVED_EVERY_S:
            self._look_for_saved()

    def _look_for_saved(self) -> None:
        """Tell of the workload's own checkpoints, at the time at which they were written, as far as that clock can be believed."""
        if self._own_files is None:
            return
        before_s, self._looked_s = self._looked_s, self._clock()
        offset_s = time.time() - self._looked_s
        for counter, written_unix_s in self._own_files.poll():
            self._saved(min(max(written_unix_s - offset_s, before_s), self._looked_s), counter)

    def end(self) -> None:
        """The life is over."""
        self._look_for_saved()
        if self._asking is not None:
            self._asking.close()
            self._asking = None
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    def close(self) -> None:
        """The run is over."""
        self.end()
        if self._polled is not None:
            self._polled.close()


def _source(workload: Workload, there: Places, base: str) -> probes.Polled | None:
    progress = workload.progress
    if progress is None or progress.path is None:
        return None
    path = os.path.join(base, there.expand(progress.path))
    pattern = probes.pattern_of(progress)
    if progress.kind == "file":
        return probes.File(path, pattern)
    if progress.kind == "log" and pattern is not None:
        return probes.LogFile(path, pattern, str(there.raw / "progress.log"))
    return None
