"""Files of variables for a workload's environment."""

from __future__ import annotations

import pytest

from perdure import errors
from perdure.supervisor import environment


def test_a_value_is_taken_as_it_is():
    text = 'A=1 2 "q"\n# comment\n\n  HOME\nEMPTY=\nB= =x\nABSENT\n'
    assert environment.parse(text, {"HOME": "/root", "OTHER": "x"}, name="f") == {"A": '1 2 "q"', "HOME": "/root", "EMPTY": "", "B": " =x"}


@pytest.mark.parametrize("within", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r"], ids=ascii)
def test_only_a_newline_ends_a_line(within):
    assert environment.parse(f"A=a{within}b\r\nC=1\n", {}, name="f") == {"A": f"a{within}b", "C": "1"}


def test_bytes_that_are_no_text_come_through(tmp_path):
    (tmp_path / "f").write_bytes(b"A=caf\xe9")
    assert environment.read(tmp_path / "f", {}) == {"A": "caf\udce9"}


@pytest.mark.parametrize("line", ["x y=1", "=1", "1A=1"])
def test_what_is_no_variable_is_refused_with_its_line(line):
    with pytest.raises(errors.InputFormat, match="f: line 2 is not KEY=VALUE"):
        environment.parse(f"A=1\n{line}\n", {}, name="f")
