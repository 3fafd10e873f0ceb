"""``[workload]`` of a plan: what its owners run, and how it is watched. Called by `plan`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from perdure.evaluation.plan_part import Argv, Body, Part, Positive, Span, Text, check_pattern, need


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
        check_pattern(self.pattern, groups=1)
        need(self.kind, log=("pattern",), file=("path",), http=("url",), metrics=("url", "metric"), of=self)


class OwnCheckpoint(Part, frozen=True, kw_only=True):
    """``[workload.own_checkpoint]``: which counter survives a fault without Perdure."""

    kind: Annotated[Literal["none", "log", "file"], Meta(description="how one sees that the workload saved itself")] = "none"
    pattern: Annotated[
        Text | None, Meta(description="regular expression with one group, the saved counter: in the log, or in the file's name")
    ] = None
    glob: Annotated[Text | None, Meta(description="for file: pattern of the names of its checkpoints, from the working directory")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern(self.pattern, groups=1)
        need(self.kind, none=(), log=("pattern",), file=("glob", "pattern"), of=self)


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
        check_pattern(self.pattern, groups=0)
        need(self.kind, log=("pattern",), file=("path",), http=("url",), command=("command",), of=self)


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
