"""`perdure slurm seat`: what the shim starts in a job's task; not for people."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure import errors


def seat(
    *,
    uid: Annotated[int, Parameter(help="User of the job.")],
    gid: Annotated[int, Parameter(help="Its group.")],
    groups: Annotated[str, Parameter(help="Its groups, with commas.")] = "",
    job: Annotated[int, Parameter(help="Number of the job.")],
    step: Annotated[str, Parameter(help="batch, or the step's number.")],
    task_pid: Annotated[int, Parameter(help="The task's process, our parent.")],
    options: Annotated[str, Parameter(help="The job's options, as it wrote them.")] = "",
    default: Annotated[tuple[str, ...], Parameter(negative="", help="The site's option KEY=VALUE. Repeatable.")] = (),
) -> int:
    """Keep one task of a job. Started by the shim, with its socket as descriptor 3; people have no use for it."""
    from perdure.model.checkpoint import Owner
    from perdure.slurm import seat as seats

    try:
        members = tuple(sorted({int(word) for word in groups.split(",") if word}))
    except ValueError as error:
        raise errors.UsageError(f"--groups: {groups!r} are no groups", hint="this command is for the shim") from error
    facts = seats.Facts(
        owner=Owner(uid=uid, gid=gid, groups=members),
        job=job,
        step=step,
        task_pid=task_pid,
        own=options,
        defaults=default,
    )
    return seats.sit(facts)
