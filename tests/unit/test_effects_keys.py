"""Canonical text and derived keys, against RFC 8785's own examples and Python's reading of the same text."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.effects import Ledger, canonical, derive_key
from perdure.effects.keys import digest

# RFC 8785 appendix B: IEEE 754 bits and the text that ECMAScript gives them.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_numbers_are_written_as_the_rfc_says(bits, text):
    assert canonical(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


def test_the_rfcs_object():
    """RFC 8785 section 3.2.2 and 3.2.3."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical(value) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert [key for key, _ in json.loads(canonical(keys), object_pairs_hook=list)] == [
        "\r",
        "1",
        "\u0080",
        "\u00f6",
        "\u20ac",
        "\U0001f600",
        "\ufb33",
    ]


@settings(max_examples=50)
@given(VALUES)
def test_the_text_reads_back_as_the_value_and_is_its_own_canonical_text(value):
    text = canonical(value)
    read = json.loads(text, parse_int=float)  # JSON numbers are doubles
    assert read == value
    assert canonical(read) == text


@given(st.dictionaries(st.text(), st.integers(0, 9), max_size=6), st.randoms())
def test_the_order_of_members_does_not_matter(value, random):
    items = list(value.items())
    random.shuffle(items)
    assert digest(dict(items)) == digest(value)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**53, -(2**53), "\ud800", {1: 2}, {"\ud800": 1}, object(), {1, 2}, b"x", [[math.nan]]],
)
def test_what_has_no_one_text_is_refused(value):
    with pytest.raises(errors.UsageError):
        canonical({"value": value})


def test_a_value_too_deep_is_refused():
    value: list = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(errors.UsageError, match="deeper"):
        canonical(value)


def test_a_key_tells_what_differs_and_nothing_else():
    assert derive_key("mail", {"to": "a", "n": 1}) == derive_key("mail", {"n": 1.0, "to": "a"})
    assert len({derive_key("mail", value) for value in ({}, [], "", 0, None, False, {"a": 1}, {"a": "1"})}) == 8
    assert derive_key("mail", {"to": "a"}) == "mail-6aaffc65ba7919416bca2bd0c2a3ca62"  # printf '{"to":"a"}' | sha256sum
    with pytest.raises(errors.UsageError):
        derive_key("two words", 1)


# -- the names of decorated functions -----------------------------------------------------------------------------------------

SCRIPT = """
import multiprocessing
import sys
from perdure.effects import Ledger

ledger = Ledger(sys.argv[1])

@ledger.step({given})
def notify(run):
    with open(sys.argv[1] + ".sent", "a") as handle:
        handle.write("{mail}\\n")
    return "{mail}"

if __name__ == "__main__":
    print(notify("r1"), flush=True)
    child = multiprocessing.get_context("spawn").Process(target=notify, args=("r1",))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def run_script(folder: Path, name: str, given: str) -> subprocess.CompletedProcess[str]:
    """Run a script that sends one mail, and again in a spawned worker, unless the ledger in `folder` knows that it was sent."""
    script = folder / f"{name}.py"
    script.write_text(SCRIPT.format(given=given, mail=name))
    source = Path(__file__).parents[2] / "src"
    command = [sys.executable, str(script), str(folder / "effects.db")]
    return subprocess.run(command, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(source)}, capture_output=True, text=True)


def test_a_function_of_a_script_has_no_name_of_its_own(tmp_path):
    """It is in `__main__` in every script, and in `__mp_main__` in the workers of each."""
    done = run_script(tmp_path, "train", "")
    assert "notify needs name= or key=" in done.stderr
    assert done.returncode == 1
    assert not (tmp_path / "effects.db.sent").exists()


def test_a_name_is_the_same_in_a_script_and_its_workers_and_tells_scripts_apart(tmp_path):
    done = [run_script(tmp_path, name, f"name='{name}-mail'") for name in ("train", "evaluate", "train")]
    assert [(run.returncode, run.stdout, run.stderr) for run in done] == [(0, f"{name}\n", "") for name in ("train", "evaluate", "train")]
    assert (tmp_path / "effects.db.sent").read_text() == "train\nevaluate\n"


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_so_it_is_refused_where_it_is_decorated(module, tmp_path):
    def notify() -> None: ...

    notify.__module__ = module
    with pytest.raises(errors.UsageError, match=r"notify .*no name of their own") as caught:
        Ledger(tmp_path / "effects.db").step()(notify)
    assert "name=" in caught.value.hint
    for options in ({"name": "n"}, {"key": "k"}, {"key": lambda: "k"}):
        Ledger(tmp_path / "effects.db").step(**options)(notify)


def test_a_lambda_is_refused_too(tmp_path):
    """All those of a module have the same name."""
    with pytest.raises(errors.UsageError, match="no name of their own"):
        Ledger(tmp_path / "effects.db").step()(lambda: None)
