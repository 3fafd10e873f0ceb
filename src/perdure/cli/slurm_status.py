"""`perdure slurm status`: the nodes that take part and the jobs that are opted in."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from perdure import errors
from perdure.base import units
from perdure.cli import console

if TYPE_CHECKING:
    from perdure.slurm.overview import Job


def status(
    *,
    all_: Annotated[bool, Parameter(name="--all", negative="", help="Jobs whose newest life has ended, too.")] = False,
    common: console.Common = console.Common(),
) -> None:
    """Show the opted-in jobs of all users, their lives and newest checkpoints, and the nodes they run on. For root.

    It is read from the store. A job whose node is dead is shown as running until another node has taken it over. Users see what is theirs
    with perdure ps.

    For example:

      sudo perdure slurm status --json
    """
    from perdure.agent import site
    from perdure.slurm import overview

    if os.geteuid() != 0:
        raise errors.InputDenied("may not look at other users' jobs", hint="perdure ps shows yours; run this as root")
    jobs = overview.look(site.read(os.environ))
    shown = [job for job in jobs if all_ or job.ended is None]
    now_ns = time.time_ns()
    if common.json:
        console.print_json({"nodes": _nodes(jobs), "jobs": [_document(job, now_ns) for job in shown]})
        return
    console.out().print(_nodes_table(_nodes(jobs)))
    if shown:
        console.out().print()
        console.out().print(_jobs_table(shown, now_ns))


def _nodes(jobs: tuple[Job, ...]) -> list[dict[str, Any]]:
    """Return the nodes that a job's newest life ran on, and how many run there now."""
    names = sorted({job.node for job in jobs})
    return [
        {
            "name": name,
            "running": sum(job.node == name and job.ended is None for job in jobs),
            "last_start_ns": max(job.started_ns for job in jobs if job.node == name),
        }
        for name in names
    ]


def _document(job: Job, now_ns: int) -> dict[str, Any]:
    return {
        "workload": job.workload,
        "cluster": job.cluster,
        "job": job.job,
        "step": job.step,
        "uid": job.uid,
        "node": job.node,
        "epoch": job.epoch,
        "ended": job.ended,
        "checkpoint": str(job.checkpoint) if job.checkpoint else None,
        "checkpoint_age_s": round(max(now_ns - job.saved_ns, 0) / 1e9, 3) if job.saved_ns is not None else None,
        "stored_bytes": job.stored_bytes,
    }


def _nodes_table(nodes: list[dict[str, Any]]) -> Table:
    table = Table("node", "running now", box=None, pad_edge=False)
    for node in nodes:
        table.add_row(console.printable(node["name"]), str(node["running"]))
    return table


def _jobs_table(jobs: list[Job], now_ns: int) -> Table:
    table = Table("job", "step", "user", "node", "epoch", "state", "last", "age", "stored", box=None, pad_edge=False)
    for job in jobs:
        last = (
            (
                f"{job.checkpoint.epoch}.{job.checkpoint.sequence}",
                units.format_duration(max(now_ns - job.saved_ns, 0) / 1e9),
                units.format_size(job.stored_bytes or 0),
            )
            if job.checkpoint is not None and job.saved_ns is not None
            else ("-", "-", "-")
        )
        state = "running" if job.ended is None else console.printable(job.ended)
        table.add_row(str(job.job), job.step, str(job.uid), console.printable(job.node), str(job.epoch), state, *last)
    return table
