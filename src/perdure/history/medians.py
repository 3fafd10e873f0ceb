"""Medians by group of whole numbers, found by sorting. Called by `tallies`.

A database keeps a list for every group; here all values are sorted at once, as single numbers of which the group is the upper part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_VALUE_BITS = 40
"""Values below this, 35,000 years in seconds, are sorted together with their group; others by two keys, which takes longer."""


def by_group(group: NDArray[Any], value: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Return the median of the `value`s of each group 0 to `count` − 1, NaN for a group that has none.

    `group` and `value` are whole numbers, one entry a value, in any order. With an even number of values the median is the mean of
    the two in the middle.
    """
    result: NDArray[np.float64] = np.full(count, np.nan)
    if not value.size:
        return result
    first, ordered = _sorted(np.asarray(group, np.int64), np.asarray(value, np.int64), count)
    sizes = np.diff(first)
    there = np.flatnonzero(sizes)
    low = ordered[first[there] + (sizes[there] - 1) // 2].astype(np.float64)
    high = ordered[first[there] + sizes[there] // 2].astype(np.float64)
    result[there] = low + (high - low) * 0.5
    return result


def _sorted(group: NDArray[np.int64], value: NDArray[np.int64], count: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return where each group's values begin (`count` + 1 places), and the values, sorted within each group."""
    places = np.arange(count + 1, dtype=np.int64)
    if int(value.min()) >= 0 and int(value.max()) < 1 << _VALUE_BITS and count < 1 << (62 - _VALUE_BITS):
        keys = (group << _VALUE_BITS) | value
        keys.sort()
        return np.searchsorted(keys, places << _VALUE_BITS), keys & ((1 << _VALUE_BITS) - 1)
    order = np.lexsort((value, group))
    return np.searchsorted(group[order], places), value[order]
