"""Reading sacct text: delimiters, repairs, times, GPUs, duplicates; every line in one count (`reading.read` asserts it)."""

from __future__ import annotations

import datetime

import pytest
import reading
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure import errors
from perdure.history import importer, table, times
from perdure.history.lines import decode, encode

HEAD = "JobIDRaw|State|Submit|Start|End|ElapsedRaw|AllocTRES|JobName"


def line(number=1, *, state="COMPLETED", elapsed=3600, tres="cpu=1,gres/gpu=8,node=1", name="train", day=5):
    return f"{number}|{state}|2026-01-{day:02}T00:00:01|2026-01-{day:02}T00:00:02|2026-01-{day:02}T01:00:02|{elapsed}|{tres}|{name}"


@pytest.fixture
def read(tmp_path):
    return lambda content, **request: reading.read_text(tmp_path, content, **request)


@pytest.mark.parametrize("delimiter", ["|", "|#", "^|^", "\t", ";", "~", "=====", "\x1f"])
def test_delimiters(read, delimiter):
    content = f"{HEAD}\n{line()}\n".replace("|", delimiter) if delimiter != "," else ""
    (row,), summary = read(content)
    assert (row["raw_id"], row["gpus"], row["name"]) == ("1", 8, "train")
    assert summary.repaired == {}


def test_commas_need_quotes_around_lists(read):
    (row,), _ = read('JobIDRaw,State,ElapsedRaw,AllocTRES,JobName\n1,COMPLETED,60,"cpu=1,gres/gpu=4","a ""b"", c"\n')
    assert (row["gpus"], row["name"]) == (4, 'a "b", c')


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_cells_that_are_all_quoted(read, delimiter):
    cells = [HEAD.split("|"), line(name='a ""b"", c; d').split("|")]
    (row,), summary = read("".join(delimiter.join(f'"{cell}"' for cell in record) + "\r\n" for record in cells))
    assert (row["raw_id"], row["state"], row["gpus"], row["name"]) == ("1", "COMPLETED", 8, 'a "b", c; d')
    assert summary.repaired == {}


def test_cells_that_are_all_quoted_below_no_header(read):
    (row,), _ = read('"7";"COMPLETED";"60"\n', named_fields=("JobIDRaw", "State", "ElapsedRaw"))
    assert (row["raw_id"], row["elapsed_s"]) == ("7", 60)


def test_any_field_order_and_a_field_asked_for_twice(read):
    (row,), summary = read("JobName|ElapsedRaw|ElapsedRaw|State|Novelty|JobID\na|7|7|COMPLETED|?|1_2\n")
    assert (row["name"], row["elapsed_s"], row["array_task"]) == ("a", 7, 2)
    assert summary.files[0].unknown_fields == ("novelty",)


def test_quotes_mean_nothing_to_sacct(read):
    rows, _ = read(f"{HEAD}\n{line(1, name=chr(34) + 'a')}\n{line(2, name='b' + chr(34))}\n")
    assert {row["name"] for row in rows} == {'"a', 'b"'}


def test_line_break_in_a_field_in_the_middle(read):
    content = "JobIDRaw|JobName|State|ElapsedRaw\n1|a\nb\n\nc|COMPLETED|5\n2|d|FAILED|6\n"
    rows, summary = read(content)
    assert {row["raw_id"]: row["name"] for row in rows} == {"1": "a\nb\n\nc", "2": "d"}
    assert summary.files[0].merged == 3
    assert summary.repaired == {"line break in a field": 1}


def test_line_break_in_the_last_field_of_a_line_that_looked_whole(read):
    content = f"{HEAD}\n{line(1)}\n{line(2, name='first')}\nsecond\nthird | fourth\n{line(3)}\n"
    rows, summary = read(content)
    assert {row["raw_id"]: row["name"] for row in rows} == {"1": "train", "2": "first\nsecond\nthird | fourth", "3": "train"}
    assert summary.files[0].merged == 2


def test_equal_lines_of_which_one_is_continued(read):
    content = f"{HEAD}\n{line(2)}\n{line(2)}\nmore\n"
    rows, summary = read(content)
    assert len(rows) == 1
    assert summary.skipped == {"duplicate": 1}


def test_delimiters_in_a_field_in_the_middle(read):
    content = "JobIDRaw|WorkDir|State|ElapsedRaw|Comment\n1|/a|b|COMPLETED|5|\n2|/c|FAILED|6|x|y\n"
    rows, summary = read(content)
    assert [(row["work_dir"], row["state"]) for row in sorted(rows, key=lambda row: row["raw_id"])] == [
        ("/a|b", "COMPLETED"),
        ("/c", "FAILED"),
    ]
    assert sum(summary.repaired.values()) == 2


