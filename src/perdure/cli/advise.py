"""`perdure advise`: a verdict for every workload of a history."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from perdure import errors
from perdure.base import files
from perdure.cli import console, cost_flags
from perdure.cli.quantities import Duration

if TYPE_CHECKING:
    from perdure.base import settings
    from perdure.model.advice import Advice


def advise(
    history: Annotated[str, Parameter(help="Attempts file, or any accounting file that `perdure history import` reads; - for stdin.")],
    /,
    *,
    policy: Annotated[Path | None, Parameter(help="Policy file: costs, prices and deadlines per workload.")] = None,
    top: Annotated[int, Parameter(help="Workloads to print, worst loss first; 0 for all.")] = 20,
    what_if: Annotated[bool, Parameter(negative="", help="Replay the history: retry all, resume all, as advised.")] = False,
    html: Annotated[Path | None, Parameter(help="Write the report as one offline page.")] = None,
    csv: Annotated[Path | None, Parameter(help="Write all workloads as CSV.")] = None,
    parquet: Annotated[Path | None, Parameter(help="Write all workloads as Parquet.")] = None,
    rates: Annotated[Path | None, Parameter(help="Write mean times to failure by size, for `perdure run --every auto`.")] = None,
    classification: Annotated[
        Literal["strict", "inclusive"], Parameter(help="Count only unmistakable interruptions, or whatever may hide one.")
    ] = "strict",
    level: Annotated[float | None, Parameter(help="Two-sided level of all intervals (0.90).")] = None,
    seed: Annotated[int, Parameter(help="Seed of the bootstrap; one seed gives one answer.")] = 0,
    cluster: Annotated[str | None, Parameter(help="This cluster's jobs only.")] = None,
    tz: Annotated[str | None, Parameter(help="Time zone of times without an offset (UTC).")] = None,
    deadline: Annotated[Duration | None, Parameter(help="Results are wanted this long after the start.")] = None,
    costs: cost_flags.CostFlags = cost_flags.CostFlags(),
    common: console.Common = console.Common(),
) -> None:
    """Tell for every workload of a history whether to retry it or to resume it, with the GPU-hours each way and the reasons.

    For example:

      perdure advise attempts.parquet --html report.html

      perdure advise sacct.txt --checkpoint-cost 90s --what-if

      perdure advise attempts.parquet --rates /etc/perdure/rates.json
    """
    from perdure.advisor import advise as advisor
    from perdure.report import terminal

    if top < 0:
        raise errors.UsageError(f"--top: {top} is negative", hint="give 0 for all")
    values = console.load_settings(
        common, tz=tz, policy=None if policy is None else str(policy), level=None if level is None else str(level)
    )
    chosen = cost_flags.resolve(costs, values["policy"], deadline=deadline)
    _check_outputs(html, csv, parquet, rates)
    for output in (html, csv, parquet, rates):
        files.refuse_same(output, history, values["policy"].value)
    with console.progress(common, "reading", size_bytes(history)) as report:
        answer = advisor.advise(
            history,
            chosen,
            level=_level(values["level"]),
            seed=seed,
            what_if=what_if,
            cluster=cluster,
            tz=str(values["tz"].value),
            memory_limit=str(values["memory-limit"].value),
            threads=console.threads(values),
            classification=classification,
            progress=lambda _name, done: report(done),
        )
    _write(answer, html, csv, parquet)
    if rates is not None:
        _write_rates(answer, rates, classification)
    if common.json:
        console.print_json(answer)
        return
    terminal.render(answer, console.out(), top=top)
    for path in (html, csv, parquet, rates):
        if path is not None:
            console.note(common, f"written: {console.printable(str(path))}")


def _level(value: settings.Value) -> float:
    text = value.value or ""
    try:
        level = float(text)
    except ValueError:
        level = math.nan
    if not 0.5 <= level <= 0.999:
        raise errors.SettingError(f"level: {text!r} is not a number from 0.5 to 0.999 ({value.origin})", hint="0.90 is the default")
    return level


def _check_outputs(*paths: Path | None) -> None:
    """Find out before the work, rather than after it, that a result has nowhere to go."""
    given = [path for path in paths if path is not None]
    for path in given:
        if path.is_dir():
            raise errors.OutputError(f"cannot write {path}: it is a directory", hint="name a file inside it")
        if not path.parent.is_dir():
            raise errors.OutputError(f"cannot write {path}: there is no folder {path.parent}", hint="make it, or name another")
        if not os.access(path.parent, os.W_OK):
            raise errors.OutputError(f"cannot write {path}: the folder is not writable", hint="name another")
    if len({path.resolve() for path in given}) < len(given):
        raise errors.UsageError("two results would be written to the same file", hint="name different files")


def size_bytes(history: str) -> float | None:
    """The size of a file, for the progress; None for what is not one."""
    try:
        return float(os.path.getsize(history))
    except OSError:
        return None


def _write_rates(answer: Advice, path: Path, classification: Literal["strict", "inclusive"]) -> None:
    # Not before: they stand on what a node need not have, and whoever is without it is to be told so first.
    from perdure.advisor import ratings
    from perdure.model import rates

    files.write_bytes(path, rates.encode_rates(ratings.rates(answer, classification)), mode=0o644)


def _write(answer: Advice, html: Path | None, csv: Path | None, parquet: Path | None) -> None:
    from perdure.report import tables

    if html is not None:
        from perdure.report import html as page

        page.write(answer, html)
    if csv is not None:
        tables.write_csv(answer, csv)
    if parquet is not None:
        tables.write_parquet(answer, parquet)
