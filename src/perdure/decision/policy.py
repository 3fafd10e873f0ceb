"""The policy: what a site says of costs, prices and deadlines, for all workloads and for some. Called by the advisor and `decide`.

A policy is a TOML text of a table ``[costs]`` for all and of rules ``[[workload]]``, of which the *first* that matches a workload
counts; what that rule does not set comes from ``[costs]``, and what is set nowhere has its default. Every value keeps where it
came from, so that a report can list what was assumed. `FIELDS` is the one list of what can be set; the reference page is made
from it. Pure: `advisor.policy_file` reads the file.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from perdure import errors
from perdure.base import units
from perdure.model.advice import Costs, WorkloadKey

Kind = Literal["minutes", "gib", "share", "flag", "money"]


class Field(msgspec.Struct, frozen=True):
    """One thing that a policy can set."""

    name: str
    """As in `Costs` (or `deadline_minutes`)."""
    kind: Kind
    default: float | bool | None
    reason: str
    """Why the default is what it is."""
    doc: str

    @property
    def text_name(self) -> str:
        """The name under which a quantity is written as text: without its unit, ``checkpoint_cost = "2m"``."""
        return self.name.removesuffix("_minutes").removesuffix("_gb") if self.kind in ("minutes", "gib") else self.name

    @property
    def unit(self) -> str:
        """The unit of a bare number."""
        return {"minutes": "minutes", "gib": "GiB", "share": "0 to 1", "flag": "true or false", "money": "the site's currency"}[self.kind]


_DEFAULTS = Costs()


def _field(name: str, kind: Kind, reason: str, doc: str) -> Field:
    return Field(name, kind, getattr(_DEFAULTS, name), reason, doc)


FIELDS: tuple[Field, ...] = (
    _field(
        "checkpoint_cost_minutes",
        "minutes",
        "a node's GPU memory, 640 GB, written at about 5 GB/s; measure yours, the verdict depends on its root",
        "the workload stands still this long for one checkpoint",
    ),
    _field(
        "checkpoint_size_gb",
        "gib",
        "memory in use is not in accounting; storage is left out of the sums until it is given",
        "stored size of one checkpoint",
    ),
    _field(
        "restore_cost_minutes",
        "minutes",
        "reading the checkpoint back, starting processes and communication; published restarts of large jobs take 5 to 20 minutes",
        "from the order to restore until useful work goes on",
    ),
    _field(
        "fresh_cost_minutes",
        "minutes",
        "imports, data and communication of a training job; a serving worker of a very large model takes 20 to 30",
        "a fresh start's own set-up",
    ),
    _field(
        "downtime_minutes",
        "minutes",
        "Slurm requeues after 2 minutes, detection takes about as long; the queue's wait is read from a history where there is one",
        "detection, requeue delay and queue, the same under both policies",
    ),
    _field(
        "durable_fraction",
        "share",
        "accounting does not show what a job saves by itself; 0 is the worst case for retry",
        "part of an interrupted attempt's work that survives without Perdure",
    ),
    _field("idempotent", "flag", "nobody but the owner knows", "whether running it twice is safe"),
    _field("gpu_hour_price", "money", "sites differ too much for a guess", "price of one GPU-hour"),
    _field("storage_price_gb_month", "money", "sites differ too much for a guess", "price of one GiB stored for a month"),
    _field("engineering_cost", "money", "sites differ too much for a guess", "cost of making one workload resumable"),
    Field("deadline_minutes", "minutes", None, "most work has none", "the result is wanted this long after the start"),
)

_SETTABLE: dict[str, Field] = {name: field for field in FIELDS for name in (field.name, field.text_name)}
_PATTERNS = ("user", "account", "partition", "name", "cluster")
_SIZES = ("min_gpus", "max_gpus", "min_nodes", "max_nodes")


class Rule(msgspec.Struct, frozen=True):
    """One ``[[workload]]``: which workloads it is for, and what it sets for them."""

    patterns: dict[str, str]
    """Shell patterns by key field, all of which must match; case counts. Names are matched as advice shows them, counters as #."""
    sizes: dict[str, float]
    """Bounds of the size, inclusive; GPU bounds match workloads with GPUs only, node bounds those without."""
    values: dict[str, float | bool]
    origin: str

    def matches(self, key: WorkloadKey, *, partition: str = "") -> bool:
        """Tell whether the rule is for this workload. A pattern for something that is not known ('') matches only ``*``."""
        known = {"user": key.user, "account": key.account, "partition": partition, "name": key.name, "cluster": key.cluster}
        if not all(fnmatch.fnmatchcase(known[field], pattern) for field, pattern in self.patterns.items()):
            return False
        for bound, number in self.sizes.items():
            side, unit = bound.split("_")
            if key.size.unit != unit.removesuffix("s"):
                return False
            if key.size.count < number if side == "min" else key.size.count > number:
                return False
        return True


