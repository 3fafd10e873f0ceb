"""Who uses the fleet and for what: users, and families of alike jobs that together offer the wanted load.

GPU time is spread over sizes as on research clusters (Kokolis et al. 2025; Hu et al. 2024): most jobs use one GPU, and most
GPU time goes to jobs of hundreds. Called once by `fleet.simulate`.
"""

from __future__ import annotations

import dataclasses
import math

from perdure.history.simulate import kinds
from perdure.history.simulate.draws import Stream
from perdure.history.simulate.jobs import DAY_S, HOUR_S, User, Workload
from perdure.history.simulate.spec import LOW_QOS, FleetSpec

SIZE_SHARE_EXPONENT = 0.4
"""GPU time of jobs of n GPUs grows as n^0.4 over powers of two: 256 GPUs and more then hold half of a fleet of 2,048."""

_LIMITS_S = tuple(hours * HOUR_S for hours in (1, 2, 4, 8, 12, 24, 48, 72, 120, 168))
_LONGEST_S = 168 * HOUR_S
_FIRST_NAMES = (
    "ada",
    "ben",
    "cai",
    "dana",
    "eli",
    "fay",
    "gus",
    "hana",
    "ivo",
    "jun",
    "kai",
    "lena",
    "mei",
    "nils",
    "ola",
    "pia",
    "quin",
    "rosa",
    "sam",
    "tess",
    "uma",
    "vik",
    "wen",
    "xia",
    "yara",
    "zoe",
)
_ACCOUNTS = ("vision", "language", "speech", "robotics", "climate", "physics", "genomics", "materials", "finance", "platform")


