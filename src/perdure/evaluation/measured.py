"""Write the measured baseline into the plan, where a reader looks for it. Called by `perdure eval baseline`.

The plan is a person's file: everything else in it stays as it is, but for empty lines at its end. The runs themselves remain the evidence;
`lock` compares the two.
"""

from __future__ import annotations

import re

import msgspec

from perdure import errors
from perdure.base import files
from perdure.evaluation import canonical, evidence
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.evaluation.folder import Folder
from perdure.evaluation.plan import Measured, Plan
from perdure.evaluation.template import toml

_NOTE = "# Measured by perdure eval baseline; the runs are in runs.jsonl.\n"
_BLOCK = re.compile(
    rf"\n?(?:{re.escape(_NOTE)})?^\[baseline\.measured\][^\n]*\n(?:(?:runs|duration_s|ready_s) = [^\n]*(?:\n|\Z))*", re.MULTILINE
)


def record(folder: Folder) -> Measured:
    """Write the medians of the baseline's runs into the plan's ``[baseline.measured]``, atomically, and return them.

    Raises `errors.UsageError` when the plan is locked already, `errors.InputFormat` when the table cannot be put in without changing
    something else, and what reading and writing raise.
    """
    if folder.lock.exists():
        raise errors.UsageError(f"{folder.plan} is locked: its baseline stays", hint="perdure eval amend records a change, with its reason")
    content = plans.read(folder.plan)
    plan = plans.parse(content, source=str(folder.plan))
    found = evidence.summarise(folder, plan, folders.read_runs(folder))
    measured = Measured(runs=tuple(run.id for run in found.runs), duration_s=_rounded(found.duration_s), ready_s=_rounded(found.ready_s))
    files.write_bytes(folder.plan, insert(content, plan, measured, source=str(folder.plan)))
    return measured


def insert(content: bytes, plan: Plan, measured: Measured, *, source: str) -> bytes:
    """Return `content`, the text of `plan`, with `measured` in place of what was measured before.

    Raises `errors.InputFormat` when the result would not say the same otherwise, such as for a table that is written inline.
    """
    text = content.decode("utf-8")
    text = _BLOCK.sub("", text).rstrip("\n") + "\n"
    rows = "".join(
        f"{field} = {toml(value)}\n"
        for field, value in zip(measured.__struct_fields__, msgspec.structs.astuple(measured), strict=True)
        if value
    )
    changed = f"{text}\n{_NOTE}[baseline.measured]\n{rows}".encode()
    wanted = msgspec.structs.replace(plan, baseline=msgspec.structs.replace(plan.baseline, measured=measured))
    hint = "take the table baseline.measured out of it by hand, and try again"
    try:
        got = plans.parse(changed, source=source)
    except errors.InputFormat as error:
        raise errors.InputFormat(f"{source}: the measured baseline cannot be written into it", hint=hint) from error
    if canonical.content(got) != canonical.content(wanted):
        raise errors.InputFormat(f"{source}: the measured baseline cannot be written into it without changing something else", hint=hint)
    return changed


def _rounded(duration_s: float | None) -> float | None:
    return None if duration_s is None else round(duration_s, 3)
