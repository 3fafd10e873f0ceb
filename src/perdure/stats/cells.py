"""Exposure and events by (size, day), and their sums. What a history hands to `stats.rates`."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from perdure import errors
from perdure.stats import powerlaw, size_bins

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class ExposureCells:
    """Attempts summed by (size, day): arrays of equal length, one entry a cell, in any order. Cells without attempts may be left out.

    Exposure counts every attempt that consumed time, however it ended, on the days on which it ran; events are
    counted on the day on which they happened.
    """

    size: NDArray[np.float64]
    """GPUs or nodes of the attempts, > 0."""
    block: NDArray[np.int64]
    """Number of the day, from any origin."""
    attempts: NDArray[np.int64]
    events: NDArray[np.int64]
    """Interruptions of the one cause that is estimated."""
    job_hours: NDArray[np.float64]
    node_hours: NDArray[np.float64]
    gpu_hours: NDArray[np.float64]

    def check(self) -> None:
        """Raise `errors.QuantityError` unless the arrays have equal length, sizes are above zero and nothing is negative or NaN."""
        columns = {field.name: np.asarray(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if len({column.shape for column in columns.values()}) != 1:
            raise errors.QuantityError("exposure cells: the columns differ in length")
        for name, column in columns.items():
            if name != "block" and not bool(np.all(np.isfinite(column) & (column >= 0))):
                raise errors.QuantityError(f"exposure cells: {name} is negative or not a number")
        if not bool(np.all(columns["size"] > 0)):
            raise errors.QuantityError("exposure cells: a size is not above zero", hint="attempts without nodes have no exposure")


@dataclasses.dataclass(frozen=True)
class Sums:
    """Cells with what is summed from them: by distinct size, by day and by bin."""

    cells: ExposureCells
    sizes: Floats
    """Distinct sizes, ascending."""
    events: Floats
    job_hours: Floats
    size_index: NDArray[np.intp]
    """Of each cell: where its size stands in `sizes`."""
    day: NDArray[np.intp]
    """Of each cell: the number of its day, from 0, among the days that have cells."""
    days: int

    @classmethod
    def of(cls, cells: ExposureCells) -> Sums:
        """Sum `cells`, which were checked."""
        sizes, index = np.unique(np.asarray(cells.size, float), return_inverse=True)
        # Days without any attempt are closed up: a clock that was once wrong by decades must not make twenty thousand empty days.
        blocks, day = np.unique(np.asarray(cells.block, np.int64), return_inverse=True)
        return cls(
            cells=cells,
            sizes=sizes,
            events=np.bincount(index, cells.events, sizes.size).astype(float),
            job_hours=np.bincount(index, cells.job_hours, sizes.size).astype(float),
            size_index=index,
            day=day,
            days=blocks.size,
        )

    def by_day(self, values: NDArray[np.float64] | NDArray[np.int64]) -> Floats:
        """Sum a value of each cell by day."""
        return np.bincount(self.day, values, self.days).astype(float)

    def by_bin(self, values: NDArray[np.float64] | NDArray[np.int64]) -> Floats:
        """Sum a value of each cell by size bin."""
        return np.bincount(size_bins.bin_of(self.sizes)[self.size_index], values, size_bins.COUNT).astype(float)

    def expected(self, law: powerlaw.PowerLaw) -> Floats:
        """Events that `law` expects in each cell."""
        expected: Floats = law.rate(self.sizes)[self.size_index] * self.cells.job_hours
        return expected