def test_bytes_that_are_not_utf8_are_kept(read):
    raw = b"caf\xe9 \xff\xfe \xc3\xa9"
    (row,), summary = read(f"{HEAD}\n{line(name='NAME')}\n".encode().replace(b"NAME", raw))
    assert encode(row["name"]) == raw
    assert row["name"].endswith(" é")
    assert summary.bad_utf8 == 1


@given(st.binary())
def test_decoding_keeps_every_byte(raw):
    text = decode(raw)
    text.encode()
    private = any(0xEF80 <= ord(char) <= 0xEFFF for char in raw.decode("utf-8", "ignore"))
    assert private or encode(text) == raw


def test_headers_comments_and_blank_lines_between(read):
    content = f"# pulled on Monday\n\n{HEAD}\n{line(1)}\n{HEAD}\n\n# a|b\n#{line(7)}\n{line(2)}\n   \n"
    rows, summary = read(content)
    file = summary.files[0]
    assert len(rows) == 2
    assert (file.header, file.comment, file.blank) == (2, 3, 3)


@pytest.mark.parametrize("ends", ["\r\n", "\n"])
def test_line_ends(read, ends):
    rows, _ = read(ends.join([HEAD, line(1), line(2), ""]))
    assert {row["name"] for row in rows} == {"train"}


def test_mixed_line_ends_and_carriage_returns_within_fields(read):
    rows, _ = read(f"{HEAD}\r\n{line(1)}\n{line(2, name='a' + chr(13) + 'b')}\r\n{line(3)}")
    assert {row["name"] for row in rows} == {"train", "a\rb"}


def test_last_line_cut_off(read):
    rows, summary = read(f"{HEAD}\n{line(1)}\n2|COMPLETED|2026-01-05T00:0")
    assert len(rows) == 1
    assert summary.unreadable == 1
    assert summary.files[0].examples[0].line == 3


def test_steps_only_says_so(read):
    rows, summary = read("JobID|State|ElapsedRaw\n1.batch|COMPLETED|5\n1.0|COMPLETED|5\n")
    assert rows == []
    assert "-X" in summary.notes[0]


def test_fields_of_a_file_without_header(read):
    (row,), _ = read("7|COMPLETED|60\n", named_fields=("JobIDRaw", "State", "ElapsedRaw"))
    assert (row["raw_id"], row["elapsed_s"]) == ("7", 60)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("State|ElapsedRaw\nCOMPLETED|5\n", "JobIDRaw"),
        ("JobIDRaw|JobName\n1|a\n", "State"),
        ("       JobID      State\n------------ ----------\n1            OUT_OF_ME+\n", "OUT_OF_ME"),
        ("JobID\n1\n", "only one field"),
        ("hello world\n", "header"),
        ("name,size\na,1\n", "header"),
    ],
)
def test_what_cannot_be_used_is_refused(read, content, words):
    with pytest.raises(errors.InputFormat, match=words) as caught:
        read(content)
    assert caught.value.hint


# GPUs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tres", "gpus", "kind", "source"),
    [
        ("cpu=1,gres/gpu=8,node=1", 8, None, "alloc_tres"),
        ("cpu=1,gres/gpu:a100=8,gres/gpu=8", 8, "a100", "alloc_tres"),
        ("gres/gpu=8,gres/gpu:a100=8", 8, "a100", "alloc_tres"),
        ("gres/gpu:a100=2,gres/gpu:h100=4", 6, "a100+h100", "alloc_tres"),
        ("cpu=1,gres/gpumem=5,gres/gpuutil=7", 0, None, "none"),
        ("cpu=1,mem=5G", 0, None, "none"),
        ("gres/gpu:1g.10gb=3", 3, "1g.10gb", "alloc_tres"),
    ],
)
def test_gpus_from_tres(read, tres, gpus, kind, source):
    (row,), _ = read(f"{HEAD}\n{line(tres=tres)}\n")
    assert (row["gpus"], row["gpu_type"], row["gpu_source"]) == (gpus, kind, source)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [("gpu:a100:2", 6), ("gpu:2", 6), ("gpu", 3), ("gpu:2(IDX:0-1)", 6), ("craynetwork:1,gpu:tesla:4", 12), ("shard:4", 0)],
)
def test_gpus_from_gres_are_counted_on_each_node(read, gres, gpus):
    (row,), _ = read(f"JobIDRaw|State|ElapsedRaw|NNodes|AllocGRES\n1|COMPLETED|60|3|{gres}\n")
    assert (row["gpus"], row["gpu_source"]) == (gpus, "gres" if gpus else "none")


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("--gpus=4", 4),
        ("--gpus h100:2", 2),
        ("-G 3", 3),
        ("--gpus-per-node=a100:4", 8),
        ("--gpus-per-node h100:1,h200:2", 6),
        ("--gres=gpu:4", 8),
        ("--gres gpu:a100:2,nvme:1", 4),
        ("--gres=gpu:4 --job-name=train-G2", 8),
        ("--gres=gpu:4 --chdir=/w/run-GPT", 8),
        ("--gpus-per-task=1 --gres=gpu:4", 8),
        ("--gres=gpu:4 --comment=--gpus-per-node", 8),
        ("--wrap sleep", 0),
    ],
)
def test_gpus_from_the_submit_line(read, options, gpus):
    (row,), _ = read(f"JobIDRaw|State|ElapsedRaw|NNodes|SubmitLine\n1|COMPLETED|60|2|sbatch {options} run.sh\n")
    assert (row["gpus"], row["gpu_source"]) == (gpus, "submit_line" if gpus else "none")