def make_users(spec: FleetSpec, stream: Stream) -> list[User]:
    """Make the users, each with an account."""
    count = spec.users or max(8, spec.gpus // 16)
    users = []
    for number in range(count):
        name = _FIRST_NAMES[number % len(_FIRST_NAMES)]
        suffix = "" if number < len(_FIRST_NAMES) else str(number // len(_FIRST_NAMES))
        users.append(User(name + suffix, 70_001 + number, stream.pick(_ACCOUNTS)))
    return users


def sizes(spec: FleetSpec) -> list[int]:
    """Sizes in use: 1, 2, 4 … GPUs below one node, then 1, 2, 4 … whole nodes up to half the fleet."""
    found = [1 << power for power in range(spec.gpus_per_node.bit_length()) if 1 << power < spec.gpus_per_node]
    size = spec.gpus_per_node
    while size <= spec.gpus // 2:
        found.append(size)
        size *= 2
    return found


def make_workloads(spec: FleetSpec, stream: Stream) -> list[Workload]:
    """Make workloads until the work they offer fills `spec.load` of the fleet's GPU-hours."""
    users = make_users(spec, stream)
    weights = [1.0 / (rank + 3) for rank in range(len(users))]
    maker = _Maker(spec, stream, set())
    share = {size: size**SIZE_SHARE_EXPONENT for size in sizes(spec)}
    made: list[Workload] = []
    for size, weight in share.items():
        budget = spec.load * spec.gpus * spec.days * 24.0 * weight / sum(share.values())
        while budget > 0.0:
            workload = maker.make(size, stream.weighted(users, weights), budget)
            made.append(workload)
            budget -= workload.works * maker.expected_gpu_hours(workload)
    if spec.quirks:
        plant_names(made, stream)
    return made


def plant_names(made: list[Workload], stream: Stream) -> None:
    """Give some small workloads names such as real files hold: a delimiter, bytes that are not UTF-8, markup, a formula."""
    small = [workload for workload in made if workload.gpus <= 4]
    for pattern in kinds.QUIRKY_NAMES.values():
        for _ in range(max(1, len(small) // 150)):
            workload = stream.pick(small)
            workload.pattern = pattern.replace("{stem}", workload.stem)


@dataclasses.dataclass
class _Maker:
    spec: FleetSpec
    stream: Stream
    taken: set[str]

    def failures_per_hour(self, gpus: int, qos: str) -> float:
        """True rate of interruption of a job, wall time apart."""
        per_node_hour = (self.spec.infrastructure_rate + self.spec.operator_rate) / 24_000.0
        rate = per_node_hour * math.pow(gpus / self.spec.gpus_per_node, self.spec.infrastructure_exponent)
        if qos == LOW_QOS:
            rate += self.spec.preemption_rate / 1000.0 * math.pow(gpus, self.spec.preemption_exponent)
        return rate

    def make(self, gpus: int, user: User, budget_gpu_hours: float) -> Workload:
        """Draw one workload of this size, of at most about `budget_gpu_hours`."""
        stream = self.stream
        tier = "small" if gpus < self.spec.gpus_per_node else "middle" if gpus < 128 else "large"
        kind = stream.weighted(kinds.KINDS, [kind.weights[tier] for kind in kinds.KINDS])
        stem = self._new_stem(kind.stem)
        qos = LOW_QOS if tier != "large" and stream.chance(kind.low_qos) else "high" if tier == "large" else "normal"
        work_h = min(kind.hours * 1.2 * gpus**0.45 * stream.log_normal(1.0, 0.5), kind.longest_h)
        if kind.app_interval_h is None:
            # Nobody runs for long what is destroyed again and again: such work becomes resumable or is given up.
            work_h = min(work_h, 1.0 / max(self.failures_per_hour(gpus, qos), 1e-9))
        work_s = max(60.0, work_h * HOUR_S)
        works = max(1, round(kind.works * 55.0 * gpus**-0.45 * stream.log_normal(1.0, 0.6)))
        works = min(works, max(1, math.ceil(budget_gpu_hours / (gpus * work_s / HOUR_S))))
        limit_s, word = self._limit(kind, work_s)
        workload = Workload(
            kind.name, user, stem, kind.pattern.replace("{stem}", stem), gpus, 1, qos, limit_s, word, work_s, kind.sigma, works
        )
        workload.total_gpus = gpus
        self._behaviour(workload, kind)
        workload.nodes = max(1, workload.gpus // self.spec.gpus_per_node)
        return workload

    def _behaviour(self, workload: Workload, kind: kinds.Kind) -> None:
        stream = self.stream
        workload.requeue = not stream.chance(kind.no_requeue)
        if kind.app_interval_h is not None:
            workload.app_interval_s = int(kind.app_interval_h * HOUR_S * (0.5 + stream.random()))
        workload.self_requeue = kind.self_requeue
        if kind.chain:
            workload.segments = max(2, math.ceil(1.25 * workload.work_s / workload.limit_s) + 1)
        if stream.chance(kind.arrays) and workload.works >= 4:
            workload.array = min(workload.works, stream.between(4, 40))
            workload.throttle = stream.pick((0, 0, 2, 4, 8)) if workload.array > 8 else 0
        # A heterogeneous job: one node that coordinates beside those that compute.
        if stream.chance(kind.het) and workload.gpus >= 2 * self.spec.gpus_per_node:
            workload.het_gpus = self.spec.gpus_per_node
            workload.gpus -= workload.het_gpus
        workload.fails = min(1.0, kind.fails * (0.3 + 1.4 * stream.random())) if kind.fails < 1.0 else 1.0
        workload.fails_at_s = max(5.0, stream.log_normal(kind.fails_at_s, 0.8))
        workload.out_of_memory = kind.out_of_memory * 2.0 * stream.random()
        workload.cancels = kind.cancels
        workload.suspends = 0.004
        workload.user_requeues = 0.006 if workload.requeue else 0.0
        workload.resubmits = kind.resubmits
        if kind.deadline and not workload.array:
            workload.deadline_s = int(workload.work_s * (1.1 + 1.5 * stream.random())) + 2 * HOUR_S
        workload.constraint = "a100" if stream.chance(0.1) else ""

    def _limit(self, kind: kinds.Kind, work_s: float) -> tuple[int, str]:
        if kind.chain or kind.self_requeue:
            limit_s = next((limit for limit in _LIMITS_S[3:] if limit >= work_s * 0.3), _LONGEST_S)
            return min(limit_s, 24 * HOUR_S), str(min(limit_s, 24 * HOUR_S) // 60)
        if kind.over_limit:
            limit_s = max(30 * 60, int(work_s * (0.55 + 0.35 * self.stream.random())) // 1800 * 1800)
            return limit_s, str(limit_s // 60)
        if kind.unlimited or self.stream.chance(0.015):
            return 10_000 * DAY_S, "UNLIMITED"
        if self.stream.chance(0.03):
            return _LONGEST_S, "Partition_Limit"
        wanted = work_s * math.exp(2.0 * kind.sigma) * (1.1 + self.stream.random())
        limit_s = next((limit for limit in _LIMITS_S if limit >= wanted), _LONGEST_S)
        return limit_s, str(limit_s // 60)

    def _new_stem(self, stem: str) -> str:
        """A name that no other workload has, so that each workload keeps a key of its own."""
        while True:
            words = "-".join([stem, self.stream.pick(kinds.WORDS), self.stream.pick(kinds.WORDS)])
            while words in self.taken:
                words += "-" + self.stream.pick(kinds.WORDS)
            self.taken.add(words)
            return words

    def expected_gpu_hours(self, workload: Workload) -> float:
        """GPU-hours that one work of `workload` will take, repetitions included."""
        hours = workload.work_s / HOUR_S * math.exp(workload.sigma**2 / 2.0)
        lost = self.failures_per_hour(workload.total_gpus, workload.qos) * hours
        if workload.hopeless:
            hours = workload.fails_at_s / HOUR_S * 3.0
        elif workload.limit_s < workload.work_s and workload.app_interval_s is None:
            hours = 2.5 * workload.limit_s / HOUR_S
        elif workload.app_interval_s is None and lost > 0.0:
            hours *= math.expm1(min(lost, 3.0)) / min(lost, 3.0)
        else:
            hours *= 1.0 + lost / hours * (workload.app_interval_s or 0) / HOUR_S / 2.0
        return workload.total_gpus * hours
