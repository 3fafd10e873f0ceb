"""One self-contained page for a browser, offline. Called by the command line.

The page loads nothing: no script, style, font or picture from elsewhere, which a strict Content-Security-Policy enforces; its
own style and script are allowed by their hashes. All text is escaped by Jinja's autoescape and made printable before. The
same advice gives the same bytes. Jinja is imported here alone.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import errors
from perdure._version import __version__
from perdure.base import files
from perdure.base.text import printable
from perdure.model.advice import Advice, InputPoint, RateBin, RateFit, VerdictKind
from perdure.report import charts, figures, page, theme, totals
from perdure.stats.published import PUBLISHED

_TEMPLATES = Path(__file__).parent / "templates"
_SIGNS = {
    VerdictKind.RESUME: "●",
    VerdictKind.RESUME_REQUIRED: "▲",
    VerdictKind.RETRY: "■",
    VerdictKind.EITHER: "◆",
    VerdictKind.NEITHER: "✚",
}


def write(advice: Advice, path: str | os.PathLike[str], *, title: str | None = None) -> None:
    """Write the page to `path`, atomically, readable by its owner alone. `title` is the heading; it may be untrusted.

    Raises `errors.OutputError`, and `errors.MissingExtra` when Jinja, Altair or vl-convert is not installed.
    """
    files.write_text(path, render(advice, title=title))


def render(advice: Advice, *, title: str | None = None) -> str:
    """Return the page as one HTML document. Raises `errors.MissingExtra`."""
    environment = _environment(advice)
    shown = page.shown(advice)
    style = (_TEMPLATES / "report.css").read_text("utf-8") + theme.css()
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    units: tuple[totals.Unit, ...] = ("gpu", "node")
    rate_charts = [charts.rates_by_size(advice.rates, unit, PUBLISHED) for unit in units]
    other_charts = [*(charts.lost_by_cause(advice, unit) for unit in units), charts.exposure_by_outcome(advice), charts.break_even(shown)]
    markup = environment.filters["markup"]
    return str(
        environment.get_template("page.html.j2").render(
            advice=advice,
            title=title or "Retry or resume",
            shown=shown,
            hidden_count=len(advice.workloads) - len(shown),
            any_extrapolated=any(row.mttf.extrapolated for row in shown),
            headline=page.headline(advice),
            beside=page.beside(advice),
            verdict_counts=page.verdict_counts(advice),
            unit_totals=totals.by_unit(advice),
            rate_tables=page.rate_tables(advice),
            rate_charts=[one for one in rate_charts if one is not None],
            other_charts=[one for one in other_charts if one is not None],
            published=PUBLISHED,
            style=markup(style),
            style_hash=_hash(style),
            script=markup(script),
            script_hash=_hash(script),
            version=__version__,
        )
    )


def _environment(advice: Advice) -> Any:
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise errors.MissingExtra(
            f"the HTML report needs {error.name or 'jinja2'}, which is not installed", hint="pip install 'perdure[advise]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Only for our own style and script, and for SVG from vl-convert, which escapes its text.
    environment.filters["markup"] = markupsafe.Markup
    environment.filters |= _filters(advice)
    environment.globals |= {"sign": _SIGNS, "shapes": theme.SHAPES, "work_source": page.WORK_SOURCE, "mttf_source": page.MTTF_SOURCE}
    return environment


def _filters(advice: Advice) -> dict[str, Callable[..., object]]:
    whole = {unit: totals.whole_hours(advice.exposure, unit) for unit in ("gpu", "node")}
    return {
        "amount": figures.amount,
        "bin_mttf": figures.bin_mttf,
        "bin_mttf_interval": figures.bin_mttf_interval,
        "bin_range": _bin_range,
        "bounds": figures.bounds,
        "count": lambda value: f"{value:,}",
        "day": lambda instant: printable(instant)[:10],
        "duration": figures.duration,
        "duration_interval": figures.duration_interval,
        "hours_name": figures.hours_name,
        "input_figure": _input_figure,
        "limit": _limit,
        "mean_time": lambda rate_per_hour: figures.duration(60 / rate_per_hour if rate_per_hour > 0 else None),
        "mttf": figures.mttf,
        "named": lambda name: printable(name) or "(no name)",
        "number": lambda value: "" if value is None or math.isnan(value) else repr(float(value)).replace("inf", "Infinity"),
        "observed_range": _observed_range,
        "percent": figures.percent,
        "percent_whole": lambda share: f"{share:.0%}",
        "share_of": lambda part, unit: figures.share(part, whole[unit]),
        "shown": printable,
        "size": figures.size,
        "unit_name": figures.unit_name,
        "word": figures.word,
    }


def _bin_range(one: RateBin) -> str:
    return figures.size_range(one.low, one.high)


def _observed_range(fit: RateFit) -> str:
    return figures.size_range(fit.observed_low, fit.observed_high)


def _limit(minutes: float | None) -> str:
    return "none" if minutes is None or math.isinf(minutes) else figures.duration(minutes)


def _input_figure(point: InputPoint) -> str:
    if point.figure is None:
        return figures.UNKNOWN
    if point.unit == "minutes":
        return figures.duration(point.figure)
    return f"{figures.amount(point.figure)} {printable(point.unit)}".strip()


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
