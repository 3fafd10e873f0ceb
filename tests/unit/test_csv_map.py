"""Column maps: what they can say, and that they can say nothing else."""

from __future__ import annotations

import datetime

import pytest
import reading

from perdure import errors
from perdure.history import csv_map

MAP = """
no_value = ["", "NULL"]
[columns]
job_id = { join = ["user", "n"] }
user = "user"
cluster = { constant = "it's" }
submit = { column = "t", time = "epoch", unit = "ms", origin = "2023-01-01T00:00:00Z" }
start = { column = "begin", time = "%d.%m.%Y %H:%M" }
elapsed_s = { column = "took", unit = "h" }
limit_s = { column = "wall", unit = "min" }
gpus = { product = ["devices", "milli"], factor = 0.001 }
nodes = { constant = 2 }
state = "how"
[states]
Fine = "COMPLETED"
"""
CSV = (
    "user,n,t,begin,took,wall,devices,milli,how,other\n"
    'ann,1,60000,05.01.2023 10:30,1.5,NULL,2,500,fine,"a\nb"\n'
    "bob,2,,05.01.2023 10:30,2,90,4,1000,node_fail,x\n\n"
)


def imported(folder, mapping=MAP, content=CSV):
    (folder / "map.toml").write_text(mapping)
    return reading.read_text(folder, content, csv_map=str(folder / "map.toml"))


def test_a_map(tmp_path):
    rows, summary = imported(tmp_path)
    ann, bob = sorted(rows, key=lambda row: row["job_id"])
    assert (ann["job_id"], ann["cluster"], ann["elapsed_s"], ann["limit_s"], ann["gpus"], ann["nodes"]) == (
        "ann-1",
        "it's",
        5400,
        None,
        1,
        2,
    )
    assert ann["submit"] == datetime.datetime(2023, 1, 1, 0, 1)
    assert ann["start"] == datetime.datetime(2023, 1, 5, 10, 30)
    assert (bob["submit"], bob["limit_s"], bob["state"], bob["outcome"]) == (None, 5400, "NODE_FAIL", "infrastructure")
    assert (ann["outcome"], ann["gpu_source"]) == ("success", "column")
    file = summary.files[0]
    assert (file.lines, file.header, file.attempts, file.merged, file.blank) == (5, 1, 2, 1, 1)
    assert file.unknown_fields == ("other",)


def test_shipped_maps_load():
    assert set(csv_map.shipped()) == {"nrel-eagle", "philly", "alibaba-gpu2023", "lanl-failures"}
    for name in csv_map.shipped():
        assert csv_map.load(name).description


def test_philly_export(tmp_path):
    content = (
        "status,vc,jobid,attempt,submitted_time,user,start_time,end_time,gpus,nodes\n"
        "Retried,6214e9,application_1506638472019_10258,1,2017-10-07 01:11:06,f2b1,2017-10-07 01:11:10,2017-10-07 02:11:10,16,2\n"
        "Pass,6214e9,application_1506638472019_10258,2,2017-10-07 02:11:11,f2b1,2017-10-07 02:12:10,2017-10-07 03:12:10,16,2\n"
        "Killed,6214e9,application_1506638472019_10300,1,2017-10-07 01:11:06,None,None,None,1,1\n"
    )
    rows, _ = reading.read_text(tmp_path, content, csv_map="philly")
    assert [row["outcome"] for row in rows if row["job_id"].endswith("10258")] == ["user_failure", "success"]
    assert [row["outcome"] for row in rows if row["job_id"].endswith("10300")] == ["never_started"]
    assert {row["array_job"] for row in rows} == {None}


def test_ids_that_repeat_make_jobs_of_their_own(tmp_path):
    content = "id,how\n7,COMPLETED\n7,COMPLETED\n7,FAILED\n"
    mapping = 'ids_repeat = true\n[columns]\njob_id = "id"\nstate = "how"\n'
    rows, summary = imported(tmp_path, mapping, content)
    assert sorted(row["raw_id"] for row in rows) == ["7#1", "7#2", "7#3"]
    assert summary.skipped == {}


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ('[columns]\nstate = "a"\n', "job_id"),
        ('[columns]\njob_id = "a"\nspeed = "b"\n', "unknown column 'speed'"),
        ('[columns]\njob_id = { column = "a", sql = "DROP TABLE x" }\n', "sql"),
        ('[columns]\njob_id = { column = "a", constant = "b" }\n', "exactly one"),
        ('delimiter = "12345"\n[columns]\njob_id = "a"\n', "delimiter"),
        ("[columns\n", "map"),
        ('[columns]\njob_id = "absent"\n', "absent"),
    ],
)
def test_maps_that_are_wrong_are_refused(tmp_path, mapping, words):
    with pytest.raises(errors.InputFormat, match=words):
        imported(tmp_path, mapping)


def test_names_and_texts_cannot_break_out_of_the_query(tmp_path):
    name = 'a\' OR "b" --'
    mapping = f"[columns]\njob_id = {{ column = '''{name}''' }}\nstate = {{ constant = \"x');DROP/**/TABLE/**/y;--\" }}\n"
    rows, _ = imported(tmp_path, mapping, '"a\' OR ""b"" --"\n7\n')
    assert (rows[0]["job_id"], rows[0]["state"]) == ("7", "X');DROP/**/TABLE/**/Y;--")
