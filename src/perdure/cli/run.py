"""`perdure run`: start a workload, or go on with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from perdure import errors
from perdure.cli import agent_run, agent_side, console, keep
from perdure.model.checkpoint import check_name


def run(
    *command: Annotated[str, Parameter(help="Command and its arguments, after the options; -- may stand before it.")],
    name: Annotated[str | None, Parameter(help="Name of the workload. Default: made from the command and the working directory.")] = None,
    every: Annotated[str, Parameter(help="Time between two checkpoints: auto, never, or such as 10m.")] = "auto",
    mttf: Annotated[str | None, Parameter(help="Mean time to failure for --every auto, such as 3d. Default: what --rates says.")] = None,
    rates: Annotated[
        str | None,
        Parameter(help="File that perdure advise --rates made: how often workloads of each size fail. Default: a day is assumed."),
    ] = None,
    before_end: Annotated[str | None, Parameter(help="Save and stop this long before the end of the allotted time: auto, or 5m.")] = None,
    end_time: Annotated[str | None, Parameter(help="When that is, such as 2026-11-30T08:00. Default: SLURM_JOB_END_TIME.")] = None,
    store: Annotated[str | None, Parameter(help="Where checkpoints go: a folder, or s3://BUCKET/PREFIX.")] = None,
    key_file: Annotated[str | None, Parameter(help="File of 32 secret bytes or more: the store is encrypted with it.")] = None,
    keep_: Annotated[int, Parameter(name="--keep", help="Checkpoints to keep.")] = 3,
    outputs: Annotated[
        tuple[Path, ...], Parameter(negative="", help="File or folder whose content goes into checkpoints too. Repeatable.")
    ] = (),
    probe: Annotated[
        str | None,
        Parameter(help="Shell command that tells, by 0, that the workload works: after a restore, and before a checkpoint by the clock."),
    ] = None,
    env_file: Annotated[tuple[Path, ...], Parameter(negative="", help="File of KEY=VALUE lines for the environment. Repeatable.")] = (),
    tcp: Annotated[Literal["close", "keep"], Parameter(help="Established connections to others at a restore.")] = "close",
    grace: Annotated[str, Parameter(help="Longest time for saving after SIGTERM.")] = "10m",
    fresh: Annotated[bool, Parameter(negative="", help="Start over, whatever was saved.")] = False,
    adopt: Annotated[int | None, Parameter(help="Keep this running process, with all it started, instead of starting a command.")] = None,
    detach: Annotated[bool, Parameter(name=["--detach", "-d"], negative="", help="In the background; see perdure logs -f.")] = False,
    events: Annotated[Path | None, Parameter(help="File to which every event is added as a line of JSON.")] = None,
    metrics: Annotated[
        Path | None, Parameter(help="File NAME.prom that Prometheus' node exporter reads: figures of this workload.")
    ] = None,
    common: console.Common = console.Common(),
) -> int:
    """Start a workload and save it now and then; the same command again goes on from the newest checkpoint.

    A workload that ended by itself, well or badly, is started anew. Its exit status is passed on. SIGUSR1 saves; SIGTERM saves, stops,
    and ends with 75, so that a scheduler puts the job into its queue again; a second SIGTERM stops at once.

    For example:

      perdure run --every 10m -- python train.py --epochs 90
    """
    from perdure.supervisor.environment import read

    if not command and adopt is None:
        raise errors.UsageError("there is no command to run", hint="write it after --, as in: perdure run -- python train.py")
    if keep_ < 1:
        raise errors.QuantityError(f"--keep: {keep_} is less than 1", hint="the newest checkpoint is always kept")
    end = keep.end_ns(end_time, os.environ)
    if before_end is not None and end is None:
        raise errors.UsageError("--before-end: nobody says when the allotted time ends", hint="give --end-time, or run inside a Slurm job")
    environment = dict(os.environ)
    for path in env_file:
        environment |= read(path, os.environ)
    values = console.load_settings(common, store=store, key_file=key_file, rates=rates)
    if name is not None:
        check_name(name)
    agent = agent_side.find(values)
    if agent is not None:
        agent_side.refuse(values, "store", "key-file", "rates")
        if adopt is not None or metrics is not None:
            raise errors.Unsupported("--adopt and --metrics are root's alone", hint="leave them out; for figures, read --events")
        options: list[agent_run.Option] = [
            ("name", name),
            ("every", every),
            ("mttf", mttf),
            ("before-end", before_end),
            ("keep", str(keep_)),
            *(("outputs", path) for path in keep.absolute(outputs)),
            ("probe", probe),
            ("tcp", tcp),
            ("grace", grace),
            ("fresh", agent_run.flag(fresh)),
            ("detach", agent_run.flag(detach)),
            ("end-ns", str(end) if end is not None else None),
        ]
        return agent_run.run(agent.path, command, environment, options, common, events=events)
    from perdure.supervisor import quantities, rated, start
    from perdure.supervisor.record import Options
    from perdure.supervisor.wanted import Wanted

    if values["rates"].value is not None:
        rated.read(values["rates"].value)  # a wrong one is better told than passed over
    folders = keep.where(values)
    wanted = Wanted(
        name=name,
        command=command,
        working_directory=os.getcwd(),
        environment=environment,
        options=Options(
            every=quantities.every(every),
            mttf_s=quantities.positive(mttf, "--mttf") if mttf is not None else None,
            before_end=quantities.before_end(before_end),
            keep=keep_,
            outputs=keep.absolute(outputs),
            probe=probe,
            tcp=tcp,
            grace_s=quantities.positive(grace, "--grace"),
        ),
        fresh=fresh,
        adopt=adopt,
        end_ns=end,
        metrics=keep.metrics(metrics),
    )
    voice = keep.voice(common, events)
    keep.tell_concerns(voice, start.name_of(wanted), values)
    try:
        return start.run(wanted, keep.setup(values, folders), detach=detach, voice=voice)
    except errors.EnvironmentUnfit as error:
        raise agent_side.without(error, values) from error
