"""`perdure effects ls`: what is being done, in doubt, or done."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.cli import console
from perdure.cli.effects_ledger import LedgerOption, document, moment, open_ledger
from perdure.effects import Row, State
from perdure.effects.identity import Process


def ls(
    *,
    ledger: LedgerOption = None,
    state: Annotated[
        Literal["running", "in_doubt", "not_done", "done"] | None, Parameter(help="Only this state. Default: everything that is not done.")
    ] = None,
    all_: Annotated[bool, Parameter(name=["--all", "-a"], negative="", help="Done steps too.")] = False,
    check: Annotated[bool, Parameter(negative="", help="End with status 4 when a step is in doubt.")] = False,
    common: console.Common = console.Common(),
) -> None:
    """List the steps of a ledger that are not done.

    A step whose holder is gone, or silent for its lease, is shown as in doubt: it may or may not have happened.

    For example:

      perdure effects ls --ledger effects.db --state in_doubt
    """
    with open_ledger(common, ledger) as opened:
        wanted = (State(state),) if state else tuple(State) if all_ else (State.RUNNING, State.IN_DOUBT, State.NOT_DONE)
        found = list(opened.rows(*wanted))
        done = opened.counts()[State.DONE]
    if common.json:
        console.print_json({"steps": [document(row, seen) for row, seen in found], "done": done})
    else:
        _print(found)
        shown = Counter(seen for _, seen in found)[State.DONE]
        console.note(common, f"{len(found)} listed, {done - shown} done not listed")
    doubtful = sum(seen is State.IN_DOUBT for _, seen in found)
    if check and doubtful:
        raise errors.Findings(
            f"{doubtful} in doubt", hint="find out whether they happened, then: perdure effects resolve KEY --done or --not-done"
        )


def _print(found: list[tuple[Row, State]]) -> None:
    if not found:
        return
    table = Table("key", "state", "changed", "attempt", "life", "holder", "note", box=None, pad_edge=False)
    for row, seen in found:
        life = f"{row.workload}/{row.epoch}" if row.workload else "-"
        holder = Process.load(row.holder)
        table.add_row(
            console.printable(row.key),
            seen.value.replace("_", " "),
            moment(row.changed_at_s),
            str(row.attempt),
            console.printable(life),
            console.printable(f"{holder.host}:{holder.pid}"),
            console.printable(row.note) or "-",
        )
    console.out().print(table)
