"""`perdure history show`: what a history holds, before any decision."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.cli import advise as advise_command
from perdure.cli import console


def show(
    history: Annotated[str, Parameter(help="Attempts file, or any accounting file that `perdure history import` reads; - for stdin.")],
    /,
    *,
    top: Annotated[int, Parameter(help="Candidates to print, worst loss first; 0 for all.")] = 10,
    cluster: Annotated[str | None, Parameter(help="This cluster's jobs only.")] = None,
    tz: Annotated[str | None, Parameter(help="Time zone of times without an offset (UTC).")] = None,
    common: console.Common = console.Common(),
) -> None:
    """Print attempts, node-hours and GPU-hours by outcome and size, what was destroyed, the top candidates, and what cannot be told.

    Destroyed work is given as bounds, since accounting holds no checkpoints. Candidates are ranked by what running them again
    is expected to lose.

    For example:

      perdure history show attempts.parquet
    """
    from perdure.advisor import advise as advisor
    from perdure.report import terminal

    if top < 0:
        raise errors.UsageError(f"--top: {top} is negative", hint="give 0 for all")
    values = console.load_settings(common, tz=tz)
    with console.progress(common, "reading", advise_command.size_bytes(history)) as report:
        answer = advisor.advise(
            history,
            cluster=cluster,
            tz=str(values["tz"].value),
            memory_limit=str(values["memory-limit"].value),
            threads=console.threads(values),
            progress=lambda _name, done: report(done),
        )
    candidates = answer.workloads[:top] if top else answer.workloads
    if common.json:
        console.print_json({"schema": answer.schema, "exposure": answer.exposure, "candidates": [one.evidence for one in candidates]})
        return
    terminal.render_exposure(answer.exposure, console.out(), candidates=candidates)
    for note in answer.notes:
        console.note(common, console.printable(note))
