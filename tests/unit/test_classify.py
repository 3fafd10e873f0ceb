"""Outcome classes: each state, the rules beside them, and what a caller may change."""

from __future__ import annotations

import pytest
import reading

from perdure import errors
from perdure.history import classify
from perdure.model.attempt import INCLUSIVE, STRICT, Outcome

HEAD = "JobIDRaw|UID|User|State|Start|End|ElapsedRaw|TimelimitRaw|ExitCode|FailedNode"


def outcome_of(folder, state, *, elapsed=600, limit=60, code="0:0", node="", started=True, uid="5", **request):
    start = "2026-01-05T00:00:01" if started else "None"
    line = f"1|{uid}|ann|{state}|{start}|2026-01-05T02:00:01|{elapsed}|{limit}|{code}|{node}"
    (row,), _ = reading.read_text(folder, f"{HEAD}\n{line}\n", **request)
    return row["outcome"]


@pytest.mark.parametrize(("state", "expected"), sorted(classify.CLASS_OF.items()))
def test_every_state_has_its_class(tmp_path, state, expected):
    assert outcome_of(tmp_path, state) == expected


@pytest.mark.parametrize(("code", "state"), sorted(classify.SHORT_CODES.items()))
def test_short_codes_are_states(tmp_path, code, state):
    assert outcome_of(tmp_path, code) == classify.CLASS_OF[state]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": "CANCELLED by 5"}, "user_cancel"),
        ({"state": "CANCELLED by ann"}, "user_cancel"),
        ({"state": "CANCELLED by 0"}, "operator_cancel"),
        ({"state": "CANCELLED by 6"}, "operator_cancel"),
        ({"state": "CANCELLED by 6", "uid": ""}, "user_cancel"),
        ({"state": "CANCELLED by 0", "uid": ""}, "operator_cancel"),
        ({"state": "CANCELLED by 0", "started": False, "elapsed": 0}, "never_started"),
        ({"state": "FAILED", "started": False, "elapsed": 0}, "never_started"),
        ({"state": "DEADLINE", "started": False, "elapsed": 0}, "never_started"),
        ({"state": "NODE_FAIL", "started": False, "elapsed": 0}, "infrastructure"),
        ({"state": "FAILED", "elapsed": 3600, "code": "1:0"}, "walltime"),
        ({"state": "FAILED", "elapsed": 3599, "code": "1:0"}, "user_failure"),
        ({"state": "FAILED", "elapsed": 3545, "code": "0:15"}, "walltime"),
        ({"state": "FAILED", "elapsed": 3545, "code": "143:0"}, "walltime"),
        ({"state": "FAILED", "elapsed": 3500, "code": "0:12"}, "user_failure"),
        ({"state": "CANCELLED by 0", "elapsed": 3700}, "walltime"),
        ({"state": "COMPLETED", "elapsed": 3700}, "success"),
        ({"state": "FAILED", "elapsed": 9999, "limit": "UNLIMITED"}, "user_failure"),
        ({"state": "FAILED", "elapsed": 9999, "limit": "Partition_Limit"}, "user_failure"),
        ({"state": "FAILED", "node": "g1"}, "suspected_infrastructure"),
        ({"state": "FAILED", "code": "0:9"}, "suspected_infrastructure"),
        ({"state": "FAILED", "code": "137:0"}, "suspected_infrastructure"),
        ({"state": "FAILED", "code": "0:11"}, "user_failure"),
        ({"state": "FAILED", "code": "2:0"}, "user_failure"),
        ({"state": "OUT_OF_MEMORY", "code": "0:125"}, "user_failure"),
        ({"state": "SPECIAL_EXIT"}, "other"),
        ({"state": "SOMETHING_NEW"}, "other"),
    ],
)
def test_rules(tmp_path, changes, expected):
    assert outcome_of(tmp_path, **changes) == expected


def test_a_caller_may_class_states(tmp_path):
    table = classify.parse_overrides({"special_exit": "USER_FAILURE", "CANCELLED": "operator_cancel"})
    assert table == {"SPECIAL_EXIT": Outcome.USER_FAILURE, "CANCELLED": Outcome.OPERATOR_CANCEL}
    assert outcome_of(tmp_path, "SPECIAL_EXIT", outcomes=table) == "user_failure"
    assert outcome_of(tmp_path, "CANCELLED by 5", outcomes=table) == "operator_cancel"
    with pytest.raises(errors.UsageError, match="maybe"):
        classify.parse_overrides({"FAILED": "maybe"})


def test_users_own_endings_are_never_interruptions():
    for outcome in (Outcome.SUCCESS, Outcome.USER_FAILURE, Outcome.USER_CANCEL, Outcome.CENSORED, Outcome.NEVER_STARTED, Outcome.OTHER):
        assert outcome not in STRICT
        assert outcome not in INCLUSIVE
