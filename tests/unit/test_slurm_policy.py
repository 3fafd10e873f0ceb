"""The admin's policy for Slurm: strict to people, exact to the shim."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.slurm import policy

PAGE = b"""
[opt-in]
partitions = ["preempt"]
qos = ["scavenger"]
accounts = ["climate"]
users = ["alice", "1002"]

[never]
users = ["bob"]

[options]
every = "10m"
keep = 3
before-end = "auto"
"""

VECTOR = b"""perdure-shim 1
never-user bob
partition preempt
qos scavenger
account climate
user 1002
user alice
option every=10m
option keep=3
option before-end=auto
end 9
"""
"""As printed in docs/howto/slurm-install.md, and read by the shim's own tests."""


def test_the_policy_of_the_page_makes_the_file_of_the_page():
    assert policy.render(policy.parse(PAGE)) == VECTOR


def test_nothing_said_opts_nobody_in():
    assert policy.parse(b"") == policy.Policy()
    assert policy.render(policy.Policy()) == b"perdure-shim 1\nend 0\n"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (b'[opt-inn]\nusers=["a"]', "opt-in"),
        (b'[opt-in]\npartition=["a"]', "partitions"),
        (b'[never]\nuser=["a"]', "users"),
        (b'[options]\nevry="10m"', "every"),
        (b'[options]\nbefore_end="10m"', "before-end"),
    ],
)
def test_an_unknown_key_names_the_nearest(text, hint):
    with pytest.raises(errors.SettingError) as caught:
        policy.parse(text)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        b"[opt-in",
        b"\xff",
        b'opt-in = "alice"',
        b'[opt-in]\nusers = "alice"',
        b"[opt-in]\nusers = [1002]",
        b'[opt-in]\nusers = ["a b"]',
        b'[opt-in]\nusers = ["a\\nuser root"]',
        b'[opt-in]\nusers = [""]',
        b'[opt-in]\naccounts = ["' + b"x" * 256 + b'"]',
        b'[options]\nevery = "10"',
        b'[options]\nevery = "0.1s"',
        b"[options]\nkeep = 0",
        b"[options]\nkeep = true",
        b"[options]\nkeep = 1.5",
        b'[options]\ntcp = "drop"',
        b'[options]\ngrace = "0"',
        b"#" * (policy.LARGEST_BYTES + 1),
    ],
)
def test_what_cannot_be_meant_is_refused(text):
    with pytest.raises(errors.SettingError):
        policy.parse(text)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"perdure-shim 2\nend 0\n",
        VECTOR[:-1],
        VECTOR + b"\n",
        VECTOR.replace(b"end 9", b"end 8"),
        VECTOR.replace(b"user bob", b"user"),
        VECTOR.replace(b"qos", b"gos"),
        *(VECTOR[:cut] for cut in range(0, len(VECTOR) - 1, 7)),
    ],
)
def test_the_shim_s_file_is_whole_or_refused(content):
    with pytest.raises(errors.InputFormat):
        policy.parse_shim(content)


_NAME = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=40)
_NAMES = st.builds(policy.Names, **dict.fromkeys(("partitions", "qos", "accounts", "users"), st.lists(_NAME, max_size=4).map(tuple)))


@given(opt_in=_NAMES, never=_NAMES, options=st.fixed_dictionaries({}, optional={"every": st.just("10m"), "keep": st.just("3")}))
def test_what_is_written_is_read_back(opt_in, never, options):
    written = policy.render(policy.Policy(opt_in, never, options))
    again = policy.parse_shim(written)
    assert policy.render(again) == written
    assert set(again.opt_in.users) == set(opt_in.users)
    assert set(again.never.qos) == set(never.qos)
    assert dict(again.options) == options


def test_applying_writes_once_and_for_all_to_read(tmp_path):
    path = tmp_path / "slurm.shim"
    made = policy.parse(PAGE)
    assert policy.apply(made, str(path)) is True
    assert path.read_bytes() == VECTOR
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.stat()
    assert policy.apply(made, str(path)) is False
    assert path.stat().st_ino == before.st_ino


def test_a_policy_that_others_can_change_is_not_applied(tmp_path):
    path = tmp_path / "slurm.toml"
    path.write_bytes(PAGE)
    path.chmod(0o666)
    with pytest.raises(errors.InputDenied):
        policy.load(str(path), trusted=True)
    assert policy.load(str(path), trusted=False).options["keep"] == "3"
    path.chmod(0o644)
    if os.geteuid() == 0:
        assert policy.load(str(path), trusted=True) == policy.parse(PAGE)
        os.chown(path, 65534, 65534)
        with pytest.raises(errors.InputDenied):
            policy.load(str(path), trusted=True)
    assert policy.load(str(tmp_path / "absent"), trusted=True) == policy.Policy()
