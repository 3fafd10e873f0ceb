"""Medians by group, against the median of each group alone."""

from __future__ import annotations

import math
import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perdure.history import medians

_GROUPS = 4


def _one_by_one(pairs: list[tuple[int, int]]) -> list[float]:
    groups = [[value for group, value in pairs if group == number] for number in range(_GROUPS)]
    return [statistics.median(values) if values else math.nan for values in groups]


# Either side of what is sorted together with its group, and below zero, which is not.
_VALUES = st.one_of(st.integers(0, 5), st.integers(0, 1 << 41), st.integers(-5, 5))


@given(st.lists(st.tuples(st.integers(0, _GROUPS - 1), _VALUES)))
def test_a_group_has_its_own_median(pairs):
    group, value = np.array([pair[0] for pair in pairs], np.int32), np.array([pair[1] for pair in pairs], np.int64)
    np.testing.assert_array_equal(medians.by_group(group, value, _GROUPS), _one_by_one(pairs))


def test_an_even_number_of_values_has_the_mean_of_the_two_in_the_middle():
    assert medians.by_group(np.array([1, 1, 1, 1]), np.array([9, 1, 4, 3]), 2).tolist()[1] == 3.5