class Assumption(msgspec.Struct, frozen=True):
    """A value that was used, and where it came from: a flag, a policy's table or rule, or the default."""

    name: str
    value: float | bool | None
    unit: str
    origin: str


class Policy(msgspec.Struct, frozen=True):
    """What is assumed for which workload. `Policy()` assumes the defaults for all."""

    values: dict[str, float | bool] = {}
    """Set for all workloads, by field name."""
    origins: dict[str, str] = {}
    """Where each of them came from."""
    rules: tuple[Rule, ...] = ()
    source: str = ""
    """The file's name; '' without a file."""

    def costs_for(self, key: WorkloadKey, *, partition: str = "") -> Costs:
        """Return the costs of a workload."""
        return _costs(self._settings(key, partition)[0])

    def deadline_for(self, key: WorkloadKey, *, partition: str = "") -> float | None:
        """Return the workload's deadline in minutes, None for none."""
        deadline = self._settings(key, partition)[0].get("deadline_minutes")
        return None if deadline is None else float(deadline)

    def assumptions(self, key: WorkloadKey | None = None, *, partition: str = "") -> tuple[Assumption, ...]:
        """Return every field's value and origin: for a workload, or (None) what holds where no rule says otherwise."""
        values, origins = self._settings(key, partition) if key else (self.values, self.origins)
        return tuple(
            Assumption(field.name, values.get(field.name, field.default), field.unit, origins.get(field.name, "default"))
            for field in FIELDS
        )

    def override(self, values: Mapping[str, str | float | bool | None], origin: Callable[[str], str]) -> Policy:
        """Return a policy in which `values` (None: not given) hold for all workloads, above every rule; `origin` names each's source.

        Raises `errors.SettingError` for an unknown field or a value out of its range.
        """
        given = {name: _read_value(name, value, origin(name)) for name, value in values.items() if value is not None}
        rules = tuple(
            msgspec.structs.replace(rule, values={name: value for name, value in rule.values.items() if name not in given})
            for rule in self.rules
        )
        origins = self.origins | {name: origin(name) for name in given}
        return Policy(self.values | given, origins, rules, self.source)

    def _settings(self, key: WorkloadKey, partition: str) -> tuple[dict[str, float | bool], dict[str, str]]:
        for rule in self.rules:
            if rule.matches(key, partition=partition):
                return self.values | rule.values, self.origins | dict.fromkeys(rule.values, rule.origin)
        return self.values, self.origins


def _costs(values: Mapping[str, float | bool]) -> Costs:
    return Costs(**{name: cast("Any", value) for name, value in values.items() if name != "deadline_minutes"})


def parse_policy(text: str, *, source: str = "policy") -> Policy:
    """Read a policy from TOML. `source` names it in origins and errors.

    Raises `errors.SettingError` for text that is not TOML, an unknown table or key (naming the nearest), or a value that cannot
    be read or is out of range.
    """
    try:
        document = msgspec.toml.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.SettingError(f"{source}: not valid TOML: {error}", hint='write it like [costs] and checkpoint_cost = "2m"') from error
    for name in document:
        if name not in ("costs", "workload"):
            raise errors.SettingError(f"{source}: unknown table {name!r}", hint=_nearest(name, ("costs", "workload")))
    costs, rules = document.get("costs", {}), document.get("workload", [])
    if not isinstance(costs, dict):
        raise errors.SettingError(f"{source}: costs must be a table", hint="write [costs] on a line of its own")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise errors.SettingError(f"{source}: workload must be a list of rules", hint="begin each rule with [[workload]]")
    where = f"{source} [costs]"
    values = _read_values(costs, where)
    parsed = tuple(_read_rule(rule, f"{source} [[workload]] {number}") for number, rule in enumerate(rules, start=1))
    return Policy(values, dict.fromkeys(values, where), parsed, source)


