"""What accounting cannot tell, and where each such figure came from. Called by `advise`.

Strongest first: what the policy says, what the history measured, the default. Only the downtime and the part that an application
keeps by itself can be measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import numpy as np

from perdure.base import units
from perdure.decision.policy import Assumption, Policy
from perdure.history.evidence import Workloads
from perdure.history.workloads import ENOUGH_RESTARTS, Restarts
from perdure.model.advice import Costs, WorkloadKey
from perdure.stats import size_bins


@dataclasses.dataclass(frozen=True)
class Assumed:
    """What is assumed of each workload, in their order."""

    costs: list[Costs]
    deadlines: list[float | None]
    """Minutes; None: none."""
    listed: dict[str, str]
    """For `Advice.assumptions`: each input with its value and its origin."""


def assume(workloads: Workloads, keys: Sequence[WorkloadKey], restarts: Restarts, policy: Policy) -> Assumed:
    """Return costs and deadlines for each workload, and the list of what was assumed."""
    costs, deadlines = [], []
    said = _Said(policy)
    known: dict[tuple[int, float | None, float], Costs] = {}
    durables = np.where(np.isnan(workloads.durable), workloads.durable_by_convention(), workloads.durable)
    rows = zip(keys, workloads.columns["partition"].tolist(), _downtimes(workloads, restarts), durables.tolist(), strict=True)
    for key, partition, downtime, durable in rows:
        number, base, stated, deadline = said.of(key, partition)
        sign = (number, downtime, durable)
        if sign not in known:
            known[sign] = _measured(base, stated, downtime, durable)
        costs.append(known[sign])
        deadlines.append(deadline)
    return Assumed(costs, deadlines, _list(workloads, restarts, policy))


class _Said:
    """What the policy says of a workload, looked up once for each rule rather than for each workload."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._by_rule: dict[int, tuple[int, Costs, frozenset[str], float | None]] = {}

    def of(self, key: WorkloadKey, partition: str) -> tuple[int, Costs, frozenset[str], float | None]:
        """Return the rule's number (−1: none matches), the costs, the fields that are said rather than default, and the deadline."""
        policy, number = self._policy, -1
        for place, rule in enumerate(policy.rules):
            if rule.matches(key, partition=partition):
                number = place
                break
        if number not in self._by_rule:
            stated = frozenset(one.name for one in policy.assumptions(key, partition=partition) if one.origin != "default")
            costs, deadline = policy.costs_for(key, partition=partition), policy.deadline_for(key, partition=partition)
            self._by_rule[number] = (number, costs, stated, deadline)
        return self._by_rule[number]


def _measured(base: Costs, stated: frozenset[str], downtime: float | None, durable: float) -> Costs:
    changes = {}
    if downtime is not None and "downtime_minutes" not in stated:
        changes["downtime_minutes"] = downtime
    if durable > 0 and "durable_fraction" not in stated:
        changes["durable_fraction"] = durable
    return msgspec.structs.replace(base, **changes) if changes else base


def _downtimes(workloads: Workloads, restarts: Restarts) -> list[float | None]:
    """Minutes from interruption to restart: of the workload itself, else of its size bin, else of all; None: never seen."""
    overall = restarts.median_s
    bins = size_bins.bin_of(workloads.columns["milli_size"] / 1000.0).tolist()
    rows = zip(
        workloads.columns["restarts"].tolist(),
        workloads.columns["restart_s"].tolist(),
        workloads.columns["is_gpu"].tolist(),
        bins,
        strict=True,
    )
    waits = [own if count >= ENOUGH_RESTARTS else restarts.by_size.get((is_gpu, bin_), overall) for count, own, is_gpu, bin_ in rows]
    return [None if wait is None else wait / 60.0 for wait in waits]


def _list(workloads: Workloads, restarts: Restarts, policy: Policy) -> dict[str, str]:
    listed = {one.name: f"{_show(one)} ({one.origin})" for one in policy.assumptions()}
    stated = {one.name for one in policy.assumptions() if one.origin != "default"}
    if restarts.median_s is not None and "downtime_minutes" not in stated:
        median = units.format_duration(restarts.median_s)
        listed["downtime_minutes"] = (
            f"{median} (history: median of {restarts.count} restarts; of the workload or its size where enough were seen)"
        )
    if workloads.resumes.any() and "durable_fraction" not in stated:
        measured = int(np.count_nonzero(~np.isnan(workloads.durable)))
        by_convention = int(np.count_nonzero(workloads.resumes & np.isnan(workloads.durable)))
        listed["durable_fraction"] += f"; of those that resume by themselves: measured for {measured} workloads (history)"
        listed["durable_fraction"] += f", for {by_convention} as with a checkpoint of their own every hour (convention)"
    for rule in policy.rules:
        listed |= {f"{rule.origin}: {name}": f"{value} ({rule.origin})" for name, value in rule.values.items()}
    return listed


def _show(one: Assumption) -> str:
    if one.value is None:
        return "not known"
    return units.format_duration(float(one.value) * 60.0) if one.unit == "minutes" else f"{one.value:g} ({one.unit})"
