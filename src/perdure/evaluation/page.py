"""The report as one self-contained page for a browser, offline. Called by `perdure eval report`.

The page loads nothing and holds no script: its style is allowed by its hash in a strict Content-Security-Policy. Every text that comes from
a plan, a run or its output is made printable and escaped. The same report gives the same bytes. Jinja is imported here alone.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import errors
from perdure.base import files
from perdure.base.text import printable
from perdure.evaluation import bars, drawing, paper, this_machine, wording
from perdure.evaluation.headline import FOUR
from perdure.evaluation.report import Report
from perdure.model.evaluation import Arm, Outcome
from perdure.report import html as reports
from perdure.report import theme

_TEMPLATES = Path(__file__).parent / "templates"
_SHARED = Path(reports.__file__).parent / "templates"
_SIGNS = {Outcome.PASS: "●", Outcome.FAIL: "▲", Outcome.UNDECIDED: "◆", None: "○"}


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the page to `path`, atomically, readable by its owner alone.

    Raises `errors.OutputError`, and `errors.MissingExtra` when Jinja is not installed.
    """
    files.write_text(path, render(report))


def render(report: Report) -> str:
    """Return the page as one HTML document. Raises `errors.MissingExtra`."""
    environment = _environment()
    markup = environment.filters["markup"]
    style = (_SHARED / "report.css").read_text("utf-8") + (_TEMPLATES / "evaluation.css").read_text("utf-8") + theme.css()
    unit = str(report.plan.get("workload", {}).get("progress", {}).get("unit", "step"))
    return str(
        environment.get_template("evaluation.html.j2").render(
            report=report,
            four=[one for one in report.measures if one.kind in FOUR],
            measures=[(one, drawing.every_run(one)) for one in report.measures],
            restore_chart=drawing.restore_time(report.cold_start),
            bars=bars.draw(report.timelines, unit),
            plan=paper.diff({}, report.plan),
            flagged=[one for one in report.mistakes if one.flagged],
            style=markup(style),
            style_hash="sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        )
    )


def _environment() -> Any:
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise errors.MissingExtra(
            f"the HTML report needs {error.name or 'jinja2'}, which is not installed", hint="pip install 'perdure[advise]'"
        ) from error

    def finalize(value: object) -> object:
        """Make every text of an expression printable, whoever forgets it; our own markup stays as it is."""
        return printable(value) if isinstance(value, str) and not isinstance(value, markupsafe.Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_TEMPLATES, _SHARED]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters["markup"] = markupsafe.Markup
    environment.filters |= _filters()
    environment.globals |= {"shapes": theme.SHAPES, "signs": _SIGNS, "arms": tuple(Arm), "length": bars.LENGTH}
    return environment


def _filters() -> dict[str, Callable[..., object]]:
    return {
        "basis": wording.basis,
        "command": wording.command,
        "counter": wording.counter,
        "device": wording.device,
        "difference": wording.difference,
        "difference_interval": wording.difference_interval,
        "formulas": wording.formulas,
        "hours": wording.hours,
        "interval": wording.interval,
        "lacks": wording.lacks,
        "name": wording.name,
        "needed": wording.runs_needed,
        "outcome": lambda value: wording.OUTCOME_WORDS[value],
        "plain": wording.plain,
        "quantity": wording.quantity,
        "ratio": wording.ratio,
        "seconds": wording.seconds,
        "size": wording.size,
        "threshold": wording.threshold,
        "utc": this_machine.utc,
    }
