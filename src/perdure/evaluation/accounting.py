"""What Slurm tells of a job, read: squeue's line while it lives, and the accounting's attempts afterwards. Called by `slurm_run`. Pure.

Both arms are read by these lines alone. Times are seconds since 1970 by the controller's clock, whole ones.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import msgspec

FIELDS = "JobIDRaw,State,Submit,Eligible,Start,End,ElapsedRaw,NNodes,NodeList,AllocTRES,ExitCode,TRESUsageInAve"
"""What sacct is asked for; no text that a user can choose is among them."""

Phase = Literal["waits", "runs", "ends", "over", "held"]

_PHASES: dict[str, Phase] = {
    "PENDING": "waits",
    "REQUEUED": "waits",
    "CONFIGURING": "runs",
    "RUNNING": "runs",
    "SIGNALING": "runs",
    "STAGE_OUT": "runs",
    "SUSPENDED": "runs",
    "STOPPED": "runs",
    "RESIZING": "runs",
    "COMPLETING": "ends",
    "REQUEUE_HOLD": "held",
    "SPECIAL_EXIT": "held",
}
"""All other states are ends."""
_HELD = "0"
"""Priority of a job that is held, for whatever reason. The reason itself may be that of the end before, until the job is looked at anew."""


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the controller shows it."""

    state: str
    phase: Phase
    restarts: int
    node: str
    """Where it runs, empty while it does not."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job, as the accounting keeps it."""

    state: str
    submit_s: float | None
    start_s: float | None
    """None: it never ran."""
    end_s: float | None
    elapsed_s: float
    nodes: int
    node_list: str
    gpus: int
    exit_status: int
    exit_signal: int
    device: float | None = None
    """Share of its time in which its GPUs were busy, 0 to 1, where the site has that measured."""


def look(line: str) -> Look | None:
    """Read squeue's line of `slurm_programs.LOOK`; None for anything else, such as an empty one."""
    columns = [column.strip() for column in line.strip().split("|")]
    if len(columns) < 4 or not columns[0] or not columns[1].isdigit():
        return None
    state = columns[0].upper()
    phase = _PHASES.get(state, "over")
    if phase == "waits" and columns[3] == _HELD:
        phase = "held"
    node = "" if columns[2] in ("", "(null)", "None assigned") else columns[2]
    return Look(state=state, phase=phase, restarts=int(columns[1]), node=node)


def attempts(text: str) -> tuple[Attempt, ...]:
    """Read sacct's lines of `FIELDS`, one attempt each with its steps behind it; returns the attempts by their start, unstarted ones last.

    Lines that are none are left out: sacct says nothing else on its standard output.
    """
    found: list[Attempt] = []
    for line in text.splitlines():
        columns = line.split("|")
        if len(columns) != len(FIELDS.split(",")):
            continue
        if "." not in columns[0]:
            found.append(_attempt(columns))
        elif found and (device := _device(columns[-1])) is not None:
            found[-1] = msgspec.structs.replace(found[-1], device=max(device, found[-1].device or 0.0))
    return tuple(sorted(found, key=lambda one: (one.start_s is None, one.start_s or 0.0, one.submit_s or 0.0)))


def ran(found: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    """Return the attempts that ran."""
    return tuple(one for one in found if one.start_s is not None and one.node_list)


def allocated_s(found: tuple[Attempt, ...]) -> float:
    """Return the seconds for which the job held its nodes, over all attempts."""
    return sum(one.elapsed_s for one in ran(found))


def device(found: tuple[Attempt, ...]) -> float | None:
    """Return the share of time in which the GPUs were busy, weighed by time; None unless every attempt that ran tells."""
    told = [(one.device, one.elapsed_s) for one in ran(found)]
    weight_s = sum(elapsed_s for _, elapsed_s in told)
    if weight_s <= 0 or any(share is None for share, _ in told):
        return None
    return sum((share or 0.0) * elapsed_s for share, elapsed_s in told) / weight_s


def _attempt(columns: list[str]) -> Attempt:
    _, state, submit, _eligible, start, end, elapsed, nodes, node_list, resources, code, _usage = columns
    status, _, number = code.partition(":")
    return Attempt(
        state=state.partition(" ")[0],
        submit_s=_time(submit),
        start_s=_time(start),
        end_s=_time(end),
        elapsed_s=float(elapsed) if elapsed.isdigit() else 0.0,
        nodes=int(nodes) if nodes.isdigit() else 0,
        node_list="" if node_list == "None assigned" else node_list,
        gpus=_gpus(resources),
        exit_status=int(status) if status.isdigit() else 0,
        exit_signal=int(number) if number.isdigit() else 0,
    )


def _time(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


def _gpus(resources: str) -> int:
    """Return the GPUs in ``billing=4,cpu=4,gres/gpu=2,gres/gpu:a100=2,node=1``."""
    for part in resources.split(","):
        name, _, count = part.partition("=")
        if name == "gres/gpu" and count.isdigit():
            return int(count)
    return 0


def _device(usage: str) -> float | None:
    """Return the share in ``cpu=00:01:00,gres/gpuutil=85``."""
    for part in usage.split(","):
        name, _, percent = part.partition("=")
        if name == "gres/gpuutil":
            with contextlib.suppress(ValueError):
                return min(max(float(percent) / 100, 0.0), 1.0)
    return None
