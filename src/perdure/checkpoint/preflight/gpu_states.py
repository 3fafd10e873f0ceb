"""Ask the driver about processes before anything is done to them. Called by the supervisor and by `perdure check`, for `Plan.ask_gpu`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.checkpoint.cuda.contract import CudaProcess, Operation, Request, State, Trouble
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.preflight.plan import AskStates

_LIMIT_S = 30.0
"""A state is told at once; a driver that hangs must not hang the check too."""


def asker(helper: Helper) -> AskStates:
    """Return what asks the driver through `helper`, which is started by the first question."""

    def ask(found: Iterable[CudaProcess]) -> Mapping[int, State | None]:
        asked = tuple(found)
        if not asked:
            return {}
        requests = tuple(Request(number=0, operation=Operation.STATE, pid=one.pid, start_ticks=one.start_ticks) for one in asked)
        told: dict[int, State | None] = {}
        for one, answer in zip(asked, helper.ask(requests, _LIMIT_S), strict=True):
            # Only of one that the driver refuses is it known that it has no CUDA of its own; where the driver says nothing, nothing is.
            if answer.state is not None or (answer.problem is not None and answer.problem.trouble is Trouble.INVALID):
                told[one.pid] = answer.state
        return told

    return ask
