"""`perdure effects prune`: forget what was settled or sent long ago."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.base import units
from perdure.cli import console
from perdure.cli.effects_ledger import LedgerOption, open_ledger


def prune(
    *,
    older_than: Annotated[str, Parameter(help="Forget what was settled longer ago than this: 90d, 26w.")],
    dry_run: Annotated[bool, Parameter(negative="", help="Only count.")] = False,
    ledger: LedgerOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Forget steps that were settled, and messages of an outbox that were sent, long ago. What is running, in doubt or waiting stays.

    A key that is forgotten is new: a job that comes back later than this would do the step again.

    For example:

      perdure effects prune --ledger effects.db --older-than 90d --dry-run
    """
    older_than_s = units.parse_duration(older_than, name="--older-than")
    with open_ledger(common, ledger) as opened:
        pruned = opened.prune(older_than_s, dry_run=dry_run)
    if common.json:
        console.print_json({"pruned": 0 if dry_run else pruned, "would_prune": pruned if dry_run else 0})
        return
    console.note(common, f"{pruned} {'would be ' if dry_run else ''}forgotten")
