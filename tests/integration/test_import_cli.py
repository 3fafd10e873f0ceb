"""`perdure history import` as a process: what it writes, prints and ends with, and what bad input gets."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import sys

import pytest

from perdure.history import table

TEXT = (
    "JobIDRaw|State|Submit|Start|End|ElapsedRaw|AllocTRES|User|JobName\n"
    "1|COMPLETED|2026-01-05T00:00:00|2026-01-05T00:00:10|2026-01-05T01:00:10|3600|gres/gpu=8,node=1|ann|train\n"
    "2|NODE_FAIL|2026-01-05T00:00:00|2026-01-05T00:00:10|2026-01-05T01:00:10|3600|gres/gpu=8,node=1|bob|a|b\n"
    "3.batch|COMPLETED|2026-01-05T00:00:00|2026-01-05T00:00:10|2026-01-05T01:00:10|3600|||x\n"
)


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "sacct.txt"
    path.write_text(TEXT)
    return path


def attempts(path):
    connection = table.connect()
    table.open_attempts(connection, path)
    return connection.execute("SELECT raw_id, outcome, gpus, cluster FROM attempts ORDER BY raw_id").fetchall()


def test_import_writes_attempts_and_says_what_it_did(perdure, history, tmp_path):
    done = perdure("history", "import", history, "-o", "out.parquet", "--cluster", "alpha")
    assert done.returncode == 0, done.stderr
    assert "2 attempts from 4 lines" in done.stdout
    assert "skipped: step 1" in done.stdout
    assert "repaired: delimiter in a field 1" in done.stdout
    assert attempts(tmp_path / "out.parquet") == [("1", "success", 8, "alpha"), ("2", "infrastructure", 8, "alpha")]
    assert (tmp_path / "out.parquet").stat().st_mode & 0o077 == 0


def test_json_says_the_same(perdure, history, tmp_path):
    done = perdure("history", "import", history, "-o", "out.parquet", "--json")
    summary = json.loads(done.stdout)
    assert (summary["lines"], summary["attempts"], summary["unaccounted"]) == (4, 2, 0)
    assert summary["outcomes"] == {"infrastructure": 1, "success": 1}
    assert summary["files"][0]["skipped"] == {"step": 1}


def _pack(raw: bytes, kind: str) -> bytes:
    if kind != "zst":
        return {"gz": gzip, "xz": lzma, "bz2": bz2}[kind].compress(raw)
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd.compress(raw)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
@pytest.mark.parametrize("kind", ["gz", "xz", "zst", "bz2"])
def test_damaged_compressed_data_is_said_in_one_line(perdure, history, tmp_path, kind, damage):
    packed = _pack(history.read_bytes(), kind)
    middle = len(packed) // 2
    path = tmp_path / f"sacct.txt.{kind}"
    path.write_bytes(packed[:middle] if damage == "cut" else packed[:middle] + b"\xff" * (len(packed) - middle))
    done = perdure("history", "import", path, "-o", "out.parquet")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "pull it again" in done.stderr
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("kind", ["gz", "xz", "zst", "bz2", "stdin"])
def test_compressed_and_streamed(perdure, history, tmp_path, kind):
    raw = history.read_bytes()
    if kind == "stdin":
        with history.open() as stream:
            done = perdure("history", "import", "/dev/stdin", "-o", "out.parquet", stdin=stream)
    else:
        path = tmp_path / f"sacct.txt.{kind}"
        path.write_bytes(_pack(raw, kind))
        done = perdure("history", "import", path, "-o", "out.parquet")
    assert done.returncode == 0, done.stderr
    assert len(attempts(tmp_path / "out.parquet")) == 2


def test_attempts_files_and_text_together(perdure, history, tmp_path):
    assert perdure("history", "import", history, "-o", "one.parquet").returncode == 0
    more = tmp_path / "more.txt"
    more.write_text(TEXT.replace("\n1|", "\n9|"))
    done = perdure("history", "import", tmp_path / "one.parquet", more, "-o", "all.parquet")
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in attempts(tmp_path / "all.parquet")] == ["1", "2", "9"]


def test_outcome_of_a_state_can_be_set(perdure, history, tmp_path):
    done = perdure("history", "import", history, "-o", "out.parquet", "--outcome", "NODE_FAIL=user_failure")
    assert done.returncode == 0, done.stderr
    assert ("2", "user_failure", 8, None) in attempts(tmp_path / "out.parquet")


def test_without_state_the_file_is_written_and_the_status_says_what_lacks(perdure, tmp_path):
    path = tmp_path / "bare.txt"
    path.write_text("JobIDRaw|Start|End|ElapsedRaw\n1|2026-01-05T00:00:10|2026-01-05T01:00:10|3600\n")
    done = perdure("history", "import", path, "-o", "out.parquet")
    assert done.returncode == 3
    assert "State is missing" in done.stderr
    assert "sacct" in done.stderr
    assert len(attempts(tmp_path / "out.parquet")) == 1


def bad_inputs(folder):
    (folder / "a-folder").mkdir()
    contents = {
        "empty.txt": b"",
        "blank.txt": b"\n\n",
        "paper.pdf": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
        "binary.dat": bytes(range(256)) * 8,
        "people.txt": b"JobID           State\n------------ ----------\n1            OUT_OF_ME+\n",
        "no-id.txt": b"State|ElapsedRaw\nCOMPLETED|5\n",
        "prose.txt": b"Dear all,\nthe cluster is down.\n",
        "cut.json": b'{"jobs": [{"job_id": 1}, {"job',
        "other.json": b'{"nodes": []}',
        "broken.gz": b"\x1f\x8b\x08\x00garbage",
        "other.parquet": b"PAR1 not really",
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return ["missing.txt", "a-folder", *contents]


def test_bad_input_gets_one_line_with_what_to_do(perdure, tmp_path):
    for name in bad_inputs(tmp_path):
        done = perdure("history", "import", name, "-o", "out.parquet")
        assert done.returncode == 2, (name, done.stderr)
        (line,) = done.stderr.splitlines()
        assert name in line
        assert line.endswith(")"), line
        assert not list(tmp_path.glob("*out.parquet*")), name


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_input_without_rights(perdure, history):
    history.chmod(0)
    done = perdure("history", "import", history, "-o", "out.parquet")
    assert done.returncode == 2
    assert "no permission" in done.stderr


def test_output_into_a_missing_folder(perdure, history, tmp_path):
    done = perdure("history", "import", history, "-o", "nowhere/out.parquet")
    assert done.returncode == 20
    assert "mkdir -p" in done.stderr


def test_full_disk(perdure, history, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    done = perdure("history", "import", history, "-o", "/dev/full/out.parquet")
    assert done.returncode == 20
    assert len(done.stderr.splitlines()) == 1


def test_output_over_an_input_is_refused(perdure, history):
    before = history.read_bytes()
    done = perdure("history", "import", history, "-o", history)
    assert done.returncode == 2
    assert history.read_bytes() == before


def test_unknown_map_and_bad_outcome(perdure, history):
    done = perdure("history", "import", history, "-o", "out.parquet", "--map", "nowhere.toml")
    assert (done.returncode, "nrel-eagle" in done.stderr) == (2, True)
    for text in ("NODE_FAIL", "NODE_FAIL=maybe"):
        done = perdure("history", "import", history, "-o", "out.parquet", "--outcome", text)
        assert done.returncode == 2


def test_untrusted_text_does_not_reach_the_terminal(perdure, tmp_path):
    path = tmp_path / "sacct.txt"
    path.write_bytes(b"JobIDRaw|State|ElapsedRaw\n1|COMPLETED|5\n\x1b]0;owned\x07|x\n")
    done = perdure("history", "import", path, "-o", "out.parquet")
    assert "\x1b" not in done.stdout + done.stderr
    assert "owned" in done.stdout
