"""Record what became of recipes as runs of the evaluation whose folder they were put through in. Called by `perdure eval matrix`."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.evaluation import canonical, environment
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.evaluation.folder import Folder
from perdure.evaluation.recipes import Recipe
from perdure.model.evaluation import Arm, Event, Run


class Recording:
    """Adds runs to `runs.jsonl`; the caller is the only one `at_work` in the folder. Raises what reading the plan and the runs raises."""

    def __init__(self, there: Folder) -> None:
        self._folder = there
        self._plan = plans.load(there.plan)
        self._environment = environment.read(self._plan)
        self._count = sum(run.purpose == "matrix" for run in folders.read_runs(there).runs)

    def record(self, recipe: Recipe, events: Sequence[Event], begun_unix_s: float) -> Run:
        """Add the run of a recipe and return it. Raises what `folder.append_run` raises."""
        self._count += 1
        run = Run(
            id=f"matrix-{self._count:04d}-{recipe.name}"[:128],
            arm=Arm.MANAGED,
            pair=0,
            repetition=self._count,
            node=self._environment.host,
            nodes=1,
            gpus=0,
            begun_unix_s=begun_unix_s,
            environment=self._environment,
            command=recipe.command,
            events=tuple(events),
            plan_hash=canonical.hash_for(self._plan, "matrix"),
            purpose="matrix",
        )
        folders.append_run(self._folder, run)
        return run
