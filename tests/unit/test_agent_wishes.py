"""What a user may say about the keeping of a workload, and what is none of a user's business."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.agent import wishes
from perdure.model.checkpoint import CheckpointId
from perdure.supervisor.record import Options


def test_nothing_said_is_what_is_usual():
    assert wishes.read(()) == wishes.Wishes(options=Options())


def test_what_may_be_said_is_heard():
    said = {
        "every": "10m",
        "mttf": "3d",
        "before-end": "5m",
        "keep": "7",
        "probe": "./check me",
        "tcp": "keep",
        "grace": "90s",
        "name": "train",
        "fresh": "1",
        "must-resume": "0",
        "from": "train@3.12",
        "end-ns": "1796000000000000000",
        "detach": "1",
        "quiet": "1",
        "events": "1",
        "cpu-check": "strict",
    }
    found = wishes.read((*said.items(), ("outputs", "/a"), ("outputs", "/b c")))
    assert found.options == Options(
        every=600.0,
        mttf_s=259200.0,
        before_end=300.0,
        keep=7,
        outputs=("/a", "/b c"),
        probe="./check me",
        tcp="keep",
        grace_s=90.0,
    )
    assert (found.name, found.fresh, found.must_resume, found.origin) == ("train", True, False, CheckpointId("train", 3, 12))
    assert (found.end_ns, found.detach, found.quiet, found.events, found.cpu_check) == (1796000000000000000, True, True, True, "strict")


def test_the_admins_options_come_first_and_the_users_own_count():
    assert wishes.read((("every", "1h"), ("keep", "9"), ("every", "never"))).options == Options(every="never", keep=9)


@pytest.mark.parametrize(
    "key", ["store", "key-file", "key_file", "staging", "metrics", "adopt", "owner", "uid", "criu", "state", "run-dir", "cgroup", ""]
)
def test_what_a_user_may_not_decide_is_unknown(key):
    with pytest.raises(errors.UsageError, match="no option"):
        wishes.read(((key, "1"),))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("every", "0.1s"),
        ("every", "soon"),
        ("keep", "0"),
        ("keep", "-1"),
        ("keep", "9999999"),
        ("keep", "٣"),
        ("grace", "0"),
        ("tcp", "open"),
        ("fresh", "yes"),
        ("from", "../../etc/shadow"),
        ("name", "../x"),
        ("name", ""),
        ("end-ns", "1e9"),
        ("end-ns", "99999999999999999999"),
        ("outputs", "relative"),
        ("cpu-check", "none"),
        ("probe", "x" * 5000),
    ],
)
def test_a_value_that_is_none_is_refused(key, value):
    with pytest.raises(errors.UsageError):
        wishes.read(((key, value),))


def test_outputs_are_bounded():
    with pytest.raises(errors.UsageError, match="too many"):
        wishes.read((("outputs", "/a"),) * 101)


@given(st.lists(st.tuples(st.sampled_from(["every", "keep", "name", "from", "end-ns", "grace", "tcp"]), st.text(max_size=12)), max_size=4))
def test_whatever_is_said_is_heard_or_refused(options):
    try:
        found = wishes.read(tuple(options))
    except errors.UsageError:
        return
    assert found.options.keep >= 1
