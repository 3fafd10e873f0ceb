"""What the commands of `perdure effects` share: which ledger, and how a step is shown."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Annotated, Any

from cyclopts import Parameter

from perdure.cli import console
from perdure.effects import Ledger, Row, State
from perdure.effects.identity import Process

LedgerOption = Annotated[
    str | None,
    Parameter(name="--ledger", help="Ledger: a file, or postgresql://HOST/DATABASE (password: ~/.pgpass). Default: setting ledger."),
]


def open_ledger(common: console.Common, ledger: str | None) -> Ledger:
    """Open the ledger that was asked for; it is not made when it is absent. Raises `errors.SettingError`, `errors.LedgerError`."""
    return Ledger(address(common, ledger), create=False, patience_s=0)


def address(common: console.Common, ledger: str | None) -> str:
    """Return where the ledger that was asked for is: a path, or a URL. Raises `errors.SettingError`."""
    return console.load_settings(common, ledger=ledger)["ledger"].value or "effects.db"


def moment(seconds: float) -> str:
    """Return seconds since 1970 as a time in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def document(row: Row, seen: State) -> dict[str, Any]:
    """Return one step as plain data: times in UTC, the state as a person should see it beside the one that is recorded."""
    plain = dataclasses.asdict(row)
    for name in ("beat_at_s", "begun_at_s", "changed_at_s"):
        plain[name.removesuffix("_s")] = moment(plain.pop(name))
    holder = dataclasses.asdict(Process.load(row.holder))
    return plain | {"state": str(seen), "recorded_state": str(row.state), "holder": holder}
