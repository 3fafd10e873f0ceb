"""Colours and type of the page's charts. Called by `charts` and, for the style sheet, by `html`.

A chart is drawn once, in the light colours below; the style sheet then maps each of these exact colours to a custom
property by attribute selector, so that the same SVG serves light, dark and print. No colour carries a meaning alone:
marks differ in shape, and every series is named.
"""

from __future__ import annotations

from typing import Any

from perdure.model.advice import VerdictKind

INK = "#1c2531"
MUTED = "#5b6673"
GRID = "#dfe4e9"
SURFACE = "#fefefe"
BLUE = "#0a6aa8"
VERMILLION = "#b94808"
PURPLE = "#8d4f86"
AMBER = "#8f6300"
SLATE = "#68737f"

RAMP = ("#c9dfee", "#a3c8e1", "#79aed3", "#4f93c2", "#2b77ab", "#155b8c", "#0b4069")
"""Sizes, small to large."""

PROPERTIES: dict[str, str] = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    SURFACE: "surface",
    BLUE: "blue",
    VERMILLION: "vermillion",
    PURPLE: "purple",
    AMBER: "amber",
    SLATE: "slate",
}
"""Which custom property of the style sheet stands for each colour."""

# Okabe and Ito's colours, darkened until they carry text on white, in an order whose lightness differs too.
VERDICT_COLOURS: dict[VerdictKind, str] = {
    VerdictKind.RESUME: BLUE,
    VerdictKind.RESUME_REQUIRED: VERMILLION,
    VerdictKind.RETRY: SLATE,
    VerdictKind.EITHER: AMBER,
    VerdictKind.NEITHER: PURPLE,
}
VERDICT_SHAPES: dict[VerdictKind, str] = {
    VerdictKind.RESUME: "circle",
    VerdictKind.RESUME_REQUIRED: "triangle-up",
    VerdictKind.RETRY: "square",
    VerdictKind.EITHER: "diamond",
    VerdictKind.NEITHER: "cross",
}

SHAPES: dict[str, str] = {
    "circle": "M-5,0a5,5 0 1,0 10,0a5,5 0 1,0 -10,0Z",
    "square": "M-4.5,-4.5h9v9h-9Z",
    "diamond": "M0,-5.5L5,0L0,5.5L-5,0Z",
    "triangle-up": "M0,-5L5.5,4.5H-5.5Z",
    "triangle-down": "M0,5L5.5,-4.5H-5.5Z",
    "cross": "M-1.8,-5.4h3.6v3.6h3.6v3.6h-3.6v3.6h-3.6v-3.6h-3.6v-3.6h3.6Z",
    "stroke": "M-5.5,0H5.5",
    "line": "M-8,0H8",
    "dash": "M-8,0H-3M-1,0H4M6,0H8",
    "block": "M-6,-6h12v12h-12Z",
}
"""Legends' signs as SVG paths around the origin, as Vega draws them; all are outlines but the block."""

CONFIG: dict[str, Any] = {
    # The marks are described by the chart's title, description and table; a label on each would only add names to the page.
    "aria": False,
    "background": "transparent",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": MUTED,
        "tickColor": MUTED,
        "gridColor": GRID,
        "labelColor": MUTED,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelLimit": 170,
    },
}


def css() -> str:
    """Return the rules that turn the charts' colours into the style sheet's properties."""
    rules = [f'.chart [{kind}="{colour}"]{{{kind}:var(--{name})}}' for colour, name in PROPERTIES.items() for kind in ("fill", "stroke")]
    rules += [f'.chart [fill="{colour}"]{{fill:var(--ramp-{index})}}' for index, colour in enumerate(RAMP)]
    return "\n".join(rules)
