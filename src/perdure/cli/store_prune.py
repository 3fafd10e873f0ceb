"""`perdure store prune`: remove checkpoints by rules."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.agent import asked
from perdure.base import units
from perdure.cli import agent_side, console, store_open
from perdure.model.checkpoint import check_name
from perdure.store import prune
from perdure.store.owners import Linux
from perdure.store.prune import Plan
from perdure.store.retention import Rules


def prune_(
    names: Annotated[tuple[str, ...], Parameter(help="Only these workloads' checkpoints. Default: all.")] = (),
    /,
    *,
    keep_last: Annotated[int | None, Parameter(help="Keep this many of each workload, the newest.")] = None,
    keep_for: Annotated[str | None, Parameter(help="Keep those younger than this: 12h, 7d.")] = None,
    max_bytes: Annotated[str | None, Parameter(help="Then remove the oldest until all that is kept fits into this: 500G, 2T.")] = None,
    damaged: Annotated[bool, Parameter(negative="", help="Remove those that cannot be restored any more.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would be removed, and why.")] = False,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    user: agent_side.User = None,
    common: console.Common = console.Common(),
) -> None:
    """Remove checkpoints by rules. What one of --keep-last and --keep-for keeps stays.

    Never removed: the newest good checkpoint of a workload, pinned ones, and ones in use. Room is freed by `perdure store gc`.

    For example:

      perdure store prune --keep-last 3 --keep-for 7d --dry-run

      perdure store prune train-7b --max-bytes 2T && perdure store gc
    """
    rules = Rules(
        keep_last=keep_last,
        keep_for_s=None if keep_for is None else units.parse_duration(keep_for, name="--keep-for"),
        max_bytes=None if max_bytes is None else units.parse_size(max_bytes, name="--max-bytes"),
        damaged=damaged,
    )
    if rules == Rules():
        raise errors.UsageError("prune needs a rule", hint="give --keep-last, --keep-for, --max-bytes or --damaged")
    chosen = tuple(check_name(name) for name in names) or None
    agent = agent_side.find_for_store(common, store, key_file, user)
    if agent is not None:
        planned, gone = _ask(agent, rules, chosen, dry_run=dry_run)
    else:
        surroundings = Linux()
        with store_open.opened(common, store, key_file) as (repository, _):
            planned = prune.plan(repository, rules, workloads=chosen, surroundings=surroundings)
            gone = [] if dry_run else [str(one) for one in prune.apply(repository, planned, surroundings=surroundings)]
    if common.json:
        decisions = [{"id": str(one.id), "keep": one.keep, "reason": one.reason} for one in planned.decisions]
        console.print_json({"decisions": decisions, "removed": gone, "kept_bytes": planned.kept_bytes, "dry_run": dry_run})
        return
    _print(planned)
    if dry_run:
        console.note(common, f"{len(planned.removed)} would be removed")
    else:
        # The agent has freed their room.
        console.note(common, f"{len(gone)} removed" + ("; perdure store gc frees their room" if gone and agent is None else ""))
    if rules.max_bytes is not None and planned.kept_bytes > rules.max_bytes:
        console.note(common, f"what may not be removed takes {units.format_size(planned.kept_bytes)}: more than {max_bytes}")


def _ask(agent: agent_side.Agent, rules: Rules, names: tuple[str, ...] | None, *, dry_run: bool) -> tuple[Plan, list[str]]:
    """Let the agent do it; returns what was planned, and the ids of what was removed."""
    wanted = asked.StorePrune(
        names=names or (),
        keep_last=rules.keep_last,
        keep_for_s=rules.keep_for_s,
        max_bytes=rules.max_bytes,
        damaged=rules.damaged,
        dry_run=dry_run,
    )
    answer = agent.ask(wanted)
    return msgspec.convert(answer["plan"], Plan), answer["removed"]


def _print(planned: Plan) -> None:
    if not planned.decisions:
        return
    table = Table("checkpoint", "", "why", box=None, pad_edge=False)
    for one in planned.decisions:
        table.add_row(str(one.id), "keep" if one.keep else "remove", console.printable(one.reason))
    console.out().print(table)
