"""The plan on paper: frozen records of `evaluation.toml`, and `load`. Called by every command of an evaluation.

A plan may be unfinished: what is missing is None or empty here, and `completeness` says what a lock still needs. What is written is
checked when it is read, however: an unknown key, a value out of range or a pattern that does not compile is an error. Durations are
seconds (`…_s`). Each value carries its meaning (`description`), from which the errors take their words.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from perdure import errors
from perdure.evaluation import typed_toml
from perdure.evaluation.plan_part import Argv, Instant, Name, Part, Rate, Seconds, Seed, Span, Text
from perdure.evaluation.plan_workload import Workload
from perdure.model.evaluation import FORMAT, FaultKind, MeasureKind, Threshold


class Header(Part, frozen=True, kw_only=True):
    """``[evaluation]``."""

    name: Annotated[Name, Meta(description="what this evaluation is called: letters, digits, dots, dashes and underscores")]
    format: Annotated[int, Meta(ge=1, le=FORMAT, description=f"version of this file's format; this Perdure knows {FORMAT}")]


class Measured(Part, frozen=True, kw_only=True):
    """``[baseline.measured]``: written by `perdure eval baseline`. The runs themselves are the evidence; `lock` compares."""

    runs: Annotated[tuple[Text, ...], Meta(description="the baseline's runs by id")] = ()
    duration_s: Annotated[Seconds | None, Meta(description="median time from launch to end, seconds")] = None
    ready_s: Annotated[Seconds | None, Meta(description="median time from launch to the first progress, seconds")] = None


class Baseline(Part, frozen=True, kw_only=True):
    """``[baseline]``: what the workload does today, unmanaged, on the same nodes."""

    repetitions: Annotated[int, Meta(ge=1, le=10_000, description="unmanaged runs before the lock; at least 2 show a spread")] = 3
    history: Annotated[
        Text | None, Meta(description="attempts file of the accounting history (perdure history import), if there is one")
    ] = None
    measured: Measured | None = None


class Success(Part, frozen=True, kw_only=True, rename="kebab"):
    """``[success.…]``: the number that each measure must reach, with the reason for it."""

    recovery_time: Threshold | None = None
    work_lost: Threshold | None = None
    utilisation: Threshold | None = None
    overhead: Threshold | None = None

    def __post_init__(self) -> None:
        for threshold in (self.recovery_time, self.work_lost, self.utilisation, self.overhead):
            numbers = () if threshold is None else (threshold.at_most, threshold.ratio_at_most, threshold.at_least, threshold.gain_at_least)
            if any(number is not None and not math.isfinite(number) for number in numbers):
                raise ValueError("the number of a measure must be finite")

    def of(self, kind: MeasureKind) -> Threshold | None:
        """Return the threshold of a measure, None where the plan has none."""
        return getattr(self, kind.name.lower(), None)


class WayOut(Part, frozen=True, kw_only=True):
    """``[exit]``: how the site stops using Perdure and gets its workload back as it was."""

    commands: Annotated[tuple[Argv, ...], Meta(description="the commands that remove Perdure, each a list, in order")] = ()
    who: Annotated[Text | None, Meta(description="who runs them")] = None
    test: Annotated[Argv, Meta(description="command that shows, by 0, that the workload runs without Perdure afterwards")] = ()


class Window(Part, frozen=True, kw_only=True):
    """``[site.window]``: when the evaluation takes place, the same for both arms."""

    start: Annotated[Instant | None, Meta(description="begin, with its offset: 2026-12-01T08:00:00Z")] = None
    end: Annotated[Instant | None, Meta(description="end, with its offset")] = None
    duration_s: Annotated[Span | None, Meta(description="length in seconds, in place of an end")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end is not None and self.duration_s is not None:
            raise ValueError("give an end or duration_s, not both")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError("the end must be after the start")


class Slurm(Part, frozen=True, kw_only=True):
    """``[site.slurm]``: what only this site knows, for runs that Slurm starts."""

    options: Annotated[Argv, Meta(description='options of sbatch in both arms, such as ["--time=60", "--gpus=1"]')] = ()
    lose_node: Annotated[Argv, Meta(description="for node-lost: command that ends {node} at once, as a power cut does")] = ()
    return_node: Annotated[Argv, Meta(description="for node-lost: command that brings {node} back; run when the run needs it no more")] = ()
    exhaust_memory: Annotated[Argv, Meta(description="for out-of-memory: command that lets memory run out for job {job} on {node}")] = ()
    fill_disk: Annotated[Argv, Meta(description="for disk-full: command that fills the disk that job {job} on {node} writes to")] = ()
    free_disk: Annotated[Argv, Meta(description="for disk-full: command that empties it again, before the job runs again")] = ()
    kill_agent: Annotated[
        Argv, Meta(description="for agent-killed: command that ends Perdure's process of job {job} on {node} by SIGKILL")
    ] = ()
    preemptor: Annotated[
        Argv, Meta(description='for preemption: options of sbatch for the job that preempts, such as ["--partition=urgent", "--exclusive"]')
    ] = ()


class Site(Part, frozen=True, kw_only=True):
    """``[site]``: where and how often."""

    where: Annotated[Literal["local", "slurm"], Meta(description="how runs are started")] = "local"
    nodes: Annotated[tuple[Text, ...], Meta(description="names of the nodes; both arms and the baseline run on these")] = ()
    queue: Annotated[Text | None, Meta(description="partition or queue; for local, how the machine is reserved")] = None
    window: Window | None = None
    slurm: Slurm = Slurm()
    repetitions: Annotated[int, Meta(ge=1, le=100_000, description="pairs of runs, one managed and one unmanaged")] = 5
    level: Annotated[float, Meta(ge=0.5, le=0.999, description="two-sided level of all intervals")] = 0.90


class Faults(Part, frozen=True, kw_only=True):
    """``[faults]``: what is broken, where in the work, the same in both arms."""

    seed: Annotated[Seed | None, Meta(description="seed of the schedule; the same seed draws the same faults")] = None
    kinds: Annotated[tuple[FaultKind, ...], Meta(description="kinds that are drawn from")] = ()
    at_progress: Annotated[tuple[float, ...], Meta(description="counters at which one fault each is injected; in place of a rate")] = ()
    rate_per_hour: Annotated[Rate | None, Meta(description="faults per hour of running, drawn; in place of counters")] = None
    grace_s: Annotated[Seconds, Meta(description="for preemption: time between SIGTERM and SIGKILL, seconds")] = 30.0
    time_limit_s: Annotated[Span | None, Meta(description="for time-limit: wall-time limit of one attempt, seconds")] = None
    disk_path: Annotated[
        Text | None,
        Meta(description="for disk-full: empty folder that the workload writes to, else its TMPDIR; a small disk is mounted there"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_progress and self.rate_per_hour is not None:
            raise ValueError("give at_progress or rate_per_hour, not both")
        if any(counter <= 0 for counter in self.at_progress):
            raise ValueError("counters in at_progress must be above 0")
        if FaultKind.TIME_LIMIT in self.kinds and self.time_limit_s is None:
            raise ValueError("the kind time-limit needs time_limit_s")


class Arms(Part, frozen=True, kw_only=True):
    """``[arms]``: the one thing that differs, and how the two sides take turns."""

    managed_options: Annotated[Argv, Meta(description="options of perdure run in the managed arm")] = ()
    order: Annotated[
        Literal["alternating", "side-by-side"], Meta(description="one after the other, the first one alternating; or both at once")
    ] = "alternating"
    warm_up_s: Annotated[Seconds, Meta(description="beginning of each run that is left out of overhead and utilisation, seconds")] = 0.0
    requeue_delay_s: Annotated[
        Seconds, Meta(description="for local: time in the queue before an interrupted run is started again, the same in both arms, seconds")
    ] = 0.0


class Plan(Part, frozen=True, kw_only=True):
    """The whole of `evaluation.toml`."""

    header: Header = msgspec.field(name="evaluation")
    workload: Workload = Workload()
    baseline: Baseline = Baseline()
    success: Success = Success()
    way_out: WayOut = msgspec.field(name="exit", default=WayOut())
    site: Site = Site()
    faults: Faults = Faults()
    arms: Arms = Arms()
    versions: Annotated[
        dict[Name, Argv], Meta(max_length=100, description="name = command; the first line it prints is recorded with every run")
    ] = msgspec.field(default_factory=dict)


def load(path: Path) -> Plan:
    """Read the plan at `path`.

    Raises `errors.InputMissing`, `errors.LinkInPath` and `errors.InputDenied` when it cannot be read, and `errors.InputFormat` when it is
    not a plan: the message names the key and what is wrong, the hint what to write.
    """
    return parse(read(path), source=str(path))


def read(path: Path) -> bytes:
    """Return the bytes of a plan. Raises what `typed_toml.read` raises, with what to do when there is none."""
    try:
        return typed_toml.read(path)
    except errors.InputMissing as error:
        raise errors.InputMissing(
            f"there is no plan at {path}", hint="perdure eval init writes one; --dir names the folder of an evaluation"
        ) from error


def parse(content: bytes, *, source: str) -> Plan:
    """Read a plan from the bytes of a file that errors call `source`. Raises `errors.InputFormat`."""
    return typed_toml.decode(content, Plan, source=source)
