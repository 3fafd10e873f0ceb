"""`perdure store stats`: what takes how much room."""

from __future__ import annotations

import msgspec
from rich.table import Table

from perdure.base import units
from perdure.cli import console, store_open
from perdure.model.checkpoint import Part
from perdure.store import stats
from perdure.store.stats import Stats


def stats_(
    *,
    store: store_open.StoreOption = None,
    key_file: store_open.KeyFileOption = None,
    common: console.Common = console.Common(),
) -> None:
    """Print how much room each workload takes, what they share, what sharing and compression save, and what nobody needs.

    For example:

      perdure store stats --store /ckpt/store
    """
    with store_open.opened(common, store, key_file) as (repository, _):
        measured = stats.measure(repository)
    if common.json:
        plain = msgspec.to_builtins(measured)
        console.print_json(plain | {"unreadable": [str(one) for one in measured.unreadable]})
        return
    _print(measured)
    if measured.unreadable:
        console.note(common, f"{len(measured.unreadable)} checkpoints cannot be read and are not counted: perdure store verify")


def _print(measured: Stats) -> None:
    size = units.format_size
    table = Table("workload", "checkpoints", *(part.value for part in Part), "in all", "own", "shared", box=None, pad_edge=False)
    for one in measured.workloads:
        parts = (size(one.logical_bytes_by_part.get(part, 0)) for part in Part)
        table.add_row(one.workload, str(one.checkpoints), *parts, size(one.logical_bytes), size(one.own_bytes), size(one.shared_bytes))
    if measured.workloads:
        console.out().print(table)
        console.out().print()
    totals = Table(show_header=False, box=None, pad_edge=False)
    totals.add_row("checkpoints", f"{measured.checkpoints}, {size(measured.logical_bytes)}")
    totals.add_row("stored for them", size(measured.needed_bytes))
    totals.add_row("saved by sharing", _ratio(measured.dedup_ratio))
    totals.add_row("saved by compressing", _ratio(measured.compression_ratio))
    totals.add_row("needed by none", f"{size(measured.orphan_bytes)} in {measured.orphan_packs} packs")
    totals.add_row("manifests", size(measured.manifest_bytes))
    totals.add_row("everything else", size(measured.other_bytes))
    console.out().print(totals)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} ×"
