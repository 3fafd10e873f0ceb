"""`perdure eval coldstart`: native starts beside restores, by two clocks that end at the same state."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from perdure import errors
from perdure.cli import console, eval_places


def coldstart(
    *,
    repetitions: Annotated[int, Parameter(help="Starts of each kind.")] = 5,
    cache: Annotated[
        Literal["both", "cold", "warm"] | None,
        Parameter(help="State of the page cache. Default: both where it can be emptied (as root), else warm, and said so."),
    ] = None,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Measure how long the workload takes to be ready: started as ever, and restored from a checkpoint, by the plan's ready probe.

    The plan must be locked, and say when the workload is ready (workload.ready). The same requests (workload.requests) are sent before the
    checkpoint and after each restore, and the answers compared. All starts are recorded, none is left out.

    Ends with status 3 when a start failed, with status 4 when a restored workload gave other answers.

    For example:

      perdure eval coldstart --repetitions 5
    """
    from perdure.evaluation import coldstart as starts
    from perdure.evaluation import coldtable, page_cache, standing, tables
    from perdure.evaluation import folder as folders

    if repetitions < 1:
        raise errors.QuantityError(f"--repetitions: {repetitions} is less than 1", hint="one start shows no spread: give 2 or more")
    folder = folders.Folder(dir_)
    with folders.at_work(folder):
        found = standing.require_locked(folder)
        begun_s = time.monotonic()
        bench = starts.Bench(folder, found.plan, os.environ, lambda: time.monotonic() - begun_s)
        caches: tuple[starts.Cache, ...] = ("cold", "warm") if cache in (None, "both") else ("cold",) if cache == "cold" else ("warm",)
        if "cold" in caches and not page_cache.drop():
            if cache is not None:
                raise errors.EnvironmentUnfit("the page cache cannot be emptied here", hint="measure warm starts alone: --cache warm")
            console.note(common, "the page cache cannot be emptied here: warm starts only")
            caches = ("warm",)
        made = bench.measure(repetitions, caches, lambda text: console.note(common, text))
    cold = coldtable.summarise(made, level=found.plan.site.level)
    if common.json:
        console.print_json(cold)
    else:
        tables.print_cold(cold, console.out())
    if cold.same < cold.asked:
        raise errors.Findings(f"{cold.asked - cold.same} of {cold.asked} restores gave other answers than before the checkpoint")
    failed = [one for one in cold.runs if one.is_failed]
    if failed:
        raise errors.PartialResult(f"{len(failed)} of {len(cold.runs)} starts failed, first {failed[0].run}: {failed[0].excluded}")
