"""What would prevent a checkpoint of a running tree now. Called by the supervisor before each one, and by `perdure check`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from perdure.checkpoint.preflight import files, gpu, gpu_reading, memory, opened, processes, reading, room, sockets, stores, streams
from perdure.checkpoint.preflight.plan import Plan
from perdure.checkpoint.preflight.scene import Scene
from perdure.model.finding import Finding, Severity

PASSING = frozenset(
    {
        "process-uninterruptible",
        "process-shared-memory",
        "process-other-user",
        "network-netlink-pending",
        "network-datagram-corked",
        "file-of-process",
        "process-directory-taken",
    }
)
"""Codes of states that most programs pass through within milliseconds: they count only when they are still there a moment later."""

_MOVING = frozenset({"process-uninterruptible"})
"""Those that do not count either when the process has run in between: one that reads much is in state D at most times."""

_PAUSES_S = (0.1, 0.2, 0.4, 0.8)
"""How long is waited before another look, while such a state is there. CRIU itself waits longer for a task that is about to stop."""


def check(root: int, plan: Plan) -> tuple[Finding, ...]:
    """Return what would prevent a checkpoint of the tree of process `root`, or make it less than is expected. Nothing is stopped.

    Takes some hundredths of a second; up to 1.5 s while a passing state is there.

    Raises `errors.ProcessGone` when `root` is gone, `errors.InputDenied` when it may not be looked into.
    """
    seen = reading.read(root)
    found = list(rules(seen, plan))
    for pause_s in _PAUSES_S:
        if not any(finding.code in PASSING and finding.severity is Severity.PROBLEM for finding in found):
            break
        time.sleep(pause_s)
        before, stayed = seen, {_key(finding) for finding in found}
        seen = reading.read(root)
        moved = seen.moved_since(before)
        found = [
            finding
            for finding in rules(seen, plan)
            if finding.code not in PASSING or (_key(finding) in stayed and not (finding.code in _MOVING and finding.pid in moved))
        ]
    on_gpus = gpu_reading.read(seen, plan.ask_gpu, is_suspended=plan.is_suspended)
    expected_bytes = memory.expected_bytes(seen) + (on_gpus.most_bytes if on_gpus else 0)
    if on_gpus is not None:
        found += gpu.check(on_gpus)
    beside = stores.check(plan.store, expected_bytes) if plan.store is not None else ()
    return (*room.check(plan, expected_bytes), *beside, *ordered(found))


def rules(seen: Scene, plan: Plan) -> Iterator[Finding]:
    """Yield what all families find in `seen`. Pure."""
    yield from opened.check(seen)
    yield from streams.check(seen, plan)
    yield from files.check(seen, plan)
    yield from sockets.check(seen, plan)
    yield from processes.check(seen, plan)
    yield from memory.check(seen)


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Return `found` with problems first, then warnings, each in the order they were found."""
    ranks = {severity: rank for rank, severity in enumerate(Severity)}
    return sorted(found, key=lambda finding: ranks[finding.severity])


def _key(finding: Finding) -> tuple[str, int | None, int | None, str | None]:
    return finding.code, finding.pid, finding.fd, finding.path
