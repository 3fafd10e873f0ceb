"""Figures about Perdure that a person may quote: how fast, and how often its intervals and verdicts are right.

Run by ``make bench`` as ``python -m bench [PART…] [--option value …]``; without a part, all of them run. Needs
``requirements-bench.lock.txt``.

The protocol. A part is a module of this package that has

* a docstring whose first line says what it measures,
* ``report(arguments: Sequence[str] = ()) -> list[Figure]``: measure and return the figures. `arguments` is what the
  command line gave after the part's name; the part reads it with `argparse`, and an empty one means the sizes that the
  goals are stated for. Progress goes to stderr,
* ``main() -> None``: `print_figures(report(sys.argv[1:]))`, under ``if __name__ == "__main__"``.

The parts are found by looking into this folder: adding a module is all that is needed; packages in it are not parts.
Speeds are ratios within one run on one machine, best of several, so that a slow machine does not change them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured figure."""

    name: str
    """What was measured, in a few words."""
    value: float | None
    """None: could not be measured; `note` says why."""
    unit: str
    """``x`` for a ratio, ``s``, ``rows/s``, ``%``, ``MiB`` …"""
    goal: str = ""
    """The goal as a person reads it: ``≤ 1.5``, ``85 to 95``; empty: none."""
    met: bool | None = None
    """Whether the goal was met; None without a goal."""
    note: str = ""
    """What a reader must know to use it: sizes, counts, spread."""


def print_figures(figures: Iterable[Figure]) -> bool:
    """Print `figures` as one table on stdout. Returns False when a goal was missed."""
    figures = list(figures)
    width = max((len(figure.name) for figure in figures), default=0)
    for figure in figures:
        value = "-" if figure.value is None else f"{figure.value:,.3g}" if abs(figure.value) < 1000 else f"{figure.value:,.0f}"
        verdict = {True: "ok", False: "MISSED", None: ""}[figure.met]
        goal = f"goal {figure.goal}" if figure.goal else ""
        print(f"{figure.name:<{width}}  {value:>10} {figure.unit:<7} {goal:<14} {verdict:<6} {figure.note}".rstrip())
    return all(figure.met is not False for figure in figures)
