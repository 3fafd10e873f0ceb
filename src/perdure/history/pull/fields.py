"""Which fields to ask sacct for: those that the attempts table can hold and this version of Slurm has.

An unknown name makes sacct refuse the whole question (``Invalid field requested``), and names came and went: SubmitLine
in 21.08, Planned for Reserved and FailedNode in 23.02, Restarts in 24.11. So ``sacct --helpformat`` is asked first.
Free text that no analysis reads (comments, Extra, WCKey) is not asked for at all.
"""

from __future__ import annotations

import re

import msgspec

from perdure import errors

REQUIRED = ("JobID", "JobIDRaw", "Submit", "Start", "End", "ElapsedRaw", "State")
"""Without these there is no attempt. Every Slurm since 20.11 has them."""

WANTED: tuple[tuple[str, ...], ...] = (
    ("Cluster",),
    ("DBIndex",),
    ("JobID",),
    ("JobIDRaw",),
    ("UID",),
    ("Submit",),
    ("Eligible",),
    ("Start",),
    ("End",),
    ("ElapsedRaw",),
    ("Suspended",),
    ("TimelimitRaw",),
    ("State",),
    ("ExitCode",),
    ("NNodes",),
    ("AllocNodes",),
    ("AllocCPUS",),
    ("ReqTRES",),
    ("AllocTRES",),
    ("NodeList",),
    ("FailedNode",),
    ("Restarts",),
    ("Planned", "Reserved"),
    ("User",),
    ("Account",),
    ("Partition",),
    ("QOS",),
    # What users write comes last: a delimiter or a line break in it then cannot shift another column.
    ("WorkDir",),
    ("SubmitLine",),
    ("JobName",),
)
"""What is asked for, in this order; alternatives are names of the same thing, newest first."""

WHAT_IS_LOST = {
    "SubmitLine": "dependencies and GPU requests written on the command line (Slurm 21.08 and later)",
    "FailedNode": "which node failed (Slurm 23.02 and later)",
    "Restarts": "attempts that are missing from the history (Slurm 24.11 and later)",
    "DBIndex": "an exact identity of each record",
}


class Fields(msgspec.Struct, frozen=True):
    """The fields of a pull: `names` are asked for, `missing` (newest names) this sacct does not have."""

    names: tuple[str, ...]
    missing: tuple[str, ...]


def parse_helpformat(text: str) -> frozenset[str]:
    """Return the field names that ``sacct --helpformat`` printed: words in columns, padded with blanks."""
    return frozenset(re.findall(r"[A-Za-z][A-Za-z0-9_]*", text))


def choose(available: frozenset[str]) -> Fields:
    """Choose from `available` what to ask for.

    Slurm reads names without regard to case; they are returned as this module spells them.

    Raises `errors.Unsupported` when a required field is not among them.
    """
    known = {name.casefold() for name in available}
    names, missing = [], []
    for alternatives in WANTED:
        found = next((name for name in alternatives if name.casefold() in known), None)
        if found is None:
            missing.append(alternatives[0])
        else:
            names.append(found)
    lacking = [name for name in REQUIRED if name not in names]
    if lacking:
        raise errors.Unsupported(
            f"this sacct does not have the fields {', '.join(lacking)}",
            hint="is it Slurm's sacct, 20.11 or later? Compare: sacct --helpformat",
        )
    return Fields(tuple(names), tuple(missing))