def test_requested_gpus_count_only_when_it_started(read):
    head = "JobIDRaw|State|Start|End|ElapsedRaw|ReqTRES|AllocTRES\n"
    ran = "1|COMPLETED|2026-01-05T00:00:01|2026-01-05T00:01:01|60|gres/gpu=2|\n"
    never = "2|CANCELLED by 5|None|2026-01-05T00:01:01|0|gres/gpu=2|\n"
    rows, _ = read(head + ran + never)
    assert {row["raw_id"]: (row["gpus"], row["gpu_source"]) for row in rows} == {"1": (2, "req_tres"), "2": (0, "none")}


def test_dependencies(read):
    head = "JobIDRaw|State|ElapsedRaw|SubmitLine\n"
    lines = [
        "1|COMPLETED|1|sbatch --dependency=afterok:12:13,afterany:14_3 a.sh",
        "2|COMPLETED|1|sbatch -d afternotok:15 a.sh",
        "3|COMPLETED|1|sbatch --dependency after:16+10 a.sh",
        "4|COMPLETED|1|sbatch --dependency=singleton a.sh",
        "5|COMPLETED|1|sbatch train-after-d.sh",
    ]
    rows, _ = read(head + "\n".join(lines))
    assert {row["raw_id"]: row["depends_on"] for row in rows} == {"1": "12,13,14_3", "2": "15", "3": "16", "4": None, "5": None}


# Times -----------------------------------------------------------------------------------------------------------


def test_naive_times_are_of_the_zone_given(read):
    content = "JobIDRaw|State|Start|End|ElapsedRaw\n1|COMPLETED|2026-01-05T01:00:00|2026-07-05T02:00:00|60\n"
    (row,), _ = read(content, tz="Europe/Berlin")
    assert row["start"] == datetime.datetime(2026, 1, 5, 0, 0)
    assert row["end"] == datetime.datetime(2026, 7, 5, 0, 0)


@settings(max_examples=60, deadline=None)
@given(
    st.datetimes(datetime.datetime(1991, 1, 1), datetime.datetime(2044, 1, 1)).map(lambda when: when.replace(microsecond=0)),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Africa/Casablanca", "Australia/Lord_Howe"]),
)
def test_zones_agree_with_python(wall, name):
    import zoneinfo

    zone = times.load_zone(name)
    expected = wall.replace(tzinfo=zoneinfo.ZoneInfo(name)).astimezone(datetime.UTC).replace(tzinfo=None)
    connection = table.connect(threads=1)
    (utc,) = connection.execute(f"SELECT {times.timestamp('text', zone)} FROM (SELECT ? AS text)", [wall.isoformat()]).fetchone()
    assert utc == expected
    (back, doubtful) = connection.execute(
        f"SELECT {times.to_wall('utc', zone)}, {times.doubtful('wall', zone)} FROM (SELECT ?::TIMESTAMP AS utc, ?::TIMESTAMP AS wall)",
        [utc, wall],
    ).fetchone()
    assert back == wall or doubtful


def test_clock_changes_are_suspected(read):
    head = "JobIDRaw|State|Start|End|ElapsedRaw\n"
    twice = "1|COMPLETED|2026-10-25T02:30:00|2026-10-25T09:30:00|28800\n"
    hour_short = "2|COMPLETED|2026-05-05T01:00:00|2026-05-05T03:00:00|3600\n"
    sound = "3|COMPLETED|2026-05-05T01:00:00|2026-05-05T02:00:00|3600\n"
    assert read(head + twice + sound, tz="Europe/Berlin")[1].dst_suspects == 1
    assert read(head + hour_short + sound)[1].dst_suspects == 1


TIMES = "JobIDRaw|State|Submit|Start|End|ElapsedRaw|JobName\n"


