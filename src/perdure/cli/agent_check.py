"""`perdure check` of an ordinary user, through the agent: only root sees all that CRIU would meet. Called by `check`."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from perdure import errors
from perdure.agent import asked
from perdure.base.proc import process
from perdure.checkpoint.host import gpu
from perdure.cli import agent_side, console, findings
from perdure.model.checkpoint import check_name
from perdure.model.finding import Finding


def check(
    agent: agent_side.Agent,
    common: console.Common,
    target: str | None,
    restore: str | None,
    *,
    outputs: tuple[str, ...],
    tcp: Literal["close", "keep"],
    cpu_check: Literal["features", "strict", "off"] | None,
) -> None:
    """Ask what would prevent saving `target`, or restoring `restore` here, and show it. Raises `errors.Findings` for a problem."""
    if restore is not None:
        answer = agent.ask(asked.CheckRestore(checkpoint=restore, cpu_check=cpu_check, cuda_visible=gpu.own()))
        what, extra = answer["checkpoint"], {"checkpoint": answer["checkpoint"]}
        nothing, refused = f"nothing prevents restoring {what} here", f"{what} cannot be restored here"
    else:
        answer = agent.ask(_wanted(str(target), outputs, tcp))
        what, extra = f"process {answer['pid']}", {"pid": answer["pid"]}
        nothing, refused = f"nothing prevents a checkpoint of {what}", f"{what} cannot be saved now"
    found = msgspec.convert(answer["findings"], tuple[Finding, ...])
    findings.show(common, found, nothing=nothing, **extra)
    findings.refuse_problems(found, what=refused, hint="each problem says what helps")


def _wanted(target: str, outputs: tuple[str, ...], tcp: Literal["close", "keep"]) -> asked.Check:
    paths = tuple(os.path.abspath(path) for path in outputs)
    if not target.isascii() or not target.isdigit():
        return asked.Check(name=check_name(target), outputs=paths, tcp=tcp)
    pid = int(target)
    try:
        # With its start it is this very process, whatever has its number when the agent looks.
        return asked.Check(pid=pid, start_ticks=process.stat(pid).start_ticks, outputs=paths, tcp=tcp)
    except errors.ProcessGone as error:
        raise errors.WorkloadMissing(f"there is no process {pid} of yours", hint="see ps -ef") from error
