"""`perdure restore`: go on with a workload from a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from perdure import errors
from perdure.cli import agent_run, agent_side, console, keep
from perdure.model.checkpoint import CheckpointId, check_name


def restore(
    name: keep.Name,
    *,
    from_: Annotated[str | None, Parameter(name="--from", help="Checkpoint, such as train@3.12. Default: the newest good one.")] = None,
    store: Annotated[str | None, Parameter(help="Store to take it from. Default: the workload's own.")] = None,
    key_file: Annotated[str | None, Parameter(help="Key file of an encrypted store.")] = None,
    cpu_check: Annotated[
        Literal["features", "strict", "off"] | None,
        Parameter(help="What of the processor has to be there: features that programs use, all, or none. Default: setting cpu-check."),
    ] = None,
    end_time: Annotated[str | None, Parameter(help="When the allotted time ends. Default: SLURM_JOB_END_TIME.")] = None,
    detach: Annotated[bool, Parameter(name=["--detach", "-d"], negative="", help="In the background; see perdure logs -f.")] = False,
    events: Annotated[Path | None, Parameter(help="File to which every event is added as a line of JSON.")] = None,
    common: console.Common = console.Common(),
) -> int:
    """Go on with a workload from a checkpoint, kept as it was before. Also one that was completed, with --from.

    For example:

      perdure restore train --from train@3.12
    """
    check_name(name)
    origin = CheckpointId.parse(from_) if from_ is not None else None
    if origin is not None and origin.workload != name:
        raise errors.UsageError(f"{origin} is no checkpoint of {name}", hint="perdure store ls shows which there are")
    values = console.load_settings(common, store=store, key_file=key_file, cpu_check=cpu_check)
    end = keep.end_ns(end_time, os.environ)
    agent = agent_side.find(values)
    if agent is not None:
        agent_side.refuse(values, "store", "key-file")
        options: list[agent_run.Option] = [
            ("name", name),
            ("from", from_),
            ("must-resume", "1"),
            ("cpu-check", cpu_check),
            ("detach", agent_run.flag(detach)),
            ("end-ns", str(end) if end is not None else None),
        ]
        return agent_run.run(agent.path, (), dict(os.environ), options, common, events=events)
    from perdure.supervisor import start
    from perdure.supervisor.wanted import Wanted

    wanted = Wanted(
        name=name,
        command=(),
        working_directory=os.getcwd(),
        environment=dict(os.environ),
        options=None,
        origin=origin,
        must_resume=True,
        end_ns=end,
    )
    try:
        return start.run(wanted, keep.setup(values, keep.where(values)), detach=detach, voice=keep.voice(common, events))
    except errors.EnvironmentUnfit as error:
        raise agent_side.without(error, values) from error
