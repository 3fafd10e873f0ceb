"""`perdure history anonymise` on a simulated fleet: the same figures, and nobody's name."""

from __future__ import annotations

import json
import math

import factories
import pytest

import perdure as library
from perdure.history import table


@pytest.fixture
def fleet(perdure, tmp_path):
    """Sacct text of a small fleet, with the quirks that break careless readers."""
    done = perdure("history", "simulate", "--seed", "5", "--gpus", "128", "--days", "20", "-o", "fleet")
    assert done.returncode == 0, done.stderr
    return tmp_path / "fleet" / "sacct.txt"


def _differences(before, after, path=""):
    """Where two documents differ in anything but rounding."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        return [found for key in before for found in _differences(before[key], after[key], f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [found for at, pair in enumerate(zip(before, after, strict=True)) for found in _differences(*pair, f"{path}/{at}")]
    if isinstance(before, float) and isinstance(after, float) and math.isclose(before, after, rel_tol=1e-9):
        return []
    return [] if before == after else [(path, before, after)]


def test_advise_gives_the_same_figures(perdure, fleet, tmp_path):
    done = perdure("history", "anonymise", fleet, "-o", "shareable.parquet", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["proof"]["words"] > 50
    assert result["proof"]["cells"] > result["rows"] > 500
    answers = []
    for history in (fleet, tmp_path / "shareable.parquet"):
        said = perdure("advise", history, "--what-if", "--json")
        assert said.returncode == 0, said.stderr
        answers.append(json.loads(said.stdout))
    for answer in answers:
        # The order of rows is that of losses; equal losses go by name.
        answer["workloads"].sort(
            key=lambda one: json.dumps({**one, "evidence": {**one["evidence"], "key": one["evidence"]["key"]["size"]}})
        )
    found = _differences(*answers)
    hidden = {path for path, *_ in found if path.rsplit("/", 1)[-1] in {"user", "account", "name", "cluster"} and "/key/" in path}
    # Names are others and times are shifted; what the import said of the text is not in the table. No figure differs.
    assert {path for path, *_ in found} - hidden <= {"/history", "/exposure/start", "/exposure/end", "/notes"}
    assert len(hidden) > len(answers[0]["workloads"])
    assert len(answers[0]["workloads"]) > 20


def test_no_name_of_the_fleet_is_in_the_bytes_of_the_file(perdure, fleet, tmp_path):
    perdure("history", "import", fleet, "-o", "plain.parquet")
    perdure("history", "anonymise", "plain.parquet", "-o", "shareable.parquet")
    connection = table.connect()
    secrets = set()
    for column in ("user", "account", "partition", "cluster"):
        secrets |= {
            row[0] for row in connection.execute(f"SELECT DISTINCT \"{column}\" FROM read_parquet('{tmp_path}/plain.parquet')").fetchall()
        }
    long_enough = [secret.encode() for secret in secrets if secret and len(secret) >= 5]
    assert len(long_enough) > 3
    content = (tmp_path / "shareable.parquet").read_bytes()
    assert not [secret for secret in long_enough if secret in content]


def test_a_kept_key_gives_the_same_file_content_again(perdure, tmp_path):
    factories.parquet(
        tmp_path / "in.parquet", [factories.row(number, 1, job_id=str(number + 1), user=f"u{number % 3}") for number in range(20)]
    )
    rows = []
    for name in ("one", "two"):
        done = perdure("history", "anonymise", "in.parquet", "-o", f"{name}.parquet", "--key-file", "key")
        assert done.returncode == 0, done.stderr
        connection = table.connect()
        table.open_attempts(connection, tmp_path / f"{name}.parquet")
        rows.append(sorted(map(str, connection.execute("SELECT * FROM attempts").fetchall())))
    assert rows[0] == rows[1]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "one.parquet").stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "key").read_bytes().strip()
    assert key not in (tmp_path / "one.parquet").read_bytes()


def test_a_history_is_never_anonymised_onto_itself(perdure, tmp_path):
    path = factories.parquet(tmp_path / "in.parquet", [factories.row()])
    before = path.read_bytes()
    done = perdure("history", "anonymise", "in.parquet", "-o", "in.parquet")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert path.read_bytes() == before


def test_the_library_reads_what_was_anonymised(perdure, tmp_path):
    factories.parquet(tmp_path / "in.parquet", [factories.row(number, 1, job_id=str(number + 1)) for number in range(20)])
    perdure("history", "anonymise", "in.parquet", "-o", "out.parquet")
    assert library.advise(tmp_path / "out.parquet").exposure.attempts == 20
