"""Advice for tests of the reports: records put together by hand, with every edge that a report may meet.

The figures are plausible, not computed by the rooms under test: costs as in a worked example, MTTF 381,000 min / GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.model import advice as model
from perdure.model.attempt import Cause

HOSTILE_NAMES = (
    "<script>window.canary=1</script>",
    "<img src=x onerror=window.canary=1>",
    "\"><svg onload=window.canary=1>'",
    "</script><script>window.canary=1</script>",
    "{{ 7*7 }}{% raw %}",
    "=cmd|' /C calc'!A0",
    "+1",
    "@SUM(1)",
    "-2",
    "\ttab=1",
    "\rcr",
    "a;=1+1",
    "\u202egpj.exe",
    "\x1b[31mred\x1b[0m\x07",
    'two\nlines, "quoted"',
    "name " + "x" * 195,
    "训练-モデル-🚀",
    "[bold]markup[/bold] :smile:",
    "",
)

_NAMES = ("pretrain-#b", "finetune-llm", "eval-sweep", "diffusion-#", "rlhf-actor", "protein-fold", "climate-#km", "ablation-#")
_USERS = ("amara", "bjorn", "chen", "dilnoza", "esi")
_ACCOUNTS = ("nlp", "vision", "bio")
_SIZES = (1024, 512, 256, 64, 32, 8, 8, 4, 1)


def outcome(expected: float | None = 1000.0, **changes: Any) -> model.PolicyOutcome:
    """One policy's outcome; None never finishes."""
    base = model.PolicyOutcome(
        expected_minutes=expected, never_finishes=expected is None, chunks=1, interval_minutes=None, meets_deadline=None
    )
    return msgspec.structs.replace(base, **changes)


def verdict(kind: str = "RESUME", **changes: Any) -> model.Verdict:
    """A verdict with all four inputs."""
    inputs = model.FourInputs(
        interruption=model.InputPoint("resume", 3.0, "interruptions per run", "A run of this size is interrupted 3.0 times on average."),
        destroyed=model.InputPoint("resume", 712.0, "minutes", "An interruption destroys half a run on average."),
        rebuild=model.InputPoint("retry", 5.0, "minutes", "A fresh start costs 5 minutes, a restore 10."),
        schedule=model.InputPoint("either", None, "", "No deadline was given and the limit leaves room."),
    )
    base = model.Verdict(
        verdict=model.VerdictKind(kind),
        reason="Checkpoints every 42 minutes save 7,986 minutes a run.",
        retry=outcome(9615.0),
        resume=outcome(1629.0, chunks=34, interval_minutes=42.35),
        break_even=model.BreakEven(work_minutes=66.7, checkpoint_cost_minutes=1086.0, mttf_minutes=61_000.0),
        inputs=inputs,
    )
    return msgspec.structs.replace(base, **changes)


def workload(
    name: str = "pretrain-#b",
    *,
    user: str = "amara",
    account: str = "nlp",
    size: float = 1024,
    unit: str = "gpu",
    kind: str = "RESUME",
    saved: float | None = 31_240.5,
    lost: float = 40_000.0,
    evidence: dict[str, Any] | None = None,
    **changes: Any,
) -> model.WorkloadAdvice:
    """One workload. `changes` replace fields of the row, `evidence` fields of its evidence."""
    mttf_minutes = 381_000.0 / size
    row = model.WorkloadAdvice(
        evidence=msgspec.structs.replace(
            model.WorkloadEvidence(
                key=model.WorkloadKey("fleet", user, account, name, model.Size(size, unit)),
                jobs=12,
                attempts=31,
                gpu_hours=lost * 3,
                delivered_gpu_hours=lost * 1.8,
                destroyed_gpu_hours=model.Bounds(lost * 0.4, lost),
                lost_by_cause={"infrastructure": lost * 0.6, "preemption": lost * 0.3, "walltime": lost * 0.1, "user_failure": lost * 0.05},
                interruptions={"infrastructure": 14, "preemption": 4, "walltime": 1},
                work_minutes=1440.0,
                work_source="completed",
                limit_minutes=2880.0,
                queue_minutes=14.0,
                user_failure_share=0.04,
                resubmissions=3,
                segments_at_limit=0,
                resumes_itself=False,
            ),
            **(evidence or {}),
        ),
        mttf=model.Mttf(mttf_minutes, model.Interval(mttf_minutes * 0.7, mttf_minutes * 1.5), "bin", extrapolated=False, events=14),
        question=model.JobQuestion(
            work_minutes=1440.0,
            mttf_minutes=mttf_minutes,
            mttf_interval=model.Interval(mttf_minutes * 0.7, mttf_minutes * 1.5),
            size=model.Size(size, unit),
            limit_minutes=2880.0,
        ),
        verdict=verdict(kind),
        retry_lost_gpu_hours=None if saved is None else saved + 5000,
        resume_lost_gpu_hours=5000.0,
        saved_gpu_hours=saved,
        saved_money=None,
    )
    return msgspec.structs.replace(row, **changes)


