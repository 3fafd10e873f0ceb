"""Work that would keep the reactor waiting, in a thread of its own. Called by `keeper`: dumping, renewing a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from perdure.supervisor.reactor import Reactor

_Result = TypeVar("_Result")


class Job(Generic[_Result]):
    """Runs `work` in a thread and then calls `done` in the reactor's, with the result or with what it raised."""

    def __init__(
        self, reactor: Reactor, name: str, work: Callable[[], _Result], done: Callable[[_Result | None, BaseException | None], None]
    ) -> None:
        self._reactor = reactor
        self._work = work
        self._done = done
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        result: _Result | None = None
        problem: BaseException | None = None
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - carried to the reactor's thread, where `done` raises what is not meant
            problem = error
        self._reactor.post(lambda: self._finish(result, problem))

    def _finish(self, result: _Result | None, problem: BaseException | None) -> None:
        self._thread.join()
        self._done(result, problem)
