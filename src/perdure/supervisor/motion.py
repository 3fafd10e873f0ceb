"""Whether a workload ran since it was last saved: one that hangs is saved again and again, and says nothing new. Called by `engine`.

A process that ran has used processor time or changed contexts; one that came or went has run too. That is exact for a workload of which
all wait: nothing that it does goes unseen. It does not find one that hangs and polls; a probe of the user's does.
"""

from __future__ import annotations

from perdure.checkpoint import tree
from perdure.checkpoint.tree import Process, Tree

_Marks = frozenset[tuple[int, int, int, int]]


def marks(root: Tree, *, has_init: bool) -> _Marks:
    """Return what tells one look at the tree from another in which something of it ran. An init that runs says nothing of its workload.

    Raises `errors.ProcessGone`.
    """
    found = tree.members(root)
    return frozenset(map(_mark, found[1:] if has_init else found))


def _mark(process: Process) -> tuple[int, int, int, int]:
    return process.pid, process.start_ticks, process.ticks, process.switches


class Motion:
    """What is known of one life. A workload counts as having run until it was saved once, or brought back."""

    def __init__(self) -> None:
        self._marks: _Marks | None = None
        self._has_run = True

    def look(self, now: _Marks) -> bool:
        """Return whether it ran since the checkpoint before, going by how it is `now`, before it is frozen."""
        if now != self._marks:
            self._has_run = True
        self._marks = now
        return self._has_run

    def settle(self, now: _Marks, *, is_saved: bool) -> None:
        """Begin to watch anew: it was frozen and let go, which every task of it takes a step for, and what it did before `is_saved` or not.

        A step that it took of its own between the two is missed when it takes no other. That costs nothing: the checkpoint that shows it
        is the newest one, which is kept, and counts as one of a workload that stood still.
        """
        self._marks = now
        if is_saved:
            self._has_run = False
