"""`perdure store gc`: free the room that removed checkpoints took."""

from __future__ import annotations

from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure.base import units
from perdure.cli import console, leftovers, store_open
from perdure.store import gc, locks
from perdure.store.owners import Linux


def gc_(
    *,
    dry_run: Annotated[
        bool, Parameter(negative="", help="Only count. A checkpoint being written at this moment counts as garbage.")
    ] = False,
    wait: Annotated[str, Parameter(help="How long to wait for running checkpoints and restores to end.")] = f"{locks.PATIENCE_S:g}s",
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Delete what no checkpoint needs any more.

    What supervisors of this machine left that were killed, images in memory for the most part, is cleared away first. Then it works alone:
    running checkpoints are waited for, and new ones wait. Nothing is deleted while any manifest cannot be read. It can be killed at any
    moment; the next run goes on.

    For example:

      perdure store gc --dry-run

      perdure store gc --wait 10m
    """
    wait_s = units.parse_duration(wait, name="--wait")
    if not dry_run:
        leftovers.clear(store_open.folders_of(console.load_settings(common)), common)
    with store_open.opened(common, store, key_file) as (repository, _):
        if dry_run:
            result = gc.survey(repository)
        else:
            with console.progress(common, "deleting", None, unit="packs") as report:
                result = gc.collect(
                    repository,
                    surroundings=Linux(),
                    wait_s=wait_s,
                    waiting=store_open.Waits(common),
                    progress=lambda done, _all: report(done),
                )
    if common.json:
        console.print_json(msgspec.to_builtins(result) | {"dry_run": dry_run})
        return
    verb = "would be freed" if dry_run else "freed"
    console.note(
        common,
        f"{units.format_size(result.freed_bytes)} {verb} in {result.removed_packs} packs; "
        f"{units.format_size(result.kept_bytes)} kept in {result.kept_packs}",
    )
    if result.missing_packs:
        console.note(common, f"{result.missing_packs} packs are missing: perdure store verify says what that costs")
