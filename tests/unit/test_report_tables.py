"""CSV and Parquet: nothing lost, nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import math
import os
import stat

import advices
import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.report import tables


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, strict=True))


def test_csv_holds_every_workload_in_order_with_plain_numbers(tmp_path):
    advice = advices.advice()
    tables.write_csv(advice, tmp_path / "out.csv")
    written = read_csv(tmp_path / "out.csv")
    assert len(written) == 40
    assert [row["name"] for row in written] == [row.evidence.key.name for row in advice.workloads]
    first, source = written[0], advice.workloads[0]
    assert float(first["saved_hours"]) == source.saved_gpu_hours == 42_000.28
    assert float(first["mttf_low_minutes"]) == source.mttf.interval.low
    assert first["jobs"] == "12"
    assert first["mttf_extrapolated"] == "true"
    assert first["deadline_minutes"] == ""
    assert float(written[2]["saved_hours"]) < 0, "a cost stays a negative number"


def test_csv_is_rfc_4180(tmp_path):
    tables.write_csv(advices.advice([advices.workload('two\nlines, "quoted"')]), tmp_path / "out.csv")
    content = (tmp_path / "out.csv").read_bytes()
    assert content.endswith(b"\r\n")
    assert b'"two\nlines, ""quoted"""' in content
    assert read_csv(tmp_path / "out.csv")[0]["name"] == 'two\nlines, "quoted"'


def test_no_field_of_a_hostile_history_is_a_formula(tmp_path):
    tables.write_csv(advices.hostile(), tmp_path / "out.csv")
    text_columns = [column.name for column in tables.COLUMNS if column.sql == "VARCHAR"]
    written = read_csv(tmp_path / "out.csv")
    assert len(written) == len(advices.HOSTILE_NAMES)
    for row in written:
        for name in text_columns:
            assert not row[name].startswith(tuple("=+-@\t\r\n＝＋－＠")), row[name]
            # A spreadsheet of another locale splits at semicolons and tabs.
            for part in row[name].replace("\t", ";").split(";"):
                assert not part.startswith(tuple("=+-@")), row[name]


@pytest.mark.parametrize(
    ("given_text", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-2", "'-2"),
        ("@x", "'@x"),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        ("a;=1", "a;'=1"),
        ("＝1", "'＝1"),
        ("a-b=c", "a-b=c"),
        ("train-#", "train-#"),
        ("", ""),
    ],
)
def test_neutral(given_text, written):
    assert tables.neutral(given_text) == written


@given(st.text(alphabet=st.sampled_from("=+-@\t\r\n;,a'＝")))
def test_neutral_text_never_starts_a_formula_and_only_gains_apostrophes(text):
    made = tables.neutral(text)
    assert made[:1] not in tuple("=+-@\t\r\n＝＋－＠") or made == ""
    iterator = iter(made)
    assert all(char in iterator for char in text), "the original is a subsequence"
    assert len(made) - made.count("'") == len(text) - text.count("'")


def test_parquet_has_the_documented_types_and_the_names_as_they_were(tmp_path):
    advice = advices.hostile()
    tables.write_parquet(advice, tmp_path / "out.parquet")
    connection = duckdb.connect()
    described = connection.execute("DESCRIBE FROM read_parquet(?)", [str(tmp_path / "out.parquet")]).fetchall()
    assert [(row[0], row[1]) for row in described] == [(column.name, column.sql) for column in tables.COLUMNS]
    names = connection.execute("SELECT name FROM read_parquet(?)", [str(tmp_path / "out.parquet")]).fetchall()
    assert [row[0] for row in names] == list(advices.HOSTILE_NAMES)


def test_parquet_keeps_infinity_apart_from_unknown(tmp_path):
    tables.write_parquet(advices.gaps(), tmp_path / "out.parquet")
    row = (
        duckdb.connect()
        .execute(
            "SELECT mttf_minutes, mttf_high_minutes, limit_minutes, queue_minutes, retry_expected_minutes, retry_never_finishes"
            " FROM read_parquet(?)",
            [str(tmp_path / "out.parquet")],
        )
        .fetchone()
    )
    assert row == (math.inf, math.inf, math.inf, None, None, True)


def test_parquet_and_csv_agree(tmp_path):
    advice = advices.advice()
    tables.write_csv(advice, tmp_path / "out.csv")
    tables.write_parquet(advice, tmp_path / "out.parquet")
    total = (
        duckdb.connect()
        .execute("SELECT sum(saved_hours), count(saved_hours), sum(jobs) FROM read_parquet(?)", [str(tmp_path / "out.parquet")])
        .fetchone()
    )
    written = read_csv(tmp_path / "out.csv")
    saved = [float(row["saved_hours"]) for row in written if row["saved_hours"]]
    assert total[0] == pytest.approx(math.fsum(saved))
    assert total[1] == len(saved) == 35
    assert total[2] == sum(int(row["jobs"]) for row in written)


def test_no_workload_gives_a_header_and_an_empty_table(tmp_path):
    tables.write_csv(advices.empty(), tmp_path / "out.csv")
    tables.write_parquet(advices.empty(), tmp_path / "out.parquet")
    assert (tmp_path / "out.csv").read_text().startswith("cluster,user,account,name,size,")
    assert read_csv(tmp_path / "out.csv") == []
    assert duckdb.connect().execute("SELECT count(*) FROM read_parquet(?)", [str(tmp_path / "out.parquet")]).fetchone() == (0,)


def test_a_cause_without_a_column_of_its_own_is_counted_as_other():
    row = advices.workload(evidence={"interruptions": {"infrastructure": 2, "cosmic": 5}, "lost_by_cause": {"cosmic": 7.5}})
    flat = next(tables.rows(advices.advice([row])))
    assert (flat["interrupted_infrastructure"], flat["interrupted_other"]) == (2, 5)
    assert (flat["lost_infrastructure_hours"], flat["lost_other_hours"]) == (0.0, 7.5)


def test_bad_bytes_become_visible_escapes(tmp_path):
    advice = advices.advice([advices.workload("bad\udcff")])
    tables.write_csv(advice, tmp_path / "out.csv")
    tables.write_parquet(advice, tmp_path / "out.parquet")
    assert read_csv(tmp_path / "out.csv")[0]["name"] == "bad\\udcff"


def test_columns_are_documented_and_unique():
    names = [column.name for column in tables.COLUMNS]
    assert len(set(names)) == len(names)
    assert all(column.doc for column in tables.COLUMNS)


@pytest.mark.parametrize("write", [tables.write_csv, tables.write_parquet])
def test_files_are_private_and_a_failed_write_leaves_nothing(tmp_path, write):
    write(advices.advice(), tmp_path / "out")
    assert stat.S_IMODE(os.stat(tmp_path / "out").st_mode) == 0o600
    with pytest.raises(errors.OutputError):
        write(advices.advice(), tmp_path / "missing" / "out")
    assert os.listdir(tmp_path) == ["out"]
