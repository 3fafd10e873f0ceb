"""`perdure config`: what is configured, and where each value came from."""

from __future__ import annotations

from rich.table import Table

from perdure.cli import console


def show(*, common: console.Common = console.Common()) -> None:
    """Print every setting with its value and its origin.

    Strongest first: a flag, a PERDURE_ variable, ./perdure.toml, $XDG_CONFIG_HOME/perdure/config.toml,
    /etc/perdure/config.toml, the default.
    """
    values = console.load_settings(common)
    if common.json:
        console.print_json({"settings": list(values.values())})
        return
    table = Table("setting", "value", "origin", box=None, pad_edge=False)
    for value in values.values():
        table.add_row(value.key, console.printable(value.value or "-"), console.printable(value.origin))
    console.out().print(table)
