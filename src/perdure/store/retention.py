"""Which checkpoints to keep: pure, from what is there to a decision with its reason for each. Called by `prune`.

Three rules, each optional. `keep_last` and `keep_for_s` each keep (one suffices); what neither keeps is removed. With neither, all are
kept. `max_bytes` then removes the oldest until the rest fits. Above every rule stand the protections: the newest good checkpoint of a
workload, pinned ones, and ones in use are never removed. Those that are damaged count for nothing and go only when that is asked for:
no routine destroys what somebody may still want to look at.

A workload that hangs goes on being saved, and each of those checkpoints is good: it can be brought back, and hangs. Those made while it
stood still do not count for `keep_last`, so that they take nobody's place but that of the one before; they go first for `max_bytes`; and
the newest from before it stood still is protected as the newest good one is.

Within a workload "newer" is the order of epochs and sequences, never of clocks. Only `keep_for_s` reads the time of day, since it is
about it: a clock that is wrong can make it keep less, down to what the protections keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from perdure import errors
from perdure.model.checkpoint import CheckpointId


class Rules(msgspec.Struct, frozen=True):
    """What to keep. None: the rule is not set."""

    keep_last: int | None = None
    """Good checkpoints of each workload, at least 1."""
    keep_for_s: float | None = None
    """Those younger than this, in seconds, at least 0."""
    max_bytes: int | None = None
    """Bytes of all packs that the kept ones name, each pack once, at least 0."""
    damaged: bool = False
    """Remove those that are damaged."""


class Candidate(msgspec.Struct, frozen=True):
    """A checkpoint to decide on."""

    id: CheckpointId
    created_ns: int
    packs: frozenset[str] = frozenset()
    """Keys of the packs it names."""
    damaged: str | None = None
    """Why it cannot be restored; None: nothing is known to be wrong with it."""
    stood_still: bool = False
    """The workload had not run since the one before it: see `Manifest.stood_still`."""
    foreign: bool = False
    """A newer Perdure made it: nothing more is known of it here."""

    @property
    def is_good(self) -> bool:
        """Tell whether it counts as one that can be restored here."""
        return self.damaged is None and not self.foreign


class Decision(msgspec.Struct, frozen=True):
    """Whether one checkpoint is kept, and why."""

    id: CheckpointId
    keep: bool
    reason: str


def check(rules: Rules) -> Rules:
    """Return `rules`. Raises `errors.UsageError` when one is out of range."""
    if rules.keep_last is not None and rules.keep_last < 1:
        raise errors.UsageError(f"cannot keep the last {rules.keep_last}", hint="keep 1 or more: the newest good one is never removed")
    if rules.keep_for_s is not None and rules.keep_for_s < 0:
        raise errors.UsageError("cannot keep for less than no time", hint="give a duration such as 7d")
    if rules.max_bytes is not None and rules.max_bytes < 0:
        raise errors.UsageError("cannot keep less than no bytes", hint="give a size such as 200G")
    return rules


def choose(
    candidates: Sequence[Candidate],
    rules: Rules,
    *,
    in_use: Collection[CheckpointId] = (),
    pinned: Collection[CheckpointId] = (),
    now_ns: int,
    pack_bytes: Mapping[str, int] = {},
) -> tuple[Decision, ...]:
    """Decide on every candidate, in the order of workload, epoch and sequence.

    `candidates` must be all checkpoints of each workload that occurs. `now_ns` is nanoseconds of UTC since 1970; `pack_bytes` gives the
    size of every pack, and is read for `max_bytes` alone. Raises `errors.UsageError` for a rule out of range.
    """
    check(rules)
    ordered = sorted(candidates, key=lambda one: one.id)
    protected = _protected(ordered, rules, frozenset(in_use), frozenset(pinned))
    decided: dict[CheckpointId, Decision] = {}
    for workload in dict.fromkeys(one.id.workload for one in ordered):
        newer_good = 0
        for one in reversed([one for one in ordered if one.id.workload == workload]):
            reason = protected.get(one.id) or _wanted(one, newer_good, rules, now_ns)
            decided[one.id] = Decision(one.id, reason is not None, reason or _unwanted(one, rules))
            newer_good += one.is_good and not one.stood_still
    if rules.max_bytes is not None:
        free = [one for one in ordered if decided[one.id].keep and one.id not in protected]
        packs = _Packs(pack_bytes)
        for one in ordered:
            if decided[one.id].keep:
                packs.add(one.packs)
        for one in _oldest_to_fit(free, packs, rules.max_bytes):
            decided[one.id] = Decision(one.id, False, f"the oldest go first to fit into {rules.max_bytes} bytes")
    return tuple(decided[one.id] for one in ordered)


def kept_bytes(candidates: Iterable[Candidate], pack_bytes: Mapping[str, int]) -> int:
    """Return the bytes of the packs that `candidates` name, each pack once."""
    return sum(pack_bytes.get(pack, 0) for pack in frozenset[str]().union(*(one.packs for one in candidates)))


def _protected(
    ordered: Sequence[Candidate], rules: Rules, in_use: frozenset[CheckpointId], pinned: frozenset[CheckpointId]
) -> dict[CheckpointId, str]:
    """Say which are never removed, and why."""
    newest = {one.id.workload: one.id for one in ordered if one.is_good}
    last_seen_to_run = {one.id.workload: one.id for one in ordered if one.is_good and not one.stood_still}
    reasons = {}
    for one in ordered:
        if one.id in pinned:
            reasons[one.id] = "pinned"
        elif one.id in in_use:
            reasons[one.id] = "in use"
        elif newest.get(one.id.workload) == one.id:
            reasons[one.id] = "newest good one of its workload"
        elif last_seen_to_run.get(one.id.workload) == one.id:
            reasons[one.id] = "newest good one from before the workload stood still"
        elif one.foreign:
            reasons[one.id] = "made by a newer Perdure"
        elif one.damaged is not None and not rules.damaged:
            reasons[one.id] = f"damaged, kept until that is asked to go: {one.damaged}"
    return reasons


def _wanted(one: Candidate, newer_good: int, rules: Rules, now_ns: int) -> str | None:
    if one.damaged is not None:
        return None
    if rules.keep_last is None and rules.keep_for_s is None:
        return "no rule removes it"
    if rules.keep_last is not None and newer_good < rules.keep_last and not one.stood_still:
        return f"among the last {rules.keep_last}"
    if rules.keep_for_s is not None and now_ns - one.created_ns < rules.keep_for_s * 1e9:
        return "young enough"
    return None


def _unwanted(one: Candidate, rules: Rules) -> str:
    if one.damaged is not None:
        return f"damaged: {one.damaged}"
    reasons = []
    if rules.keep_last is not None:
        reasons.append("made while the workload stood still" if one.stood_still else f"not among the last {rules.keep_last}")
    if rules.keep_for_s is not None:
        reasons.append("too old")
    return ", ".join(reasons)


class _Packs:
    """Bytes of the packs that a changing set of checkpoints names, each pack once."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._named: dict[str, int] = {}
        self.total_bytes = 0

    def added_bytes(self, packs: frozenset[str]) -> int:
        return sum(self._sizes.get(pack, 0) for pack in packs if pack not in self._named)

    def add(self, packs: frozenset[str]) -> None:
        self.total_bytes += self.added_bytes(packs)
        for pack in packs:
            self._named[pack] = self._named.get(pack, 0) + 1

    def drop(self, packs: frozenset[str]) -> None:
        for pack in packs:
            self._named[pack] -= 1
            if not self._named[pack]:
                del self._named[pack]
                self.total_bytes -= self._sizes.get(pack, 0)


def _oldest_to_fit(free: Sequence[Candidate], packs: _Packs, max_bytes: int) -> list[Candidate]:
    """Return which of `free` to remove so that `packs`, which counts all that are kept, comes to `max_bytes`, or as near as can be."""
    taken = []
    for one in sorted(free, key=lambda one: (not one.stood_still, one.created_ns, one.id)):
        if packs.total_bytes <= max_bytes:
            break
        packs.drop(one.packs)
        taken.append(one)
    removed = []
    for one in reversed(taken):
        # The newest first: one stays after all when there is room for it, or when its packs are all held by others anyway.
        added_bytes = packs.added_bytes(one.packs)
        if not added_bytes or packs.total_bytes + added_bytes <= max_bytes:
            packs.add(one.packs)
        else:
            removed.append(one)
    return removed
