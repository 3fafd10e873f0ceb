"""Whatever stands in a file, the reader neither crashes nor loses a line: each is in one count (`reading.read` asserts it).

The normal run reads some ten thousand lines; the mark `fuzz` a million.
"""

from __future__ import annotations

import json
import random

import pytest
import reading
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import errors

FIELDS = ["Cluster", "DBIndex", "JobID", "JobIDRaw", "UID", "User", "Submit", "Start", "End", "ElapsedRaw", "Elapsed", "Suspended",
          "TimelimitRaw", "State", "ExitCode", "NNodes", "AllocNodes", "AllocTRES", "ReqTRES", "AllocGRES", "Restarts", "Planned", "Reason",
          "Comment", "WorkDir", "SubmitLine", "JobName"]  # fmt: skip
WORDS = [
    b"", b"0", b"1", b"-1", b"12", b"12_3", b"12_[1-5%2]", b"12_[1,...", b"12+1", b"12.batch", b"99999999999999999999",
    b"1e5", b"inf", b"nan", b"COMPLETED", b"FAILED", b"CANCELLED by 0", b"CANCELLED by", b"REVOKED", b"Unknown", b"None",
    b"INVALID", b"UNLIMITED", b"Partition_Limit", b"2026-01-05T00:00:00", b"2026-13-45T99:99:99", b"0001-01-01T00:00:00",
    b"9999-12-31T23:59:59", b"1767600030", b"-99999999999999999", b"00:00:00", b"1-02:03:04", b"99:99", b"12:34.5", b":::",
    b"--", b"0:0", b"0:9", b"137:0", b":", b"999999999999:9", b"gres/gpu=8", b"gres/gpu:a100=8,gres/gpu=8", b"gres/gpu=",
    b"gres/gpu:=,", b"gpu:a100:2", b"gpu:(", b"--gpus=999999999999999999999", b"sbatch -G h100:1,",
    b"--dependency=afterok:1:2", b"\xff\xfe", b"\xc3\xa9", b"\x00", b"\r", b"\n", b"\n\n", b"|", b"||", b"#", b'"', b'"a',
    b"'", b"\\", b"\xe2\x80\xae", b"x" * 5000, b"JobID", b"State",
]  # fmt: skip


def fuzzed(seed: int, lines: int, delimiter: bytes = b"|") -> bytes:
    """A file of `lines` records whose cells, widths and line ends are what `seed` makes of them; some are sound."""
    source = random.Random(seed)
    names = source.sample(FIELDS, source.randint(4, len(FIELDS)))
    names += [name for name in ("JobIDRaw", "State") if name not in names]
    made = [delimiter.join(name.encode() for name in names)]
    plain = {"JobID": b"12_3", "JobIDRaw": b"12", "State": b"COMPLETED", "ElapsedRaw": b"60", "Submit": b"2026-01-05T00:00:00"}
    for number in range(lines):
        chance = source.random()
        if chance < 0.5:
            cells = [plain.get(name, b"") for name in names]
            cells[names.index("JobIDRaw")] = str(number).encode()
            if chance < 0.2:
                cells[source.randrange(len(cells))] = source.choice(WORDS)
        elif chance < 0.9:
            cells = source.choices(WORDS, k=len(names) + source.choice((0, 0, 0, -1, 1, 3)))
        else:
            cells = [source.randbytes(source.randint(0, 60))]
        made.append(delimiter.join(cells))
    return source.choice((b"\n", b"\n", b"\r\n")).join(made) + source.choice((b"", b"\n"))


@pytest.mark.parametrize("seed", range(24))
def test_fuzzed_lines(tmp_path, seed):
    delimiter = (b"|", b"|#", b"\t")[seed % 3]
    try:
        rows, summary = reading.read_text(tmp_path, fuzzed(seed, 400, delimiter))
    except errors.InputFormat as error:
        assert "times cannot be read" in str(error)  # noqa: PT017
        return
    assert summary.lines > 0
    assert all(row["gpus"] is None or row["gpus"] >= 0 for row in rows)
    assert all(row["elapsed_s"] is None or row["elapsed_s"] >= 0 for row in rows)
    assert all(row["outcome"] for row in rows)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_a_million_fuzzed_lines(tmp_path, seed):
    try:
        _, summary = reading.read_text(tmp_path, fuzzed(seed, 50_000))
    except errors.InputFormat as error:
        assert "times cannot be read" in str(error)  # noqa: PT017
    else:
        assert summary.lines >= 50_000


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(WORDS), max_size=60), st.sampled_from([b"|", b"\n", b",", b" "]))
def test_any_bytes_after_a_header(tmp_path, words, glue):
    rows, _ = reading.read_text(tmp_path, b"JobID|State|ElapsedRaw|JobName\n" + glue.join(words))
    assert all(row["job_id"][0].isdigit() for row in rows)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_any_bytes_at_all(tmp_path, content):
    try:
        reading.read_text(tmp_path, content)
    except errors.PerdureError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert error.exit_status == 2  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["set", "infinite", "number", "current", "limit", "id"]), inner)
    ),
    max_leaves=6,
)
KEYS = ["job_id", "state", "time", "tres", "array", "het", "exit_code", "kill_request_user", "user", "submit_line", "restart_cnt", "nodes"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), json_values) | json_values, max_size=5))
def test_any_json(tmp_path, jobs):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs, "meta": None, "errors": None}))
    _, summary = reading.read(path)
    assert summary.lines == len(jobs)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_json_is_refused_or_read(tmp_path, place, byte):
    content = bytearray(json.dumps({"jobs": [{"job_id": 7, "state": {"current": ["FAILED"]}}] * 6}).encode())
    content[place % len(content)] = byte
    path = tmp_path / "jobs.json"
    path.write_bytes(content)
    try:
        reading.read(path)
    except errors.InputError as error:
        assert error.hint  # noqa: PT017
