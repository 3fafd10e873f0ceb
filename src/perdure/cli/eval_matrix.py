"""`perdure eval matrix`: which workloads can be saved here, which are refused beforehand, which fail."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.cli import agent_side, console, eval_places

if TYPE_CHECKING:
    from perdure.evaluation.outcome import RecipeOutcome
    from perdure.evaluation.recipes import Found


def matrix(
    recipes: Annotated[Path, Parameter(name="RECIPES", help="Folder of recipes, one NAME.toml each.")] = Path("matrix"),
    /,
    *,
    only: Annotated[tuple[str, ...], Parameter(negative="", help="Put only this recipe through. Repeatable.")] = (),
    work: Annotated[
        Path | None, Parameter(help="Folder below which they run; what fails is kept there. Default: a new one in TMPDIR.")
    ] = None,
    dir_: eval_places.DirOption = Path(),
    common: console.Common = console.Common(),
) -> None:
    """Put workloads through a checkpoint, a kill and a restore on this machine, and compare what they leave with an undisturbed run.

    Each recipe names a command, when to save it, and what must come out the same. It works, it is refused beforehand with a code and goes
    on unharmed, or it fails. In the folder of an evaluation each is recorded as a run, and the report shows them.

    Ends with status 4 when one failed, with 20 where nothing can be saved.

    For example:

      perdure eval matrix docs/examples/matrix
    """
    from perdure.evaluation import recipes as books
    from perdure.evaluation import tables

    found = books.load(recipes)
    unknown = set(only) - {one.recipe.name for one in found}
    if unknown:
        raise errors.UsageError(f"there is no recipe {min(unknown)!r} in {recipes}", hint="--only takes the name in the recipe")
    chosen = [one for one in found if not only or one.recipe.name in only]
    _require_fit(common)
    place = Path(tempfile.mkdtemp(prefix="perdure-matrix-", dir=work))
    outcomes = _all(chosen, place, dir_, common)
    failed = [one for one in outcomes if one.result == "failed"]
    if not failed:
        shutil.rmtree(place, ignore_errors=True)
    if common.json:
        console.print_json({"outcomes": outcomes, "failed": len(failed), "kept": str(place) if failed else None})
    else:
        tables.print_matrix(outcomes, console.out())
    if failed:
        raise errors.Findings(f"{len(failed)} of {len(outcomes)} failed: {', '.join(one.recipe for one in failed)}", hint=f"see {place}")


def _require_fit(common: console.Common) -> None:
    """Raise `errors.EnvironmentUnfit` where nothing can be saved, which says nothing of any recipe."""
    from perdure.checkpoint.criu import locate

    values = console.load_settings(common)
    if agent_side.find(values) is None:
        try:
            locate.find(locate.places(values, os.environ))
        except errors.EnvironmentUnfit as error:
            raise agent_side.without(error, values) from error


def _all(chosen: list[Found], place: Path, dir_: Path, common: console.Common) -> list[RecipeOutcome]:
    from perdure.evaluation import folder as folders
    from perdure.evaluation import matrix_record

    folder = folders.Folder(dir_)
    if not folder.plan.exists():
        return [_one(found, place, common, None) for found in chosen]
    with folders.at_work(folder):
        recorder = matrix_record.Recording(folder)
        return [_one(found, place, common, recorder) for found in chosen]


def _one(found: Found, place: Path, common: console.Common, recorder: object) -> RecipeOutcome:
    from perdure.evaluation import matrix as trials
    from perdure.evaluation.matrix_record import Recording

    name = found.recipe.name
    console.note(common, name)
    above = "/run" if os.geteuid() == 0 and os.access("/run", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="perdure-matrix-", dir=above) as run_dir:
        begun_s, begun_unix_s = time.monotonic(), time.time()
        trial = trials.Trial(
            found, work=place / name, run_dir=Path(run_dir) / "run", given=os.environ, clock=lambda: time.monotonic() - begun_s
        )
        outcome = trial.put_through()
    if isinstance(recorder, Recording):
        recorder.record(found.recipe, trial.events, begun_unix_s)
    if outcome.result != "failed":
        shutil.rmtree(place / name, ignore_errors=True)
    return outcome
