"""What a code is. Called by the modules that list them."""

from __future__ import annotations

import msgspec

from perdure.model.finding import Severity


class Code(msgspec.Struct, frozen=True):
    """One kind of finding. `remedy` may be empty where nothing can be done but wait or do without."""

    name: str
    severity: Severity
    meaning: str
    """What it says of a workload or a machine, and why that matters, as a sentence without a full stop."""
    remedy: str


class Group(msgspec.Struct, frozen=True):
    """Codes that are looked for together, with a heading for the reference page."""

    title: str
    codes: tuple[Code, ...]
