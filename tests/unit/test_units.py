"""Durations and sizes as people type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.base import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2m", 120),
        ("7.9h", 28440),
        ("47.7d", 4121280),
        ("1-02:03:04", 93784),
        ("1h30m", 5400),
        ("0", 0),
        ("00:20:00", 1200),
        ("1-00:00", 86400),
        (" 5 min ", 300),
        ("365d", 31536000),
        ("1w", 604800),
    ],
)
def test_durations_are_read(text, seconds):
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "-5m", "5", "5x", "m", "1:2:3:4", "12:34", "00:99:00", "nan", "inf", "1e3h", "5m x", "9" * 400 + "d", "٣h"]
)
def test_unreadable_durations_name_the_value_and_an_example(text):
    with pytest.raises(errors.QuantityError) as caught:
        units.parse_duration(text, name="--work")
    assert "--work" in str(caught.value)
    assert "7.9h" in caught.value.hint or "HH:MM" in caught.value.hint


@given(st.floats(min_value=0, max_value=1e9))
def test_formatted_durations_read_back_within_their_precision(seconds):
    text = units.format_duration(seconds)
    again = units.parse_duration(text)
    assert again == pytest.approx(seconds, rel=0.05, abs=0.5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (42, "42s"),
        (28440, "7h54m"),
        (86399.9, "1d"),
        (3599.9, "1h"),
        (47.7 * 86400, "47d17h"),
        (None, "-"),
        (float("inf"), "never"),
    ],
)
def test_durations_are_formatted(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(("text", "size_bytes"), [("512", 512), ("64G", 64 << 30), ("1.5TB", 3 << 39), ("80GiB", 80 << 30), ("10k", 10240)])
def test_sizes_are_read(text, size_bytes):
    assert units.parse_size(text) == size_bytes


def test_unreadable_sizes_are_refused():
    with pytest.raises(errors.QuantityError):
        units.parse_size("12Q")
    with pytest.raises(errors.QuantityError):
        units.parse_size("9" * 400)
