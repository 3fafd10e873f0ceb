"""Where threads run best: the processors that they are pinned to, and the class of their input and output. CRIU does not keep them.

Called at the freeze (`record`) and when a tree is brought back and has not taken a step (`put_on`). What they have in common with the
supervisor that started them is not theirs, and is left out: brought back elsewhere, they have that supervisor's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from perdure import errors
from perdure.base.proc import process, reading, scheduling
from perdure.checkpoint.outputs import rules
from perdure.model.checkpoint import Placed
from perdure.model.finding import Finding, Severity


def record(pids: Iterable[int]) -> tuple[Placed, ...]:
    """Return the threads of the processes `pids` (of the host) that have places of their own."""
    processors, io_priority = os.sched_getaffinity(os.getpid()), scheduling.io_priority(os.getpid())
    found: list[Placed] = []
    for pid in pids:
        with contextlib.suppress(errors.ProcessGone):
            for thread in process.threads(pid):
                with contextlib.suppress(ProcessLookupError, errors.ProcessGone):
                    own, own_io = os.sched_getaffinity(thread), scheduling.io_priority(thread)
                    is_pinned, has_class = own != processors, own_io is not None and own_io != io_priority
                    if is_pinned or has_class:
                        found.append(
                            Placed(
                                _inner(pid, thread),
                                processors=tuple(sorted(own)) if is_pinned else None,
                                io_priority=own_io if has_class else None,
                            )
                        )
    return tuple(found)


def put_on(root: int, placed: Iterable[Placed]) -> tuple[Finding, ...]:
    """Put the threads of the tree of process `root` where they were; return a warning if those processors are not all ours to use here."""
    wanted = {each.thread: each for each in placed}
    allowed = os.sched_getaffinity(os.getpid())
    lost: set[int] = set()
    for pid in (root, *process.descendants(root)):
        with contextlib.suppress(errors.ProcessGone):
            for thread in process.threads(pid):
                each = wanted.get(_inner(pid, thread))
                if each is not None and not _put(thread, each, allowed):
                    lost.update(each.processors or ())
    return (_lost(lost),) if lost else ()


def _put(thread: int, wanted: Placed, allowed: set[int]) -> bool:
    """Put `thread` in its place, and tell whether it is pinned as wanted: what the supervisor may not use is other jobs', or not there."""
    if wanted.io_priority is not None:
        with contextlib.suppress(OSError):  # without the right to it, or a machine's call that is not known, it only runs slower
            scheduling.set_io_priority(thread, wanted.io_priority)
    if wanted.processors is None:
        return True
    if not allowed.issuperset(wanted.processors):
        return False
    try:
        os.sched_setaffinity(thread, wanted.processors)
    except OSError:
        return False
    return True


def _inner(pid: int, thread: int) -> int:
    return process.parse_status(reading.content(pid, f"task/{thread}/status")).inner_pid


def _lost(processors: set[int]) -> Finding:
    listed = ",".join(map(str, sorted(processors)))
    message = "threads were pinned to processors that are not all the workload's to use here: they run on any that are"
    return rules.finding("restore-processors", Severity.WARNING, f"processors {listed}", message)