def rate_bin(low: float, high: float | None, events: int, job_hours: float, mean_size: float) -> model.RateBin:
    """One bin; its interval is a rough one, [0, 3/h] for no events."""
    rate = events / job_hours if job_hours else 0.0
    spread = 1.64 / math.sqrt(events) if events else 0.0
    interval = (
        model.Interval(rate * math.exp(-spread), rate * math.exp(spread)) if events else model.Interval(0.0, 3.0 / max(job_hours, 1.0))
    )
    nodes = max(1.0, mean_size / 8)
    return model.RateBin(
        low=low,
        high=high,
        attempts=int(job_hours / 5) + 1,
        events=events,
        job_hours=job_hours,
        node_hours=job_hours * nodes,
        gpu_hours=job_hours * mean_size,
        rate_per_job_hour=rate,
        interval=interval,
        shrunk_rate_per_job_hour=rate * 0.95 + 1e-6,
        shrunk_interval=interval,
        rate_per_1000_node_days=rate * 24_000 / nodes,
        mean_size=mean_size,
    )


def cause_rates(cause: Cause = Cause.INFRASTRUCTURE, *, classification: str = "strict", factor: float = 1.0) -> model.CauseRates:
    """Rates of one cause over seven sizes, with a fit that was observed from 1 to 1,400 GPUs. No event in the second bin."""
    bins = (
        rate_bin(1, 1, round(6 * factor), 90_000, 1),
        rate_bin(2, 7, 0, 12_000, 4),
        rate_bin(8, 8, round(48 * factor), 80_000, 8),
        rate_bin(9, 63, round(30 * factor), 20_000, 26),
        rate_bin(64, 255, round(70 * factor), 9_000, 118),
        rate_bin(256, 1023, round(66 * factor), 2_400, 430),
        rate_bin(1024, None, round(40 * factor), 320, 1180),
    )
    return model.CauseRates(
        cause=cause,
        classification=classification,
        unit="gpu",
        events=sum(one.events for one in bins),
        job_hours=sum(one.job_hours for one in bins),
        node_hours=sum(one.node_hours for one in bins),
        gpu_hours=sum(one.gpu_hours for one in bins),
        bins=bins,
        fit=model.RateFit(7.2e-5 * factor, 1.04, model.Interval(0.93, 1.15), ((0.05, -0.008), (-0.008, 0.0045)), 1, 1400),
        dispersion=model.Dispersion(1.62, 2.1, 0.003, over_dispersed=True),
        interval_method="bootstrap",
    )


