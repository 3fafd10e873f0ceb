"""How `perdure decide` looks in a terminal: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.base.units import format_duration
from perdure.cli import console
from perdure.decision.policy import Assumption
from perdure.decision.words import amount, duration, share
from perdure.model.advice import JobQuestion, PolicyOutcome, Verdict

_COLOURS = {"RETRY": "green", "RESUME": "cyan", "RESUME-REQUIRED": "magenta", "EITHER": "yellow", "NEITHER": "red"}


def show(job: JobQuestion, answer: dict[str, Any], assumptions: Iterable[Assumption]) -> None:
    """Print the verdict, its reason, both policies, the four inputs, the break-even, what was assumed and what to beware of."""
    out = console.out()
    verdict: Verdict = answer["verdict"]
    title = Text(verdict.verdict.value, style=f"bold {_COLOURS[verdict.verdict.value]}")
    if verdict.verdict.value.startswith("RESUME") and verdict.resume.interval_minutes is not None:
        title.append(f"  checkpoint every {duration(verdict.resume.interval_minutes)}", style="not bold")
    out.print(title)
    out.print(verdict.reason)
    if verdict.settle_by:
        out.print(f"What would settle it: {verdict.settle_by}.")
    out.print()
    out.print(_policies(verdict))
    out.print()
    out.print(_inputs(verdict))
    out.print()
    _print_break_even(out, verdict)
    _print_saving(out, job, answer)
    out.print("assumed     " + ", ".join(_assumed(assumptions)))
    for warning in verdict.warnings:
        out.print(Text("warning     ", style="yellow").append(warning, style="default"))


def _policies(verdict: Verdict) -> Table:
    table = Table("policy", "expected", "chunks", "interval", box=None, pad_edge=False)
    asked = verdict.retry.meets_deadline is not None
    if asked:
        table.add_column("by the deadline")
    for name, outcome in (("retry", verdict.retry), ("resume", verdict.resume)):
        table.add_row(
            name, _expected(outcome), f"{outcome.chunks:,}", _interval(outcome), *([share(outcome.meets_deadline or 0.0)] if asked else [])
        )
    return table


def _expected(outcome: PolicyOutcome) -> str:
    expected = outcome.expected_minutes
    if expected is None:
        return "never finishes"
    if expected >= 1e7:  # nineteen years: minutes say nothing any more
        return duration(expected)
    return f"{format_duration(expected * 60)} ({expected:,.0f} min)" if expected >= 100 else f"{format_duration(expected * 60)}"


def _interval(outcome: PolicyOutcome) -> str:
    return "-" if outcome.interval_minutes is None else duration(outcome.interval_minutes)


def _inputs(verdict: Verdict) -> Table:
    table = Table("input", "points to", "because", box=None, pad_edge=False)
    for name in verdict.inputs.__struct_fields__:
        point = getattr(verdict.inputs, name)
        arrow = {"retry": "← retry", "resume": "→ resume", "either": "· either"}[point.points_to]
        table.add_row(name, arrow, point.reason)
    return table


def _print_break_even(out: Console, verdict: Verdict) -> None:
    even = verdict.break_even
    parts = []
    if even.work_minutes is not None:
        parts.append(f"work beyond {duration(even.work_minutes)}")
    if even.checkpoint_cost_minutes is not None:
        parts.append(f"checkpoints up to {duration(even.checkpoint_cost_minutes)}")
    if even.mttf_minutes is not None:
        parts.append(f"an interruption at least every {duration(even.mttf_minutes)}")
    out.print("break-even  " + (f"resuming pays for {', '.join(parts)}" if parts else "resuming pays at no rate and no cost"))


def _print_saving(out: Console, job: JobQuestion, answer: dict[str, Any]) -> None:
    saved = answer["saving"]
    if saved.gpu_hours is None:
        return
    text = f"resuming saves {amount(saved.gpu_hours) if saved.gpu_hours >= 0 else '-' + amount(-saved.gpu_hours)}"
    text += f" {'GPU' if job.size.unit == 'gpu' else 'node'}-hours a run"
    if saved.money is not None:
        text += f", {saved.money:,.2f} in money"
    if saved.pays_back_after_runs is not None:
        text += f"; the engineering is paid for after {saved.pays_back_after_runs:,} run{'' if saved.pays_back_after_runs == 1 else 's'}"
    out.print("saving      " + text)


def _assumed(assumptions: Iterable[Assumption]) -> Iterable[str]:
    for assumption in assumptions:
        if assumption.value is None:
            continue
        value = assumption.value
        unit = {"minutes": " min", "GiB": " GiB"}.get(assumption.unit, "")
        said = {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{amount(value)}{unit}"
        name = assumption.name.removesuffix("_minutes").removesuffix("_gb").replace("_", " ")
        yield console.printable(f"{name} {said} ({assumption.origin})")
