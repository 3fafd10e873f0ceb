"""Normalised job names: the SQL rule and the Python rule are one."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.history import names


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("pretrain_s1", "pretrain_s#"),
        ("pretrain_s2", "pretrain_s#"),
        ("sweep-lr3e-4|seed7", "sweep-lr#|seed#"),
        ("sweep-lr0.001|seed12", "sweep-lr#|seed#"),
        ("run 3fa9b2c1", "run #"),
        ("550e8400-e29b-41d4-a716-446655440000", "#"),
        ("facade", "facade"),
        ("a1_2_3", "a#"),
        ("a1_2", "a#"),
        ("", ""),
        (None, ""),
        ("  spaced 7 ", "spaced #"),
    ],
)
def test_names_that_differ_in_counters_are_alike(name: str | None, normal: str) -> None:
    assert names.normalise(name) == normal


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40)
    | st.text(alphabet="0123456789abcdefXy-_.,#e+ ", max_size=40)
)
def test_sql_and_python_agree_and_a_second_pass_changes_nothing(name: str) -> None:
    in_sql = duckdb.execute(f"SELECT {names.normalise_sql('$1')}, {names.normalise_sql(names.coarse_sql('$1'))}", [name]).fetchone()
    assert in_sql is not None
    assert in_sql == (names.normalise(name),) * 2
    assert names.normalise(names.normalise(name)) == names.normalise(name)
