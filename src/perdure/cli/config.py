"""`perdure config`: what is configured, and where each value came from."""

from __future__ import annotations

import re

import msgspec
from rich.table import Table

from perdure.base import settings
from perdure.cli import console


def show(*, common: console.Common = console.Common()) -> None:
    """Print every setting with its value and its origin.

    Strongest first: a flag, a PERDURE_ variable, ./perdure.toml, $XDG_CONFIG_HOME/perdure/config.toml,
    /etc/perdure/config.toml, the default.

    For example:

      perdure config show --json
    """
    values = [_without_password(value) for value in console.load_settings(common).values()]
    if common.json:
        console.print_json({"settings": values})
        return
    table = Table("setting", "value", "origin", box=None, pad_edge=False)
    for value in values:
        table.add_row(value.key, console.printable(value.value or "-"), console.printable(value.origin))
    console.out().print(table)


def _without_password(value: settings.Value) -> settings.Value:
    if value.value is None:
        return value
    shown = re.sub(r"(://[^:/@]*):.*@", r"\1:…@", value.value)
    return msgspec.structs.replace(value, value=re.sub(r"(?i)(password=)[^&\s]*", r"\1…", shown))
