"""What the commands of an evaluation share: which folder it is in, and how what a plan lacks is shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perdure.cli import console

if TYPE_CHECKING:
    from perdure.evaluation.completeness import Lack
    from perdure.evaluation.paper import Change

DirOption = Annotated[Path, Parameter(name="--dir", help="Folder of the evaluation. Default: the current one.")]


def print_lacks(lacks: Sequence[Lack]) -> None:
    """Print what a plan lacks on stdout, one line each, made safe to show."""
    for lack in lacks:
        console.out().print(console.printable(f"{lack.part}  {lack.key}: {lack.what} → {lack.remedy}"), soft_wrap=True)


def describe(change: Change) -> str:
    """Return one change of a plan as a line that is safe to show; a side that is not set has the default."""
    import msgspec

    def side(value: object) -> str:
        return "(default)" if value is msgspec.UNSET else msgspec.json.encode(value).decode()

    return console.printable(f"{change.key}: {side(change.old)} → {side(change.new)}")
