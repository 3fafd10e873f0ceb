"""How findings are printed and counted."""

from __future__ import annotations

import json

import pytest

from perdure import errors
from perdure.cli import console, findings
from perdure.model.finding import Finding, Severity

INFO = Finding(code="network-tcp-closed", severity=Severity.INFO, subject="pid 7 fd 3", message="closed on restore")
PROBLEM = Finding(
    code="file-io-uring",
    severity=Severity.PROBLEM,
    subject="pid 7 fd 9",
    message="io_uring \x1b[31mcannot\n be saved",
    remedy="UV_USE_IO_URING=0",
    pid=7,
    fd=9,
)


def test_one_line_without_control_characters():
    assert findings.line(PROBLEM) == ("problem  file-io-uring  pid 7 fd 9: io_uring \\x1b[31mcannot\\n be saved → UV_USE_IO_URING=0")


def test_lines_are_gravest_first_and_never_wrapped(capsys):
    findings.show(console.Common(), [INFO, PROBLEM], nothing="nothing")
    lines = capsys.readouterr().out.splitlines()
    assert [text.split()[0] for text in lines] == ["problem", "info"]


def test_json_counts_problems_and_leaves_out_what_is_not_known(capsys):
    findings.show(console.Common(json=True), [INFO, PROBLEM], nothing="nothing")
    document = json.loads(capsys.readouterr().out)
    assert document["problems"] == 1
    assert document["findings"][0]["pid"] == 7
    assert "pid" not in document["findings"][1]


def test_nothing_found_is_a_note_and_not_a_result(capsys):
    findings.show(console.Common(), [], nothing="nothing prevents it")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "nothing prevents it\n"


def test_only_problems_end_with_status_4():
    findings.refuse_problems([INFO], what="it cannot be saved")
    with pytest.raises(errors.Findings, match="it cannot be saved: 1 problem") as caught:
        findings.refuse_problems([INFO, PROBLEM], what="it cannot be saved")
    assert caught.value.exit_status == 4