def exposure(**changes: Any) -> model.Exposure:
    """A window of 90 days on 2,048 GPUs."""
    rows = tuple(
        model.ExposureRow(name, low, high, unit, attempts, node_hours, gpu_hours)
        for name, low, high, unit, attempts, node_hours, gpu_hours in (
            ("success", 1, 1, "gpu", 21_000, 90_000.0, 90_000.0),
            ("success", 8, 8, "gpu", 5_200, 95_000.0, 760_000.0),
            ("success", 1024, None, "gpu", 120, 121_000.0, 968_000.0),
            ("user_failure", 1, 1, "gpu", 9_400, 20_100.0, 20_100.0),
            ("user_failure", 8, 8, "gpu", 1_300, 9_000.0, 72_000.0),
            ("infrastructure", 8, 8, "gpu", 60, 1_800.0, 14_400.0),
            ("infrastructure", 1024, None, "gpu", 41, 45_000.0, 360_000.0),
            ("preempted", 8, 8, "gpu", 800, 6_000.0, 48_000.0),
            ("walltime", 8, 8, "gpu", 230, 5_500.0, 44_000.0),
            ("censored", 8, 8, "gpu", 40, 960.0, 7_680.0),
            ("success", 1, 1, "node", 900, 41_000.0, 0.0),
            ("never_started", 1, 1, "gpu", 1_100, 0.0, 0.0),
        )
    )
    base = model.Exposure(
        attempts=sum(row.attempts for row in rows),
        jobs=36_900,
        start="2026-01-05T00:00:00Z",
        end="2026-04-05T00:00:00Z",
        days=90.0,
        rows=rows,
        node_hours=sum(row.node_hours for row in rows),
        gpu_hours=sum(row.gpu_hours for row in rows),
        destroyed_gpu_hours=model.Bounds(210_000.0, 466_400.0),
        walltime_exposed_gpu_hours=51_000.0,
        shares=model.Shares(0.0027, 0.157, 0.006, 0.019, 0.11),
        cannot_tell=(
            "Whether a job that hit its limit lost its work: 18 workloads look as if they continue by themselves.",
            "Why a requeue happened: 12 records say REQUEUED only.",
        ),
    )
    return msgspec.structs.replace(base, **changes)


def advice(workloads: Sequence[model.WorkloadAdvice] | None = None, **changes: Any) -> model.Advice:
    """A whole answer; without `workloads`, the mixed fleet of `fleet`."""
    base = model.Advice(
        schema=1,
        history="fleet/sacct.txt",
        exposure=exposure(),
        rates=(
            cause_rates(),
            cause_rates(classification="inclusive", factor=1.3),
            cause_rates(Cause.PREEMPTION, factor=0.6),
            cause_rates(Cause.OPERATOR, factor=0.05),
        ),
        workloads=tuple(fleet(40) if workloads is None else workloads),
        replay=(
            model.PolicyReplay("retry-all", 466_400.0, 0.74, 36_100, 36_900, 21),
            model.PolicyReplay("resume-all", 139_000.0, 0.83, 36_700, 36_900, 0),
            model.PolicyReplay("as-advised", 96_500.0, 0.87, 36_750, 36_900, 0),
        ),
        assumptions={
            "checkpoint_cost_minutes": "2m (default)",
            "restore_cost_minutes": "10m (default)",
            "downtime_minutes": "19m (history: median of 310 restarts; by workload or size where enough were seen)",
            "checkpoint_size_gb": "not known (default)",
            "gpu_hour_price": "2.1 (policy)",
            "level": "0.9 (flag or default)",
        },
        notes=("Failures are bunched (CV 1.62): intervals come from a block bootstrap by day.",),
    )
    return msgspec.structs.replace(base, **changes)


def fleet(count: int) -> list[model.WorkloadAdvice]:
    """`count` different workloads, worst loss first, with all five verdicts, a CPU-only one and one that never finishes under retry."""
    made = []
    for index in range(count):
        size = _SIZES[index % len(_SIZES)]
        lost = 60_000.0 / (1 + index) ** 1.15 + 0.4
        kind = ("RESUME", "RESUME", "RETRY", "EITHER", "RESUME-REQUIRED", "RETRY", "RETRY", "NEITHER")[index % 8]
        saved: float | None = lost * (0.7 if kind.startswith("RESUME") else -0.1 if kind == "RETRY" else 0.02)
        mttf_minutes = 381_000.0 / size
        work = 120.0 * (1 + index * 7 % 23)
        answer = verdict(kind)
        if kind == "RESUME-REQUIRED":
            saved = None
            answer = verdict(kind, retry=outcome(None), reason="The work is longer than its limit of 2d: a retry can never finish.")
        elif kind == "RETRY":
            answer = verdict(
                kind,
                retry=outcome(work * 1.02),
                resume=outcome(work * 1.05),
                reason="It is rarely interrupted; running it again is cheaper.",
            )
        elif kind == "EITHER":
            answer = verdict(
                kind,
                reason="The interval of the evidence straddles the break-even.",
                settle_by="Measure the checkpoint cost of one job.",
                warnings=("It is not known whether running it twice is safe.",),
            )
        elif kind == "NEITHER":
            answer = verdict(kind, reason="91 % of its GPU-hours end in its own failure: fix that first.")
        answer = msgspec.structs.replace(
            answer, break_even=model.BreakEven(5 + math.sqrt(25 + 8 * mttf_minutes), work * work / (4 * mttf_minutes), 61_000.0)
        )
        row = workload(
            _NAMES[index % len(_NAMES)] + ("" if index < len(_NAMES) else f"-v{index // len(_NAMES)}"),
            user=_USERS[index % len(_USERS)],
            account=_ACCOUNTS[index % len(_ACCOUNTS)],
            size=size,
            kind=kind,
            lost=lost,
            saved=saved,
            verdict=answer,
        )
        row = msgspec.structs.replace(row, question=msgspec.structs.replace(row.question, work_minutes=work))
        if index % len(_SIZES) == 0:
            row = msgspec.structs.replace(row, mttf=msgspec.structs.replace(row.mttf, source="fit", extrapolated=True))
        if index % 11 == 10:
            row = workload("cfd-#", user="esi", account="bio", size=4, unit="node", kind="RETRY", lost=lost, saved=-1.0)
        made.append(row)
    return made


