"""The time from a node's death to the job running again under Slurm, managed and unmanaged, on the test cluster (needs root).

``python -m bench slurm_times [--rounds N]``. Both jobs count on the same node, half a minute apart from nothing else; it is killed; both
run again elsewhere. Slurm's own times are those of the cluster's configuration, but for SlurmdTimeout, which is 10 s here; leases last
15 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import Figure, print_figures

_STEP_S = 0.25
_BEFORE = 80
"""Numbers counted before the kill: 20 seconds of work."""
_LONG_S = 600.0


def report(arguments: Sequence[str] = ()) -> list[Figure]:
    """Measure, print the table, and return the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench slurm_times")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args(list(arguments)).rounds
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from cluster import installed, rootfs, work
    from cluster.shape import Shape

    lack = rootfs.lack("24.11")
    if lack is not None:
        print(f"left out: {lack}")
        return []
    measured: dict[str, list[dict[str, float]]] = {"managed": [], "unmanaged": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as above:
        folder = Path(above, "cluster")
        folder.mkdir()
        os.chmod(above, 0o755)
        with installed.running(folder, Shape(slurmd_timeout_s=10)) as cluster:
            work.lay(cluster)
            for number in range(rounds):
                for arm, seen in _round(cluster, number).items():
                    measured[arm].append(seen)
    return _table(measured)


def _round(cluster, number: int) -> dict[str, dict[str, float]]:
    """Kill a node under both jobs; return for each arm the seconds from the kill to each event."""
    from cluster import work
    from cluster.machine import wait_until

    jobs = {}
    for arm, environment in (("managed", {"PERDURE": "every=2s"}), ("unmanaged", {})):
        script = work.count(_BEFORE * 2, _STEP_S, name=f"{arm}{number}")
        jobs[arm] = cluster.submit("alice", script, *work.files(f"{arm}{number}"), "--prefer=n1", env=environment)

    def at(arm: str) -> int:
        """Return the last number that the job has written whole."""
        lines = work.written(cluster, "alice", f"{arm}{number}").split("\n")[:-1]
        return int(lines[-1].split()[0]) if lines else -1

    def runs(arm: str) -> bool:
        """Tell whether the job's program runs for the second time: brought back, or started again."""
        if arm == "managed":
            return "goes on from" in work.written(cluster, "alice", f"{arm}{number}", "err")
        return work.written(cluster, "alice", f"{arm}{number}", "starts").count("started") == 2

    wait_until(lambda: all(at(arm) >= _BEFORE for arm in jobs), "the jobs do not count", timeout_s=_LONG_S)
    reached = {arm: at(arm) for arm in jobs}
    killed_s = time.monotonic()
    cluster.kill("n1")
    seen: dict[str, dict[str, float]] = {arm: {} for arm in jobs}
    while any("back" not in events for events in seen.values()):
        for arm, job in jobs.items():
            _look(cluster, job, seen[arm], runs=runs(arm), gone_on=at(arm) > reached[arm], killed_s=killed_s)
        assert time.monotonic() < killed_s + _LONG_S, seen
        time.sleep(0.1)
    cluster.boot("n1")
    for job in jobs.values():
        cluster.wait_state(job, "COMPLETED", timeout_s=_LONG_S)
    return seen


def _look(cluster, job: int, events: dict[str, float], *, runs: bool, gone_on: bool, killed_s: float) -> None:
    """Note the time of each event that has come."""
    now_s = time.monotonic() - killed_s
    fields = cluster.job(job)
    if fields.get("NodeList") != "n1" or fields.get("JobState") != "RUNNING":
        events.setdefault("detected", now_s)
        if fields.get("JobState") in ("RUNNING", "COMPLETED"):
            events.setdefault("scheduled", now_s)
    if "scheduled" in events and runs:
        events.setdefault("running", now_s)
        if gone_on:
            events.setdefault("back", now_s)


def _table(measured: dict[str, list[dict[str, float]]]) -> list[Figure]:
    print("| seconds, median (least – most) | managed | unmanaged |")
    print("|---|---|---|")
    spans = {
        "detection: killed → Slurm gives the node up": ("", "detected"),
        "scheduling: given up → the job runs elsewhere": ("detected", "scheduled"),
        "restore: the job runs → its program does": ("scheduled", "running"),
        "lost work done again: its program runs → it is where it was": ("running", "back"),
        "all: killed → where it was": ("", "back"),
    }
    figures = []
    for title, (first, last) in spans.items():
        cells = []
        for arm, rounds in measured.items():
            taken = [events[last] - events.get(first, 0.0) for events in rounds]
            cells.append(f"{statistics.median(taken):.1f} ({min(taken):.1f} – {max(taken):.1f})")
            if last == "back" and not first:
                figures.append(Figure(f"{arm}: killed → where it was", statistics.median(taken), "s"))
        print(f"| {title} | {' | '.join(cells)} |")
    return figures


def main() -> None:
    """Print the figures."""
    print_figures(report(sys.argv[1:]))


if __name__ == "__main__":
    main()
