"""Size ranges within which attempts are counted together. Called by `stats.rates` and `stats.mttf`.

By GPUs: 1, 2–7, 8 (one usual node), 9–63, 64–255, 256–1023, ≥ 1024; the same ranges count nodes where there are no GPUs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOWER_EDGES = (0.0, 2.0, 8.0, 9.0, 64.0, 256.0, 1024.0)
"""First size of each bin; a shared GPU's fraction belongs to the first."""
COUNT = len(LOWER_EDGES)


def bin_of(sizes: ArrayLike) -> NDArray[np.intp]:
    """Return the index of the bin, 0 to 6, of each size > 0."""
    return np.searchsorted(LOWER_EDGES, np.asarray(sizes, float), side="right") - 1


def bounds(index: int) -> tuple[float, float | None]:
    """Return the smallest and the largest whole size in bin `index`, both inclusive; None: no upper end."""
    return max(1.0, LOWER_EDGES[index]), LOWER_EDGES[index + 1] - 1 if index + 1 < COUNT else None
