"""Record what an interrupted harness left: runs with a journal and no line in `runs.jsonl`. Called by `harness` before anything is started.

What such a run started has ended with the harness; whatever of it can still be found by its mark is ended here, and its disk unmounted. Its
jobs on Slurm, which know nothing of the harness, are ended by their name.
"""

from __future__ import annotations

import contextlib
import shutil
import time

from perdure import errors
from perdure.evaluation import disk, faults, local, places, runs, slurm_job
from perdure.evaluation import folder as folders
from perdure.evaluation.folder import Folder
from perdure.evaluation.plan import Plan
from perdure.model.evaluation import Run

_GONE_S = 30.0


def recover(folder: Folder, plan: Plan) -> tuple[Run, ...]:
    """Append every broken run, as not finished and with its events until then, and return them. The caller is the only one at work here.

    Raises `errors.EnvironmentUnfit` when something that a run left cannot be ended, and what reading and writing raise.
    """
    known = {run.id for run in folders.read_runs(folder).runs}
    found = []
    for run_id in sorted(folders.raw_ids(folder) - known):
        raw = folder.raw / run_id
        _end(run_id)
        if plan.site.where == "slurm":
            slurm_job.leave(run_id)
        disk.unmount(faults.disk_place(plan.faults.disk_path, plan.workload.working_directory or ".", raw.absolute()))
        run = runs.read(raw)
        if run is None:
            # Nothing had begun: the journal's first line is written before anything is started.
            shutil.rmtree(raw)
            continue
        local.remove(places.of(raw, run_id))
        folders.append_run(folder, run)
        found.append(run)
    return tuple(found)


def _end(run_id: str) -> None:
    """End what is left of a run, and wait until it is gone."""
    end_s = time.monotonic() + _GONE_S
    while left := local.leftovers(run_id):
        local.kill(left)
        if time.monotonic() >= end_s:
            raise errors.EnvironmentUnfit(
                f"process {left[0]} of the broken run {run_id} does not end", hint="look for it in state D: the kernel holds it"
            )
        with contextlib.suppress(InterruptedError):
            time.sleep(0.05)
