"""The plan on paper: frozen records of `evaluation.toml`, and `load`. Called by every command of an evaluation.

A plan may be unfinished: what is missing is None or empty here, and `completeness` says what a lock still needs. What is written is
checked when it is read, however: an unknown key, a value out of range or a pattern that does not compile is an error. Durations are
seconds (`…_s`). Each value carries its meaning (`description`), from which the errors take their words.
"""

from __future__ import annotations

import datetime
import math
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from perdure import errors
from perdure.evaluation import typed_toml
from perdure.model.evaluation import FORMAT, FaultKind, MeasureKind, Threshold

Text = Annotated[str, Meta(min_length=1, max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
"""Without spaces and slashes."""
Argv = tuple[Text, ...]
"""A command and its arguments; no shell reads it."""
Seconds = Annotated[float, Meta(ge=0, le=366 * 86400)]
Span = Annotated[float, Meta(gt=0, le=366 * 86400)]
"""A duration in seconds above 0; a year is the longest."""
Positive = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(gt=0, le=3600)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Instant = Annotated[datetime.datetime, Meta(tz=True)]
Body = Annotated[str, Meta(max_length=1 << 20)]


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all tables of a plan: figures are finite."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
                raise ValueError(f"{field} must be a finite number")


class Header(Part, frozen=True, kw_only=True):
    """``[evaluation]``."""

    name: Annotated[Name, Meta(description="what this evaluation is called: letters, digits, dots, dashes and underscores")]
    format: Annotated[int, Meta(ge=1, le=FORMAT, description=f"version of this file's format; this Perdure knows {FORMAT}")]


class Progress(Part, frozen=True, kw_only=True):
    """``[workload.progress]``: the workload's own counter, the signal that useful work is being done."""

    kind: Annotated[Literal["log", "file", "http", "metrics"], Meta(description="where the workload's own counter is read")] = "log"
    pattern: Annotated[
        Text | None, Meta(description="regular expression with one group, the number; needed for log, else the first number")
    ] = None
    path: Annotated[Text | None, Meta(description="for file: the file; for log: a log file instead of what the command prints")] = None
    url: Annotated[Text | None, Meta(description="for http and metrics: the address that is asked, on this node")] = None
    metric: Annotated[Text | None, Meta(description="for metrics: the name of the value, labels included if it has any")] = None
    unit: Annotated[Text, Meta(description="what the counter counts, in the singular")] = "step"
    target: Annotated[
        Positive | None, Meta(description="counter at which the work is done; else it is done when the command ends with 0")
    ] = None
    heartbeat_s: Annotated[Span, Meta(description="silence of the counter after which the workload counts as hung, seconds")] = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pattern(self.pattern, groups=1)
        _need(self.kind, log=("pattern",), file=("path",), http=("url",), metrics=("url", "metric"), of=self)


class OwnCheckpoint(Part, frozen=True, kw_only=True):
    """``[workload.own_checkpoint]``: which counter survives a fault without Perdure."""

    kind: Annotated[Literal["none", "log", "file"], Meta(description="how one sees that the workload saved itself")] = "none"
    pattern: Annotated[
        Text | None, Meta(description="regular expression with one group, the saved counter: in the log, or in the file's name")
    ] = None
    glob: Annotated[Text | None, Meta(description="for file: pattern of the names of its checkpoints, from the working directory")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pattern(self.pattern, groups=1)
        _need(self.kind, none=(), log=("pattern",), file=("glob", "pattern"), of=self)


class Ready(Part, frozen=True, kw_only=True):
    """``[workload.ready]``: the state at which both clocks of a cold start end."""

    kind: Annotated[Literal["log", "file", "http", "command"], Meta(description="how one sees that it is ready to serve")] = "log"
    pattern: Annotated[Text | None, Meta(description="for log: regular expression that the ready line matches")] = None
    path: Annotated[Text | None, Meta(description="for file: the file that appears")] = None
    url: Annotated[Text | None, Meta(description="for http: the address that answers with status 200")] = None
    command: Annotated[Argv, Meta(description="for command: ends with 0 when it is ready")] = ()
    timeout_s: Annotated[Span, Meta(description="longest wait, seconds")] = 1800.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_pattern(self.pattern, groups=0)
        _need(self.kind, log=("pattern",), file=("path",), http=("url",), command=("command",), of=self)


class Request(Part, frozen=True, kw_only=True):
    """One ``[[workload.requests]]``: sent before and after a restore; the answers must be the same."""

    url: Annotated[Text, Meta(description="address to ask")]
    method: Annotated[Literal["GET", "POST"], Meta(description="HTTP method")] = "GET"
    body: Annotated[Body | None, Meta(description="what is sent")] = None
    content_type: Annotated[Text, Meta(description="type of what is sent")] = "application/json"


class Workload(Part, frozen=True, kw_only=True):
    """``[workload]``: what its owners really run."""

    command: Annotated[Argv, Meta(description="the command that its owners really run, as a list")] = ()
    working_directory: Annotated[Text | None, Meta(description="where it runs, an absolute path")] = None
    owner: Annotated[Text | None, Meta(description="who runs it in earnest: a person or a group")] = None
    made_for_evaluation: Annotated[
        bool | None, Meta(description="true when nobody ran it before this evaluation; the report then says so in its headline")
    ] = None
    setup: Annotated[Argv, Meta(description="command to run before each run, such as one that empties the output folder")] = ()
    gpus: Annotated[int, Meta(ge=0, le=1_000_000, description="GPUs that it uses in all; 0: work is counted in node-hours")] = 0
    nodes: Annotated[int, Meta(ge=1, le=1_000_000, description="nodes that it uses")] = 1
    progress: Progress | None = None
    own_checkpoint: OwnCheckpoint | None = None
    ready: Ready | None = None
    requests: tuple[Request, ...] = ()


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
    ] = {}


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


def _check_pattern(pattern: str | None, *, groups: int) -> None:
    if pattern is None:
        return
    try:
        found = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"pattern is not a regular expression: {error}") from error
    if groups and found != groups:
        raise ValueError(f"pattern has {found} groups: it needs one, around the number, such as 'step ([0-9]+)'")


def _need(kind: str, *, of: Part, **keys: tuple[str, ...]) -> None:
    for key in keys[kind]:
        if not getattr(of, key):
            raise ValueError(f'kind = "{kind}" needs {key}')
