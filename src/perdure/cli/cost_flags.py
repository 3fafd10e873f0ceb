"""Flags for what accounting cannot tell, the same in every command that decides; a flag stands above the policy file."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from perdure.base import units
from perdure.cli import quantities
from perdure.cli.quantities import Duration, Number

if TYPE_CHECKING:
    from perdure.base.settings import Value
    from perdure.decision.policy import Policy

_COSTS = Group("Costs (above the policy file)", sort_key=10)


@Parameter(name="*", group=_COSTS)
@dataclasses.dataclass(frozen=True)
class CostFlags:
    """Costs that hold for every workload, whatever the policy file says."""

    checkpoint_cost: Annotated[Duration | None, Parameter(help="The workload stands still this long for one checkpoint (2m).")] = None
    checkpoint_size: Annotated[str | None, Parameter(help="Stored size of one checkpoint, such as 640G.")] = None
    restore_cost: Annotated[Duration | None, Parameter(help="From the order to restore until useful work goes on (10m).")] = None
    fresh_cost: Annotated[Duration | None, Parameter(help="A fresh start's own set-up (5m).")] = None
    downtime: Annotated[Duration | None, Parameter(help="Detection, requeue delay and queue (as measured, else 5m).")] = None
    durable_fraction: Annotated[Number | None, Parameter(help="Part of an interrupted run's work that survives by itself, 0 to 1.")] = None
    idempotent: Annotated[bool | None, Parameter(help="Running it twice is safe, or is not.")] = None
    gpu_hour_price: Annotated[Number | None, Parameter(help="Price of one GPU-hour.")] = None
    storage_price: Annotated[Number | None, Parameter(help="Price of one GiB stored for a month.")] = None
    engineering_cost: Annotated[Number | None, Parameter(help="Cost of making one workload resumable.")] = None


_FIELDS = {
    "checkpoint_cost": "checkpoint_cost_minutes",
    "checkpoint_size": "checkpoint_size_gb",
    "restore_cost": "restore_cost_minutes",
    "fresh_cost": "fresh_cost_minutes",
    "downtime": "downtime_minutes",
    "deadline": "deadline_minutes",
    "storage_price": "storage_price_gb_month",
}
_DURATIONS = frozenset({"checkpoint_cost", "restore_cost", "fresh_cost", "downtime", "deadline"})


def resolve(flags: CostFlags, setting: Value, *, deadline: str | None = None) -> Policy:
    """Return the policy that `setting` names (the defaults where it names none), with `flags` and `deadline` above it.

    Raises `errors.InputError` and `errors.SettingError` for the policy file, `errors.QuantityError` for a flag.
    """
    from perdure.advisor.policy_file import load_policy
    from perdure.decision.policy import Policy

    policy = load_policy(setting.value) if setting.value else Policy()
    typed = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)} | {"deadline": deadline}
    given = {name: _read(name, value) for name, value in typed.items() if value is not None}
    origins = {_FIELDS.get(name, name): _flag(name) for name in given}
    return policy.override({_FIELDS.get(name, name): value for name, value in given.items()}, lambda field: origins[field])


def _read(name: str, value: str | bool) -> float | bool:
    """Read what was typed, so that an error names the flag."""
    if isinstance(value, bool):
        return value
    if name in _DURATIONS:
        return quantities.minutes(value, _flag(name), positive=False)
    if name == "checkpoint_size":
        return units.parse_size(value, name=_flag(name)) / 1024.0**3
    return quantities.number(value, _flag(name), most=1.0 if name == "durable_fraction" else math.inf)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
