"""When users submit what: the works of every workload, in order of time. Called by `engine` at its start."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.history.simulate.draws import Stream
from perdure.history.simulate.jobs import DAY_S, HOUR_S, Workload

ONE_BY_ONE_GPUS = 64
"""Works of this size and above come spread over the whole history, as sites plan them; smaller ones as users please."""

Arrival = tuple[int, int, int, int]
"""Second, index of the workload, number of its first work, number of works submitted together."""


def plan(workloads: list[Workload], days: int, stream: Stream) -> list[Arrival]:
    """Return all submissions of works, sorted."""
    horizon = days * DAY_S
    arrivals: list[Arrival] = []
    large: dict[int, list[tuple[int, int]]] = {}
    for index, workload in enumerate(workloads):
        if workload.total_gpus >= ONE_BY_ONE_GPUS:
            large.setdefault(workload.total_gpus, []).append((index, workload.works))
        else:
            arrivals += _as_users_please(index, workload, horizon, stream)
    for group in large.values():
        arrivals += _spread(group, horizon, stream)
    return sorted(arrivals)


def _spread(group: Iterable[tuple[int, int]], horizon: int, stream: Stream) -> list[Arrival]:
    works = [(stream.random(), index, works) for index, works in group]
    total = sum(count for _, _, count in works)
    arrivals, position = [], 0
    for _, index, count in sorted(works):
        for number in range(count):
            # The first ones are there from the beginning: a fleet does not start empty.
            arrivals.append((max(0, int((position + stream.random() - 0.7) / total * horizon)), index, number, 1))
            position += 1
    return arrivals


def _as_users_please(index: int, workload: Workload, horizon: int, stream: Stream) -> list[Arrival]:
    begin = (1.1 * stream.random() - 0.15) * horizon
    end = begin + max(DAY_S, stream.log_normal(0.3 * horizon, 0.6))
    begin = min(max(0.0, begin), float(horizon - DAY_S))
    end = min(max(end, begin + DAY_S), float(horizon))
    arrivals = []
    together = workload.array or 1
    for first in range(0, workload.works, together):
        when = int(begin + (end - begin) * stream.random())
        arrivals.append((min(_in_working_hours(when, stream), horizon - 1), index, first, min(together, workload.works - first)))
    return arrivals


def _in_working_hours(when: int, stream: Stream) -> int:
    """Move most nightly submissions into the day."""
    hour = when % DAY_S // HOUR_S
    if 8 <= hour < 20 or stream.chance(0.45):
        return when
    return when - when % DAY_S + 8 * HOUR_S + int(stream.random() * 12 * HOUR_S)
