"""Evidence of all workloads, as columns and as records. Made by `workloads.build`, read by `advisor` and `exposure`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perdure.history import cells, destroyed
from perdure.model import advice
from perdure.model.attempt import Cause

MS_PER_HOUR = 3_600_000.0
WorkSource = Literal["completed", "chain", "limit", "longest"]


@dataclasses.dataclass(frozen=True)
class Workloads:
    """Evidence of all workloads as columns, in the order of their keys; `evidence` gives them as records."""

    columns: dict[str, NDArray[Any]]
    classification: cells.Classification
    work_s: NDArray[np.float64]
    work_source: NDArray[np.int64]
    resumes: NDArray[np.bool_]
    durable: NDArray[np.float64]
    """Measured part of an interrupted run's work that the application kept by itself, 0 to 1; NaN: not measured."""

    def __len__(self) -> int:
        return len(self.work_s)

    def wanted(self) -> NDArray[np.float64]:
        """Return how many stories of each workload were to be done: all but those that ended by their own failure or their owner's wish."""
        return self.columns["wanted"].astype(float)

    def gpu_hours(self) -> NDArray[np.float64]:
        """Return the GPU-hours (node-hours without GPUs) that each workload was allocated."""
        return np.asarray(self.columns["cost_ms"] / MS_PER_HOUR)

    def keys(self) -> list[advice.WorkloadKey]:
        """Return the keys of all workloads."""
        parts = [self.columns[name].tolist() for name in ("cluster", "user", "account", "name")]
        return [advice.WorkloadKey(*key) for key in zip(*parts, self.sizes(), strict=True)]

    def sizes(self) -> list[advice.Size]:
        """Return the sizes of all workloads; few differ, and those are one record each."""
        kinds = list(zip(self.columns["milli_size"].tolist(), self.columns["is_gpu"].tolist(), strict=True))
        records = {(milli, gpu): advice.Size(milli / 1000.0, "gpu" if gpu else "node") for milli, gpu in set(kinds)}
        return [records[kind] for kind in kinds]

    def destroyed(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and upper bound of the GPU-hours that interruptions destroyed. See `history.destroyed`."""
        low = np.where(self.resumes, self.columns["destroyed_resumed_ms"], self.columns["destroyed_certain_ms"])
        return low / MS_PER_HOUR, self.columns["destroyed_high_ms"] / MS_PER_HOUR

    def evidence(self) -> list[advice.WorkloadEvidence]:
        """Return the records of all workloads, in the order of their keys."""
        columns = self.columns
        low, high = self.destroyed()
        plain = {
            "key": self.keys(),
            "jobs": columns["jobs"].tolist(),
            "attempts": columns["attempts"].tolist(),
            "gpu_hours": self.gpu_hours().tolist(),
            "delivered_gpu_hours": (columns["delivered_ms"] / MS_PER_HOUR).tolist(),
            "destroyed_gpu_hours": [advice.Bounds(*pair) for pair in zip(low.tolist(), high.tolist(), strict=True)],
            "lost_by_cause": self._by_cause("ms", MS_PER_HOUR, float),
            "interruptions": self._by_cause("n", 1.0, int),
            "work_minutes": (self.work_s / 60.0).tolist(),
            "work_source": [SOURCES[source] for source in self.work_source.tolist()],
            "limit_minutes": _minutes(columns["limit_s"]),
            "queue_minutes": _minutes(columns["queue_s"]),
            "user_failure_share": self.user_failure_share().tolist(),
            "resubmissions": columns["resubmissions"].tolist(),
            "segments_at_limit": columns["segments"].tolist(),
            "resumes_itself": self.resumes.tolist(),
        }
        order = [plain[field] for field in advice.WorkloadEvidence.__struct_fields__]
        return [advice.WorkloadEvidence(*row) for row in zip(*order, strict=True)]

    def durable_by_convention(self) -> NDArray[np.float64]:
        """Return the part of a run that a checkpoint of its own every `destroyed.OWN_CHECKPOINT_S` keeps; 0 where none is seen.

        With pieces of the work W of that length, half a piece is lost instead of half of W: 1 − piece/W survives.
        """
        return np.where(self.resumes, 1.0 - np.minimum(destroyed.OWN_CHECKPOINT_S / self.work_s, 1.0), 0.0)

    def user_failure_share(self) -> NDArray[np.float64]:
        """Return the share of GPU-hours that ended by the workload's own failure, 0 to 1."""
        cost = self.columns["cost_ms"]
        return np.asarray(self.columns["ms_user_failure"] / np.where(cost > 0, cost, 1.0))

    def _by_cause(self, what: Literal["n", "ms"], unit: float, kind: type[Any]) -> list[dict[str, Any]]:
        """Sum the columns of `what` by cause under the classification, one dictionary a workload; what never struck is left out."""
        causes = {cause.value: cells.endings_of(cause, self.classification) for cause in Cause}
        if what == "ms":
            causes["user_failure"] = ("user_failure",)
        dictionaries: list[dict[str, Any]] = [{} for _ in range(len(self))]
        for cause, endings in causes.items():
            total = np.sum([self.columns[f"{what}_{ending}"] for ending in endings], axis=0)
            struck = np.flatnonzero(total > 0)
            for index, value in zip(struck.tolist(), (total[struck] / unit).tolist(), strict=True):
                dictionaries[index][cause] = kind(value)
        return dictionaries


def _minutes(seconds: NDArray[np.float64]) -> list[float | None]:
    return [None if value != value else value / 60.0 for value in seconds.tolist()]  # noqa: PLR0124 - NaN differs from itself


SOURCES: tuple[WorkSource, ...] = ("completed", "chain", "limit", "longest")
