"""Quantities on the command line: durations and numbers as text, so that a bad one is answered in one line that names it."""

from __future__ import annotations

import math
import re
from typing import Annotated

from cyclopts import Parameter

from perdure import errors
from perdure.base import units

# A value may begin with a hyphen: `--mttf -5m` is a wrong duration, not an unknown option.
Duration = Annotated[str, Parameter(allow_leading_hyphen=True)]
Number = Annotated[str, Parameter(allow_leading_hyphen=True)]
Text = Annotated[str, Parameter(allow_leading_hyphen=True)]


def minutes(text: str, flag: str, *, positive: bool = True, may_be_never: bool = False) -> float:
    """Read a duration given with `flag` and return minutes; ``never`` is inf where allowed. Raises `errors.QuantityError`."""
    if may_be_never and text.strip().lower() == "never":
        return math.inf
    read = units.parse_duration(text, name=flag) / 60.0
    if positive and read <= 0:
        raise errors.QuantityError(f"{flag}: {text!r} must be above 0", hint=f"write it like {units.DURATION_EXAMPLES}")
    return read


def number(text: str, flag: str, *, least: float = 0.0, most: float = math.inf, above: bool = False) -> float:
    """Read a plain number given with `flag`, from `least` (or above it) to `most`. Raises `errors.QuantityError`."""
    if not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text.strip(), re.ASCII):
        raise errors.QuantityError(f"{flag}: cannot read {text!r} as a number", hint="write it like 8 or 0.5")
    read = float(text)
    if not least <= read <= most or math.isinf(read) or (above and read == least):
        wanted = f"above {least:g}" if above else f"{least:g} or more" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise errors.QuantityError(f"{flag}: {text!r} is out of range", hint=f"it must be {wanted}")
    return read


def require_analysis() -> None:
    """Raise `errors.MissingExtra` where NumPy, which every computation here needs, is not installed."""
    try:
        import numpy  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise errors.MissingExtra("this needs NumPy, which is not installed", hint="pip install 'perdure[advise]'") from error
