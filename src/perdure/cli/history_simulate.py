"""`perdure history simulate`: a fleet's accounting history with the truth beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from perdure.base import units
from perdure.cli import console

if TYPE_CHECKING:
    from perdure.history.simulate.truth import Truth


def simulate(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="Folder to write sacct.txt and truth.json into; made if absent.")],
    seed: Annotated[int, Parameter(help="The same seed gives the same history.")] = 1,
    gpus: Annotated[int, Parameter(help="GPUs of the fleet.")] = 2048,
    days: Annotated[int, Parameter(help="Days of history.")] = 90,
    gpus_per_node: Annotated[int, Parameter(help="GPUs of one node.")] = 8,
    users: Annotated[int | None, Parameter(help="Users; default: one for every 16 GPUs.")] = None,
    load: Annotated[float, Parameter(help="Work offered as a share of all GPU-hours.")] = 0.92,
    rate: Annotated[float, Parameter(help="Infrastructure failures per 1000 node-days of a job that fills one node.")] = 20.0,
    exponent: Annotated[float, Parameter(help="Growth of that rate with GPUs: n^exponent.")] = 1.0,
    preemption_rate: Annotated[float, Parameter(help="Preemptions per 1000 hours of a one-GPU job of low quality of service.")] = 25.0,
    operator_rate: Annotated[float, Parameter(help="Cancellations by operators, in the unit of --rate.")] = 2.0,
    bursty: Annotated[bool, Parameter(negative="", help="Bunch failures into bad days, as on real systems.")] = False,
    quirks: Annotated[bool, Parameter(help="Plant what breaks careless readers: delimiters, newlines, bad bytes, markup.")] = True,
    delimiter: Annotated[str, Parameter(help="Text between fields.")] = "|",
    force: Annotated[bool, Parameter(negative="", help="Write into a folder that is not empty, replacing the two files.")] = False,
    common: console.Common = console.Common(),
) -> None:
    """Make a GPU fleet's accounting history, with the truth beside it.

    Writes DIR/sacct.txt, the text that Slurm's sacct prints, with every kind of ending, requeues, resubmissions, chains at the
    wall-time limit and users' own bugs; and DIR/truth.json: the true rates by cause and size, and each workload's best policy
    with what it costs.

    For example:

      perdure history simulate --seed 1 --gpus 2048 --days 90 -o fleet && perdure advise fleet/sacct.txt
    """
    from perdure.history import simulate as simulator

    console.load_settings(common)
    spec = simulator.FleetSpec(
        gpus=gpus,
        days=days,
        gpus_per_node=gpus_per_node,
        users=users,
        load=load,
        infrastructure_rate=rate,
        infrastructure_exponent=exponent,
        preemption_rate=preemption_rate,
        operator_rate=operator_rate,
        burst_shape=0.5 if bursty else None,
        quirks=quirks,
    )
    simulator.check(spec)
    simulator.check_delimiter(delimiter)
    simulator.prepare_folder(output, force=force)
    with console.progress(common, "simulating", days, unit="days") as report:
        fleet = simulator.simulate(spec, seed, report_day=report)
    console.note(common, "working out the truth and writing both files")
    sacct, truth = fleet.write(output, delimiter=delimiter)
    if common.json:
        console.print_json(_document(fleet.truth, sacct, truth))
        return
    _print(fleet.truth, sacct, truth)
    console.note(common, f"next: perdure advise {console.printable(str(sacct))}")


def _document(truth: Truth, sacct_path: Path, truth_path: Path) -> dict[str, Any]:
    return {
        "sacct": str(sacct_path),
        "truth": str(truth_path),
        "seed": truth.seed,
        "gpus": truth.spec.gpus,
        "days": truth.days,
        "rows": truth.rows,
        "lines": truth.lines,
        "attempts": truth.attempts,
        "bytes": sacct_path.stat().st_size,
        "gpu_hours": truth.allocated_gpu_hours,
        "utilisation": truth.utilisation,
        "workloads": len(truth.workloads),
        "states": truth.states,
        "quirks": truth.quirks,
    }


def _print(truth: Truth, sacct_path: Path, truth_path: Path) -> None:
    table = Table("what", "count", box=None, pad_edge=False)
    table.columns[1].justify = "right"
    table.add_row("GPUs", f"{truth.spec.gpus:,}")
    table.add_row("days", f"{truth.days:,}")
    table.add_row("GPU-hours used", f"{truth.allocated_gpu_hours:,.0f} ({truth.utilisation:.0%})")
    table.add_row("workloads", f"{len(truth.workloads):,}")
    for state, count in sorted(truth.states.items(), key=lambda item: -item[1]):
        table.add_row(f"rows {state}", f"{count:,}")
    console.out().print(table)
    size = units.format_size(sacct_path.stat().st_size)
    console.out().print(f"{console.printable(str(sacct_path))}: {truth.rows:,} rows, {size}")
    console.out().print(f"{console.printable(str(truth_path))}: the truth of seed {truth.seed}")
