"""How busy the devices of this machine are while a run goes on, as the driver's own program tells. Called by `conduct`.

It is shown beside the utilisation of the job and judged by nobody: a device that computes again what was lost is busy, too.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
from typing import Any

_COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
_BETWEEN_S = 5.0
_ANSWER_S = 30.0


class Sampler:
    """Asks again and again, in a thread of its own, from `start` until `close`. A workload without GPUs (`gpus` 0) is not asked for."""

    def __init__(self, gpus: int, *, between_s: float = _BETWEEN_S) -> None:
        self._gpus = gpus
        self._between_s = between_s
        self._closed = threading.Event()
        self._shares: list[float] = []
        self._lack = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask."""
        if self._gpus:
            self._lack = "nvidia-smi gave no answer"
            self._thread = threading.Thread(target=self._ask_on, daemon=True, name="perdure-device")
            self._thread.start()

    def close(self) -> dict[str, Any]:
        """Ask no more, and return what is told at the end of a run: ``device_utilisation``, 0 to 1, or ``device_lack``, why not.

        Nothing is told of a workload without GPUs.
        """
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if not self._shares:
            return {"device_lack": self._lack} if self._lack else {}
        return {"device_utilisation": statistics.fmean(self._shares), "device_samples": len(self._shares)}

    def _ask_on(self) -> None:
        while not self._closed.is_set():
            share = _ask()
            if share is not None:
                self._shares.append(share)
            self._closed.wait(self._between_s)


def _ask() -> float | None:
    """Return the mean share of the GPUs that the driver tells of, None without an answer."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(_COMMAND, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False)
        return share_in(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else None
    return None


def share_in(answer: str) -> float | None:
    """Return the mean of the percentages in `answer`, one a line, as a share; None when it holds none (``[N/A]``)."""
    found = []
    for line in answer.splitlines():
        with contextlib.suppress(ValueError):
            percent = float(line.strip())
            if 0.0 <= percent <= 100.0:
                found.append(percent / 100)
    return statistics.fmean(found) if found else None
