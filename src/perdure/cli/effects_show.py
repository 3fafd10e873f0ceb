"""`perdure effects show`: everything that is recorded of one step."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.cli import console
from perdure.cli.effects_ledger import LedgerOption, document, open_ledger


def show(
    key: Annotated[str, Parameter(help="The step's key.")],
    *,
    ledger: LedgerOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Print everything that is recorded of one step, its result included.

    For example:

      perdure effects show invoice-2026-11 --ledger effects.db
    """
    with open_ledger(common, ledger) as opened:
        found = opened.look(key)
    if found is None:
        raise errors.InputMissing(f"there is no step {key}", hint="perdure effects ls --all lists them")
    plain = document(*found)
    if common.json:
        console.print_json(plain)
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in plain.items():
        text = " ".join(f"{part}={item}" for part, item in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name.replace("_", " "), "-" if value in (None, "") else console.printable(text))
    console.out().print(table)
