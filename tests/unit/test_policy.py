"""Policies: what they set for which workload, where each value came from, and how a mistake is named."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure import errors
from perdure.decision import policy
from perdure.model.advice import Costs, Size, WorkloadKey

TEXT = """
[costs]
checkpoint_cost = "90s"
gpu_hour_price = 2.5
deadline = "22h"

[[workload]]
name = "llm-*"
min_gpus = 64
checkpoint-cost = "10m"
checkpoint_size = "640G"
idempotent = false

[[workload]]
user = "ali[ck]e"
partition = "gpu"
restore_cost_minutes = 4
deadline_minutes = 30

[[workload]]
max_nodes = 2
durable_fraction = 0.5
"""


def key(name="x", user="bob", size=Size(128), account="a") -> WorkloadKey:
    return WorkloadKey("c", user, account, name, size)


def test_defaults_are_those_of_the_record():
    assert policy.Policy().costs_for(key()) == Costs()
    assert policy.Policy().deadline_for(key()) is None
    assert all(one.origin == "default" for one in policy.Policy().assumptions())
    assert {field.name for field in policy.FIELDS} == {*Costs.__struct_fields__, "deadline_minutes"}


def test_the_first_rule_that_matches_counts():
    read = policy.parse_policy(TEXT, source="site.toml")
    llm = read.costs_for(key("llm-#", user="alice"), partition="gpu")
    assert (llm.checkpoint_cost_minutes, llm.checkpoint_size_gb, llm.idempotent) == (10.0, 640.0, False)
    assert llm.restore_cost_minutes == Costs().restore_cost_minutes  # the second rule would say 4
    assert llm.gpu_hour_price == 2.5
    assert read.costs_for(key("llm-#", size=Size(63))).checkpoint_cost_minutes == 1.5
    assert read.costs_for(key(user="alice"), partition="gpu").restore_cost_minutes == 4.0
    assert read.deadline_for(key(user="alice"), partition="gpu") == 30.0
    assert read.deadline_for(key(user="alice")) == 1320.0  # the partition is not known
    assert read.costs_for(key(size=Size(2, "node"))).durable_fraction == 0.5
    assert read.costs_for(key(size=Size(2, "gpu"))).durable_fraction == 0.0


def test_each_value_keeps_its_origin():
    read = policy.parse_policy(TEXT, source="site.toml").override({"downtime_minutes": 7, "idempotent": None}, lambda name: f"--{name}")
    found = {one.name: (one.value, one.origin) for one in read.assumptions(key("llm-#"))}
    assert found["checkpoint_cost_minutes"] == (10.0, "site.toml [[workload]] 1")
    assert found["gpu_hour_price"] == (2.5, "site.toml [costs]")
    assert found["downtime_minutes"] == (7.0, "--downtime_minutes")
    assert found["fresh_cost_minutes"] == (5.0, "default")
    assert found["idempotent"] == (False, "site.toml [[workload]] 1")


def test_a_flag_is_above_every_rule():
    read = policy.parse_policy(TEXT).override({"checkpoint_cost_minutes": "3m"}, lambda _: "--checkpoint-cost")
    assert read.costs_for(key("llm-#")).checkpoint_cost_minutes == 3.0
    assert read.costs_for(key("llm-#")).idempotent is False
    assert read.costs_for(key()).checkpoint_cost_minutes == 3.0


MISTAKES = [
    ("[cost]", "costs"),
    ("[costs]\nchekpoint_cost = '2m'", "checkpoint_cost"),
    ("[[workload]]\nnmae = 'x'", "name"),
    ("[costs]\ncheckpoint_cost = 2", "no unit"),
    ("[costs]\ncheckpoint_cost = '2'", "no unit"),
    ("[costs]\ndeadline = '-5m'", "negative"),
    ("[costs]\ndurable_fraction = 2", "out of range"),
    ("[costs]\ngpu_hour_price = -1", "out of range"),
    ("[costs]\ncheckpoint_cost_minutes = nan", "out of range"),
    ("[costs]\nidempotent = 'yes'", "true or false"),
    ("[costs]\ngpu_hour_price = true", "number"),
    ("[costs]\ngpu_hour_price = 'much'", "number"),
    ("[costs]\ncheckpoint_size = 'big'", "size"),
    ("[costs]\ncheckpoint_cost = '2m'\ncheckpoint_cost_minutes = 2", "twice"),
    ("[[workload]]\nidempotent = true", "nothing in particular"),
    ("[[workload]]\nname = 3", "text"),
    ("[[workload]]\nmin_gpus = 'many'", "number"),
    ("costs = 1", "table"),
    ("workload = 1", "list"),
    ("x = ", "TOML"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_is_named(text, said):
    with pytest.raises((errors.SettingError, errors.QuantityError)) as caught:
        policy.parse_policy(text, source="site.toml")
    told = f"{caught.value} {caught.value.hint}"
    assert said in told
    assert "site.toml" in told
    assert "\n" not in str(caught.value)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(errors.UsageError):
        policy.parse_policy(text)


def test_the_reference_table_names_every_field():
    rows = policy.reference_rows()
    assert [row[0] for row in rows] == [field.name for field in policy.FIELDS]
    assert all(all(cell for cell in row) for row in rows)


def test_files(tmp_path):
    path = tmp_path / "site.toml"
    path.write_text(TEXT)
    assert perdure.load_policy(path).costs_for(key("llm-#")).checkpoint_cost_minutes == 10.0
    with pytest.raises(errors.InputMissing):
        perdure.load_policy(tmp_path / "none.toml")
    with pytest.raises(errors.InputMissing):
        perdure.load_policy(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(errors.InputFormat):
        perdure.load_policy(path)
    with path.open("wb") as handle:
        handle.truncate(5_000_000)
    with pytest.raises(errors.InputFormat, match="large"):
        perdure.load_policy(path)
