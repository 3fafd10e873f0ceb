"""`perdure decide`: retry or resume for one job, without any history."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from perdure import errors
from perdure.cli import console, cost_flags, quantities
from perdure.cli.cost_flags import CostFlags
from perdure.cli.quantities import Duration, Number, Text
from perdure.model.advice import Interval, JobQuestion, Size, WorkloadKey

if TYPE_CHECKING:
    from perdure.decision.policy import Policy

_MINUTES_PER_1000_DAYS = 1000.0 * 1440.0
_NOT_OF_SERVING = frozenset({"fresh_cost_minutes", "durable_fraction", "deadline_minutes"})
_SERVING = Group("Serving (with --serving)", sort_key=20)


@Parameter(name="*", group=_SERVING)
@dataclasses.dataclass(frozen=True)
class ServingFlags:
    """What a serving worker holds."""

    serving: Annotated[bool, Parameter(negative="", help="Decide about a serving worker; --work is how long it is to serve.")] = False
    sessions: Annotated[Number | None, Parameter(help="Live sessions.")] = None
    context_tokens: Annotated[Number | None, Parameter(help="Context tokens of a session before its turns.")] = None
    prefill_rate: Annotated[Number | None, Parameter(help="Tokens that the worker prefills a second, all sessions together.")] = None
    load_time: Annotated[Duration | None, Parameter(help="Start-up of the worker until it can prefill, such as 25m.")] = None
    turns: Annotated[Number, Parameter(help="Turns that each session has taken.")] = "0"
    tokens_per_turn: Annotated[Number, Parameter(help="Tokens that a turn adds to a session's context.")] = "0"
    turn_every: Annotated[Duration | None, Parameter(help="Time between two turns of a session, such as 1m.")] = None


def decide(
    *,
    work: Annotated[Duration, Parameter(help="Uninterrupted run time still to do, such as 24h or 1-12:00:00.")],
    gpus: Annotated[Number | None, Parameter(help="GPUs of the job. [default: 1, without --nodes]")] = None,
    nodes: Annotated[Number | None, Parameter(help="Nodes of the job; its size where it has no GPUs.")] = None,
    mttf: Annotated[Duration | None, Parameter(help="Mean time to interruption of a job of this size; 'never' for none.")] = None,
    mttf_interval: Annotated[Text | None, Parameter(help="Its interval: LOW,HIGH; HIGH may be 'never'.")] = None,
    rate: Annotated[Number | None, Parameter(help="Instead of --mttf: interruptions per 1000 node-days.")] = None,
    gpus_per_node: Annotated[Number, Parameter(help="For --rate with --gpus.")] = "8",
    limit: Annotated[Duration | None, Parameter(help="Wall-time limit of one attempt.")] = None,
    user_failure_share: Annotated[Number | None, Parameter(help="Share of its GPU-hours that ended by its own failure, 0 to 1.")] = None,
    deadline: Annotated[Duration | None, Parameter(help="The result is wanted this long from now.")] = None,
    policy: Annotated[Path | None, Parameter(help="Policy file (TOML): costs, prices and deadlines, also per workload.")] = None,
    costs: CostFlags = CostFlags(),
    serving: ServingFlags = ServingFlags(),
    common: console.Common = console.Common(),
) -> None:
    """Decide for one job, without any history: run it again after an interruption, or resume it from checkpoints?

    Durations read 90s, 2m, 7.9h, 47.7d, 1h30m or 1-02:03:04.

    A large job: `perdure decide --gpus 1024 --work 24h --mttf 7.9h`

    From a rate, under a limit: `perdure decide --gpus 512 --work 3d --rate 6.5 --limit 24h --checkpoint-cost 4m`

    With a deadline: `perdure decide --gpus 8 --work 20h --mttf 47.7d --deadline 22h`

    A serving worker: `perdure decide --gpus 8 --work 30d --mttf 20d --serving --sessions 200 --context-tokens 30000
    --prefill-rate 20000 --load-time 25m`
    """
    size = _size(gpus, nodes)
    work_minutes = quantities.minutes(work, "--work")
    mttf_minutes = _mttf(mttf, rate, gpus, nodes, gpus_per_node)
    interval = _interval(mttf_interval, mttf_minutes)
    limit_minutes = None if limit is None else quantities.minutes(limit, "--limit")
    own = None if user_failure_share is None else quantities.number(user_failure_share, "--user-failure-share", most=1.0)
    setting = console.load_settings(common, policy=str(policy) if policy else None)["policy"]
    chosen = cost_flags.resolve(costs, setting, deadline=deadline)
    key = WorkloadKey("", "", "", "", size)
    job = JobQuestion(
        work_minutes,
        mttf_minutes,
        interval,
        size,
        chosen.costs_for(key),
        limit_minutes,
        chosen.deadline_for(key),
        own,
    )
    quantities.require_analysis()
    answer = _serve(job, serving) if serving.serving else _decide(job, serving)
    _print(job, answer, chosen, key, common)


def _decide(job: JobQuestion, serving: ServingFlags) -> dict[str, Any]:
    if serving != ServingFlags():
        raise errors.UsageError("session options are for serving workers", hint="add --serving, or leave them out")
    from perdure.decision.saving import saving
    from perdure.decision.verdict import decide as decide_job

    verdict = decide_job(job)
    return {"verdict": verdict, "saving": saving(job, verdict)}


def _serve(job: JobQuestion, flags: ServingFlags) -> dict[str, Any]:
    from perdure.decision.saving import saving
    from perdure.decision.serving import ServingQuestion, Sessions, decide_serving, rebuild

    for name in ("sessions", "context_tokens", "prefill_rate", "load_time"):
        if getattr(flags, name) is None:
            raise errors.UsageError(f"--serving needs --{name.replace('_', '-')}", hint="see perdure decide --help")
    sessions = Sessions(
        quantities.number(flags.sessions or "", "--sessions"),
        quantities.number(flags.context_tokens or "", "--context-tokens"),
        quantities.number(flags.prefill_rate or "", "--prefill-rate", above=True),
        quantities.minutes(flags.load_time or "", "--load-time", positive=False),
        quantities.number(flags.turns, "--turns"),
        quantities.number(flags.tokens_per_turn, "--tokens-per-turn"),
        None if flags.turn_every is None else quantities.minutes(flags.turn_every, "--turn-every"),
    )
    question = ServingQuestion(sessions, job.mttf_minutes, job.work_minutes, job.mttf_interval, job.size, job.costs)
    verdict = decide_serving(question)
    return {"verdict": verdict, "saving": saving(job, verdict), "serving": rebuild(sessions)}


def _print(job: JobQuestion, answer: dict[str, Any], policy: Policy, key: WorkloadKey, common: console.Common) -> None:
    unused = _NOT_OF_SERVING if "serving" in answer else frozenset[str]()
    assumptions = [one for one in policy.assumptions(key) if one.name not in unused]
    if common.json:
        verdict = answer.pop("verdict")
        fields = {name: getattr(verdict, name) for name in verdict.__struct_fields__}
        console.print_json({"schema": 1} | fields | answer | {"question": job, "assumptions": assumptions})
        return
    from perdure.cli import decision_text

    decision_text.show(job, answer, assumptions)


def _size(gpus: str | None, nodes: str | None) -> Size:
    if gpus is not None:
        return Size(quantities.number(gpus, "--gpus", above=True), "gpu")
    if nodes is not None:
        return Size(quantities.number(nodes, "--nodes", above=True), "node")
    return Size(1.0, "gpu")


def _mttf(mttf: str | None, rate: str | None, gpus: str | None, nodes: str | None, gpus_per_node: str) -> float:
    if (mttf is None) == (rate is None):
        raise errors.UsageError("give --mttf or --rate, one of them", hint="see perdure decide --help")
    if mttf is not None:
        return quantities.minutes(mttf, "--mttf", may_be_never=True)
    per_1000_node_days = quantities.number(rate or "", "--rate", above=True)
    if nodes is not None:
        count = quantities.number(nodes, "--nodes", above=True)
    elif gpus is not None:
        # A job on part of a node is exposed to all of it.
        count = max(quantities.number(gpus, "--gpus", above=True) / quantities.number(gpus_per_node, "--gpus-per-node", above=True), 1.0)
    else:
        raise errors.UsageError("--rate needs the job's size", hint="give --nodes or --gpus")
    return _MINUTES_PER_1000_DAYS / (per_1000_node_days * count)


def _interval(text: str | None, mttf_minutes: float) -> Interval | None:
    if text is None:
        return None
    low, comma, high = text.partition(",")
    if not comma:
        raise errors.UsageError(f"--mttf-interval: cannot read {text!r}", hint="write it like 5h,12h")
    interval = Interval(quantities.minutes(low, "--mttf-interval"), quantities.minutes(high, "--mttf-interval", may_be_never=True))
    if not interval.low <= mttf_minutes <= interval.high:
        raise errors.UsageError("--mttf-interval: does not hold the time between interruptions itself", hint="give LOW,HIGH around --mttf")
    return interval