def reference_rows() -> list[tuple[str, str, str, str, str]]:
    """Return the table of the reference page: field, how it may be written, default, why that default, meaning."""
    rows = []
    for field in FIELDS:
        example = {"minutes": f'`{field.text_name} = "2m"`', "gib": f'`{field.text_name} = "64G"`'}.get(field.kind, "")
        written = f"{example} or `{field.name}`, a number in {field.unit}" if example else f"`{field.name}`, {field.unit}"
        default = "not set" if field.default is None else f"{field.default:g}"
        rows.append((field.name, written, default, field.reason, field.doc))
    return rows


def _read_rule(table: Mapping[str, Any], where: str) -> Rule:
    patterns, sizes, rest = {}, {}, {}
    for raw, value in table.items():
        name = raw.replace("-", "_")
        if name in _PATTERNS:
            if not isinstance(value, str):
                raise errors.SettingError(f"{where}: {raw} must be text", hint=f'write it like {raw} = "llm-*"')
            patterns[name] = value
        elif name in _SIZES:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise errors.SettingError(f"{where}: {raw} must be a number, 0 or more", hint=f"write it like {raw} = 64")
            sizes[name] = float(value)
        else:
            rest[raw] = value
    values = _read_values(rest, where)
    if not patterns and not sizes:
        raise errors.SettingError(
            f"{where}: matches nothing in particular", hint=f"give one of {', '.join((*_PATTERNS, *_SIZES))}, or move it to [costs]"
        )
    return Rule(patterns, sizes, values, where)


def _read_values(table: Mapping[str, Any], where: str) -> dict[str, float | bool]:
    values: dict[str, float | bool] = {}
    for raw, value in table.items():
        field = _SETTABLE.get(raw.replace("-", "_"))
        if field is None:
            known = (*_SETTABLE, *(() if where.endswith("[costs]") else (*_PATTERNS, *_SIZES)))
            raise errors.SettingError(f"{where}: unknown key {raw!r}", hint=_nearest(raw.replace("-", "_"), known))
        if field.name in values:
            raise errors.SettingError(f"{where}: {field.name} is given twice", hint=f"keep {field.text_name} or {field.name}")
        if not isinstance(value, str) and field.name != raw.replace("-", "_"):
            raise errors.SettingError(f"{where}: {raw} has no unit", hint=f'write {raw} = "2m", or {field.name} = 2')
        values[field.name] = _read_value(field.name, value, where)
    return values


def _read_value(name: str, value: Any, where: str) -> float | bool:
    field = _SETTABLE.get(name)
    if field is None:
        raise errors.SettingError(f"{where}: unknown key {name!r}", hint=_nearest(name, tuple(_SETTABLE)))
    if field.kind == "flag":
        if not isinstance(value, bool):
            raise errors.SettingError(f"{where}: {name} must be true or false")
        return value
    if isinstance(value, str):
        number = _read_text(field, value, where)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise errors.SettingError(f"{where}: {name} must be a number or text", hint=f"its unit is {field.unit}")
    else:
        number = float(value)
    most = 1.0 if field.kind == "share" else 1e300
    if not 0.0 <= number <= most:
        label = where if where.startswith("--") else f"{where}: {name}"
        raise errors.SettingError(f"{label}: {number:g} is out of range", hint=f"it must be 0 {'to 1' if most == 1 else 'or more'}")
    return number


def _read_text(field: Field, value: str, where: str) -> float:
    name = where if where.startswith("--") else f"{where}: {field.text_name}"
    if field.kind == "minutes":
        return units.parse_duration(value, name=name) / 60.0
    if field.kind == "gib":
        return units.parse_size(value, name=name) / 1024.0**3
    if not re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        raise errors.SettingError(f"{name}: cannot read {value!r} as a number", hint=f"its unit is {field.unit}")
    return float(value)


def _nearest(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(dict.fromkeys(known))}"
