"""`perdure interval`: how often to checkpoint, by three formulas."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from perdure.cli import console, quantities
from perdure.cli.quantities import Duration


def interval(
    *,
    mttf: Annotated[Duration, Parameter(help="Mean time to interruption of the job, such as 7.9h.")],
    checkpoint_cost: Annotated[Duration, Parameter(help="The workload stands still this long for one checkpoint.")],
    restart: Annotated[Duration, Parameter(help="Restart after an interruption; only Daly's first order uses it.")] = "0",
    common: console.Common = console.Common(),
) -> None:
    """Print how much work to do between two checkpoints.

    Young (1974): √(2CM). Daly (2006), higher order: for C < 2M, else M. Exact: the minimum of the expected total time,
    M·(1 + W₀(−e^(−1−C/M))), which does not depend on the restart.

    Example: `perdure interval --mttf 7.9h --checkpoint-cost 2m`
    """
    mttf_minutes = quantities.minutes(mttf, "--mttf")
    cost_minutes = quantities.minutes(checkpoint_cost, "--checkpoint-cost", positive=False)
    restart_minutes = quantities.minutes(restart, "--restart", positive=False)
    quantities.require_analysis()
    from perdure.stats import intervals

    result = {
        "young_minutes": float(intervals.young(mttf_minutes, cost_minutes)),
        "daly_first_order_minutes": float(intervals.daly_first_order(mttf_minutes, cost_minutes, restart_minutes)),
        "daly_minutes": float(intervals.daly(mttf_minutes, cost_minutes)),
        "exact_minutes": float(intervals.exact(mttf_minutes, cost_minutes)),
    }
    if common.json:
        console.print_json(
            result
            | {
                "mttf_minutes": mttf_minutes,
                "checkpoint_cost_minutes": cost_minutes,
                "restart_minutes": restart_minutes,
                "daly_condition_holds": cost_minutes < 2.0 * mttf_minutes,
            }
        )
        return
    table = Table("formula", "interval", "", box=None, pad_edge=False)
    remark = "" if cost_minutes < 2.0 * mttf_minutes else "C ≥ 2M: M itself"
    for label, name, text in (
        ("Young 1974", "young_minutes", ""),
        ("Daly, first order", "daly_first_order_minutes", ""),
        ("Daly 2006, higher order", "daly_minutes", remark),
        ("exact", "exact_minutes", "least expected total time"),
    ):
        table.add_row(label, f"{result[name]:.3f} min", text)
    console.out().print(table)