@pytest.mark.parametrize("shape", ["%d %b %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M", "%a %b %d %H:%M:%S %Y"])
@pytest.mark.parametrize("name", ["train", "a\nb"], ids=["bulk", "mended"])
@pytest.mark.parametrize("at_once", [False, True], ids=["import", "advise"])
def test_times_of_another_form_are_refused(tmp_path, shape, name, at_once):
    path = tmp_path / "sacct.txt"
    moments = "|".join(datetime.datetime(2026, 1, 25, hour).strftime(shape) for hour in (1, 2, 3))
    path.write_text(TIMES + "".join(f"{number}|NODE_FAIL|{moments}|3600|{name}\n" for number in range(1, 9)))
    connection = table.connect(threads=1)
    with pytest.raises(errors.InputFormat, match=r"24 of 24 times .*25") as caught:
        importer.open_for_analysis(connection, path) if at_once else importer.import_files(connection, [path])
    assert "SLURM_TIME_FORMAT" in caught.value.hint


@pytest.mark.parametrize("name", ["train", "a\nb"], ids=["bulk", "mended"])
def test_single_times_that_cannot_be_read_are_counted(read, name):
    good = "2026-01-25T01:00:00|2026-01-25T02:00:00|2026-01-25T03:00:00"
    _, summary = read(
        f"{TIMES}1|COMPLETED|{good}|3600|a\n2|COMPLETED|{good}|3600|{name}\n3|FAILED|{good.replace('03:00:00', '3 h')}|3600|{name}\n"
        "4|PENDING|Unknown|None||0|b\n"
    )
    assert summary.files[0].notes == ("1 of 9 times cannot be read, such as '2026-01-25T3 h': they are left out",)


def test_an_unknown_zone_is_refused(read):
    with pytest.raises(errors.SettingError, match="Mars"):
        read(f"{HEAD}\n{line()}\n", tz="Mars/Olympus")


def test_runaway_records(read):
    head = "JobIDRaw|State|Start|End|ElapsedRaw|TimelimitRaw\n"
    start = "RUNNING|2026-01-05T01:00:00|Unknown"
    content = f"{head}1|{start}|9000000|60\n2|{start}|60|60\n"
    assert read(content)[1].runaway == 1


# Duplicates ------------------------------------------------------------------------------------------------------


def test_day_pulls_repeat_long_jobs_and_the_most_final_record_stays(tmp_path):
    head = "Cluster|DBIndex|JobIDRaw|State|Submit|Start|End|ElapsedRaw\n"
    common = "|2026-01-05T00:00:00|2026-01-05T00:00:01|"
    first, second = tmp_path / "monday.txt", tmp_path / "tuesday.txt"
    first.write_text(f"{head}c|11|1|RUNNING{common}Unknown|80000\n")
    second.write_text(f"{head}c|11|1|COMPLETED{common}2026-01-06T05:00:01|104400\nd|11|1|FAILED{common}2026-01-06T05:00:01|104400\n")
    for paths in ((first, second), (second, first)):
        rows, summary = reading.read(*paths)
        assert {(row["cluster"], row["state"]) for row in rows} == {("c", "COMPLETED"), ("d", "FAILED")}
        assert summary.skipped == {"duplicate": 1}


def test_equal_indices_of_different_jobs_are_no_duplicates(tmp_path):
    """Each cluster counts its own, and a pull need not name the cluster."""
    first, second = tmp_path / "one.txt", tmp_path / "other.txt"
    head = "DBIndex|JobIDRaw|State|Submit|Start|End|ElapsedRaw\n"
    times_ = "2026-01-05T00:00:00|2026-01-05T00:00:01|2026-01-05T01:00:01|3600\n"
    first.write_text(f"{head}11|1|COMPLETED|{times_}12|2|COMPLETED|{times_}")
    second.write_text(f"{head}11|701|COMPLETED|{times_}12|2|COMPLETED|{times_}")
    rows, summary = reading.read(first, second)
    assert [row["raw_id"] for row in rows] == ["1", "2", "701"]
    assert summary.skipped == {"duplicate": 1}


def test_requeued_attempts_are_no_duplicates(read):
    rows, summary = read(f"{HEAD}\n{line(1, day=5)}\n{line(1, day=6)}\n{line(1, day=6)}\n")
    assert len(rows) == 2
    assert summary.skipped == {"duplicate": 1}


def test_the_same_input_gives_the_same_rows(tmp_path):
    content = HEAD + "\n" + "\n".join(line(number, name=f"n{number % 7}\n x" if number % 50 == 0 else "n") for number in range(1, 3000))
    first, _ = reading.read_text(tmp_path, content)
    second, _ = reading.read_text(tmp_path, content)
    assert first == second
    assert len(first) == 2999