def hostile() -> model.Advice:
    """An answer in which every text that comes from a history or a file name is hostile."""
    rows = [
        workload(name, user=HOSTILE_NAMES[(index + 1) % len(HOSTILE_NAMES)], account=HOSTILE_NAMES[(index + 5) % len(HOSTILE_NAMES)])
        for index, name in enumerate(HOSTILE_NAMES)
    ]
    evil = HOSTILE_NAMES[0]
    return advice(
        rows,
        history=evil,
        notes=(evil, HOSTILE_NAMES[13]),
        assumptions={evil: evil},
        exposure=exposure(
            cannot_tell=(evil,),
            rows=(*exposure().rows, model.ExposureRow(evil, 1, None, "gpu", 1, 1.0, 1.0)),
        ),
    )


def gaps() -> model.Advice:
    """An answer in which everything that may be None is None, and everything that may be infinite is."""
    nothing = model.InputPoint("either", None, "", "")
    row = workload(
        saved=None,
        evidence={
            "limit_minutes": math.inf,
            "queue_minutes": None,
            "lost_by_cause": {},
            "interruptions": {},
            "gpu_hours": 0.0,
            "delivered_gpu_hours": 0.0,
            "destroyed_gpu_hours": model.Bounds(0.0, 0.0),
        },
        mttf=model.Mttf(math.inf, model.Interval(50_000.0, math.inf), "prior", extrapolated=True, events=0),
        resume_lost_gpu_hours=None,
        verdict=model.Verdict(
            verdict=model.VerdictKind.EITHER,
            reason="",
            retry=outcome(None),
            resume=outcome(None),
            break_even=model.BreakEven(None, None, math.inf),
            inputs=model.FourInputs(nothing, nothing, nothing, nothing),
        ),
    )
    bare = workload("bare", saved=None, mttf=model.Mttf(math.inf, None, "bin", extrapolated=False, events=0))
    empty_rates = msgspec.structs.replace(
        cause_rates(),
        bins=(msgspec.structs.replace(rate_bin(1, None, 0, 0.0, 0.0), interval=None, shrunk_interval=None, rate_per_1000_node_days=None),),
        fit=None,
        dispersion=model.Dispersion(None, None, None, over_dispersed=False),
        interval_method="poisson",
        events=0,
    )
    return advice([row, bare], rates=(empty_rates,), replay=(), notes=(), assumptions={}, history="")


def empty() -> model.Advice:
    """An answer for a history in which nothing ran."""
    return advice(
        [],
        rates=(),
        replay=(),
        notes=(),
        assumptions={},
        exposure=exposure(
            attempts=0,
            jobs=0,
            days=0.0,
            rows=(),
            node_hours=0.0,
            gpu_hours=0.0,
            destroyed_gpu_hours=model.Bounds(0.0, 0.0),
            walltime_exposed_gpu_hours=0.0,
            shares=model.Shares(0.0, 0.0, 0.0, 0.0, 0.0),
            cannot_tell=(),
        ),
    )
