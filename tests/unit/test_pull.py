"""Pulling day by day: what is asked, what is asked again, what is split, and what is kept when it stops."""

from __future__ import annotations

import datetime
import itertools
import os
import signal
import threading
from pathlib import Path

import hypothesis
import pytest
from doubles import sacct as double
from hypothesis import strategies as st

from perdure import errors
from perdure.history.pull import fields, pull, sacct, state, windows

NOW = datetime.datetime(2026, 1, 8, 12)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def site(tmp_path: Path) -> double.Double:
    folder = tmp_path / "bin"
    folder.mkdir()
    records = [
        double.record(number, f"2026-01-0{day}T{hour:02}:00:00", f"2026-01-0{day}T{hour:02}:10:00")
        for number, (day, hour) in enumerate([(day, hour) for day in range(5, 9) for hour in range(12)], start=1)
    ]
    return double.Double(folder, records)


class Bench:
    """Pulls from a stand-in, with time that does not pass."""

    def __init__(self, site: double.Double, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.now = NOW
        self.slept: list[float] = []
        self.notes: list[str] = []

    def pull(self, *, days: int = 3, kind: type[sacct.Sacct] = sacct.Sacct, **request) -> pull.Pulled:
        command = kind(str(self.site.path), environ={**os.environ, "SACCT_FORMAT": "JobID"}, timeout_s=120)
        around = pull.Surroundings(lambda: self.now, self.slept.append, lambda _done, _window: None, self.notes.append)
        span = windows.span(now=self.now, days=days, since=None, until=None)
        return pull.pull(command, pull.Request(span, self.folder, **request), around)


@pytest.fixture
def bench(site: double.Double, tmp_path: Path) -> Bench:
    return Bench(site, tmp_path / "raw")


def ids(pulled: pull.Pulled) -> list[str]:
    found = []
    for path in pulled.files:
        header, *rows = Path(path).read_text().splitlines()
        at = header.split(sacct.DELIMITER).index("JobIDRaw")
        found += [row.split(sacct.DELIMITER)[at] for row in rows]
    return found


def test_each_day_is_asked_once_with_the_fields_and_the_environment_that_matter(bench):
    pulled = bench.pull()
    assert ids(pulled) == [str(number) for number in range(1, 49)]
    asked = bench.site.asked()
    assert [(start, end) for start, end, _, _ in asked] == [
        ("2026-01-05T00:00:00", "2026-01-06T00:00:00"),
        ("2026-01-06T00:00:00", "2026-01-07T00:00:00"),
        ("2026-01-07T00:00:00", "2026-01-08T00:00:00"),
        ("2026-01-08T00:00:00", "2026-01-08T12:00:00"),
    ]
    _, _, arguments, environment = asked[0]
    assert {"--allusers", "--duplicates", "--allocations", "--parsable2", "--noconvert", "--delimiter=|#"} <= set(arguments)
    assert not {"-T", "--truncate"} & set(arguments)
    assert (environment["TZ"], environment["SLURM_BITSTR_LEN"]) == ("UTC", "0")
    assert environment["SLURM_TIME_FORMAT"] == "%Y-%m-%dT%H:%M:%S"
    assert "SACCT_FORMAT" not in environment
    assert "Reserved" in pulled.fields
    assert "Planned" not in pulled.fields
    assert pulled.missing_fields == ("FailedNode", "Restarts")
    assert pulled.fields[-3:] == ("WorkDir", "SubmitLine", "JobName")


def test_what_is_kept_is_private(bench):
    bench.pull()
    assert bench.folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in bench.folder.iterdir()} == {0o600}
    assert sorted(path.name for path in bench.folder.iterdir()) == [f"2026-01-0{day}.txt" for day in range(5, 9)] + ["manifest.json"]


def test_a_second_pull_asks_only_for_the_days_that_were_not_over(bench):
    bench.pull()
    bench.now += datetime.timedelta(days=1)
    pulled = bench.pull(days=4)
    assert [start for start, *_ in bench.site.asked()[4:]] == ["2026-01-08T00:00:00", "2026-01-09T00:00:00"]
    assert (pulled.days, pulled.asked_days) == (5, 2)


def test_a_day_asked_for_right_after_midnight_is_asked_again(bench):
    bench.now = datetime.datetime(2026, 1, 8, 0, 30)
    bench.pull()
    assert bench.pull().asked_days == 2
    bench.now = datetime.datetime(2026, 1, 8, 2)
    assert bench.pull().asked_days == 2
    assert bench.pull().asked_days == 1


def test_a_day_whose_file_was_touched_is_asked_again(bench):
    bench.pull()
    (bench.folder / "2026-01-06.txt").write_text("half")
    (bench.folder / "2026-01-07.txt").unlink()
    pulled = bench.pull()
    assert pulled.asked_days == 3
    assert ids(pulled) == [str(number) for number in range(1, 49)]


@pytest.mark.parametrize(
    ("status", "stderr"),
    [
        (1, "sacct: error: slurmdbd: Connection refused\n"),
        # The dangerous one: part of the rows, an exit status of 0.
        (0, "sacct: error: slurm_persist_conn_open: failed to send persistent connection init message to db:6819\n"),
        (0, "sacct: error: slurmdbd: Query failed: Lost connection to MySQL server during query\n"),
    ],
)
def test_a_database_that_fails_is_asked_again_and_no_half_answer_is_kept(bench, status, stderr):
    act = {"rows": 3, "status": status, "stderr": stderr}
    bench.site.change(plan={"2": act, "3": act, "4": act})
    pulled = bench.pull()
    assert ids(pulled) == [str(number) for number in range(1, 49)]
    assert [second for second in bench.slept if second] == [2, 4, 8]
    assert len(bench.notes) == 3


def test_an_answer_that_ends_within_a_line_is_asked_again(bench):
    bench.site.change(plan={"1": {"cut": 5}})
    assert len(ids(bench.pull())) == 48
    assert "cut off" in bench.notes[0]


def test_giving_up_says_why_and_keeps_what_was_got(bench):
    failure = {"status": 1, "stderr": "sacct: error: slurmdbd: Connection refused\n"}
    bench.site.change(plan={str(number): failure for number in range(3, 30)})
    with pytest.raises(errors.SchedulerUnavailable, match=r"2026-01-07.*Connection refused") as caught:
        bench.pull(retries=2)
    assert "same command again" in caught.value.hint
    assert sorted(path.name for path in bench.folder.iterdir()) == ["2026-01-05.txt", "2026-01-06.txt", "manifest.json"]
    bench.site.change(plan={})
    pulled = bench.pull()
    assert pulled.asked_days == 2
    assert ids(pulled) == [str(number) for number in range(1, 49)]


def test_a_window_that_is_too_wide_is_split_until_it_is_not(bench):
    wide = {"status": 1, "stderr": "sacct: error: slurmdbd: Too wide of a date range in query\n"}
    bench.site.change(plan={"1": wide, "2": wide})
    pulled = bench.pull(days=1, retries=0)
    spans = [(start[11:], end[11:]) for start, end, *_ in bench.site.asked()[:5]]
    assert spans == [
        ("00:00:00", "00:00:00"),
        ("00:00:00", "12:00:00"),
        ("00:00:00", "06:00:00"),
        ("06:00:00", "12:00:00"),
        ("12:00:00", "00:00:00"),
    ]
    assert pulled.split_days == ("2026-01-07",)
    # One header for the day; the record at the seam comes twice, for the importer to see through.
    first = Path(pulled.files[0]).read_text()
    assert first.count("JobIDRaw") == 1
    assert set(ids(pulled)) == {str(number) for number in range(25, 49)}


class Hurried(sacct.Sacct):
    """Has little time for its first question, and for all others as much as a busy machine may need."""

    def probe(self) -> tuple[str, str]:
        found = super().probe()
        self._timeout_s = 1.5
        return found

    def ask(self, window: windows.Window, names: tuple[str, ...], target: Path) -> sacct.Result:
        found = super().ask(window, names, target)
        self._timeout_s = 120
        return found


def test_a_question_that_takes_too_long_is_stopped_and_split(bench):
    bench.site.change(plan={"1": {"hang": 60}})
    pulled = bench.pull(days=1, kind=Hurried)
    assert pulled.split_days == ("2026-01-07",)
    assert "no answer within 1.5 s" in bench.notes[0]


def test_a_site_that_is_never_narrow_enough_ends(bench):
    wide = {"status": 1, "stderr": "sacct: error: slurmdbd: Too wide of a date range in query\n"}
    bench.site.change(plan={str(number): wide for number in range(1, 50)})
    with pytest.raises(errors.SchedulerUnavailable, match="Too wide"):
        bench.pull(days=1)
    assert len(bench.site.asked()) == 7


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("sacct: error: Slurm accounting storage is disabled\n", errors.EnvironmentUnfit),
        ("sacct: fatal: Could not establish a configuration source\n", errors.EnvironmentUnfit),
        ('sacct: error: Invalid field requested: "Restarts"\n', errors.Unsupported),
        ("sacct: error: slurmdbd: Access/permission denied\n", errors.EnvironmentUnfit),
    ],
)
def test_what_asking_again_cannot_mend_ends_at_once(bench, stderr, error):
    bench.site.change(plan={"1": {"status": 1, "stderr": stderr}})
    with pytest.raises(error) as caught:
        bench.pull()
    assert caught.value.hint
    assert bench.slept == []


def test_noise_of_the_machine_is_not_taken_for_a_failure_and_notes_are_passed_on(bench):
    bench.site.change(
        noise="sacct: error: plugin foo.so could not be loaded\n", plan={"1": {"stderr": "sacct: the database will be down on Friday\n"}}
    )
    pulled = bench.pull()
    assert bench.slept == [0.0] * 3
    assert pulled.notes == ("the database will be down on Friday",)


def test_other_fields_than_before_are_refused_unless_it_starts_afresh(bench):
    bench.pull()
    bench.site.change(version="slurm 24.11.5", helpformat=[*double.FIELDS, "Restarts", "FailedNode", "Planned"])
    with pytest.raises(errors.UsageError, match=r"other fields \(slurm 22.05.8; now slurm 24.11.5\)") as caught:
        bench.pull()
    assert "--afresh" in caught.value.hint
    pulled = bench.pull(afresh=True)
    assert pulled.asked_days == 4
    assert {"Restarts", "FailedNode", "Planned"} <= set(pulled.fields)
    assert pulled.missing_fields == ()


def test_another_cluster_is_another_folder(bench):
    bench.pull()
    with pytest.raises(errors.UsageError, match="other cluster"):
        bench.pull(cluster="b")


def test_a_folder_with_other_files_is_left_alone(bench):
    bench.folder.mkdir()
    (bench.folder / "thesis.tex").write_text("precious")
    for afresh in (False, True):
        with pytest.raises(errors.OutputError, match=r"thesis\.tex"):
            bench.pull(afresh=afresh)
    assert [path.name for path in bench.folder.iterdir()] == ["thesis.tex"]


def test_two_pulls_do_not_share_a_folder(bench):
    bench.pull()
    wanted = state.Manifest(state.FORMAT, (), "", None, "", {})
    with state.opened(bench.folder, wanted, afresh=True), pytest.raises(errors.OutputError, match="in use by another pull"):
        bench.pull()


def test_ctrl_c_within_a_day_stops_sacct_and_leaves_a_state_that_goes_on(bench):
    bench.site.change(plan={"3": {"hang": 600}})
    waiting = threading.Thread(target=_interrupt_when, args=(bench.site.folder / "hanging",))
    waiting.start()
    # Where the tests run in the background, SIGINT is ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.pull()
    finally:
        signal.signal(signal.SIGINT, before)
    waiting.join()
    assert sorted(path.name for path in bench.folder.iterdir()) == ["2026-01-05.txt", "2026-01-06.txt", "manifest.json"]
    pulled = bench.pull()
    assert pulled.asked_days == 2
    assert ids(pulled) == [str(number) for number in range(1, 49)]


def _interrupt_when(path: Path) -> None:
    waited = threading.Event()
    while not path.exists():
        waited.wait(0.02)
    os.kill(os.getpid(), signal.SIGINT)


def test_leftovers_of_a_pull_that_was_killed_are_removed(bench):
    bench.pull()
    (bench.folder / ".2026-01-08.txt.abc.tmp").write_text("half")
    bench.pull()
    assert not list(bench.folder.glob(".*"))


def test_an_empty_day_among_busy_ones_is_suspicious(bench, site):
    records = [double.record(n, f"2026-01-0{d}T01:00:00", f"2026-01-0{d}T02:00:00") for d in (5, 7) for n in range(d * 100, d * 100 + 12)]
    site.change(records=records)
    bench.now = datetime.datetime(2026, 1, 7, 23)
    assert bench.pull(days=2).empty_days == ("2026-01-06",)
    site.change(records=records[::12])
    assert bench.pull(days=2, afresh=True).empty_days == ()


def test_no_sacct_is_explained():
    with pytest.raises(errors.SchedulerUnavailable) as caught:
        sacct.Sacct("sacct-that-is-not-there", environ=os.environ, timeout_s=1)
    assert "history import" in caught.value.hint


def test_something_that_is_not_sacct_is_explained(bench, tmp_path):
    bench.site.change(helpformat=["JobID"])
    with pytest.raises(errors.Unsupported, match="JobIDRaw"):
        bench.pull()


@pytest.mark.shared
@pytest.mark.parametrize("version", ["20.11", "21.08", "22.05", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05"])
def test_every_version_of_slurm_has_what_is_required(shared, version):
    listed = (shared / "facts" / "slurm_fields" / f"fields_{version}.txt").read_text()
    chosen = fields.choose(fields.parse_helpformat(listed))
    year, month = map(int, version.split("."))
    expected = {
        *(["SubmitLine"] if (year, month) < (21, 8) else []),
        *(["FailedNode"] if (year, month) < (23, 2) else []),
        *(["Restarts"] if (year, month) < (24, 11) else []),
    }
    assert set(chosen.missing) == expected
    assert ("Reserved" in chosen.names) == ((year, month) < (23, 2))


@hypothesis.given(
    start=st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2030, 1, 1)).map(lambda t: t.replace(microsecond=0)),
    seconds=st.integers(1, 20 * 86400),
)
def test_days_cover_the_span_without_gap_or_overlap(start, seconds):
    whole = windows.Window(start, start + datetime.timedelta(seconds=seconds))
    days = windows.cut_into_days(whole)
    assert (days[0].start, days[-1].end) == (whole.start, whole.end)
    assert all(before.end == after.start for before, after in itertools.pairwise(days))
    assert len({day.name for day in days}) == len(days)
    assert all(0 < day.seconds <= 86400 for day in days)


@hypothesis.given(seconds=st.integers(1, 86400))
def test_halves_make_up_the_whole(seconds):
    window = windows.Window(NOW, NOW + datetime.timedelta(seconds=seconds))
    halves = windows.split(window)
    if halves is None:
        assert seconds < 2 * windows.MINIMUM_S
    else:
        assert (halves[0].start, halves[0].end, halves[1].end) == (window.start, halves[1].start, window.end)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-01-05T25:00", "20260105", "2026-01-05T00:00:00+02:00", "٢٠٢٦-٠١-٠٥"])
def test_dates_that_cannot_be_read_are_named(text):
    with pytest.raises(errors.QuantityError, match="--since"):
        windows.parse_instant(text, name="--since")


def test_spans_the_wrong_way_round_are_refused():
    with pytest.raises(errors.QuantityError, match="not before"):
        windows.span(now=NOW, days=90, since="2026-02-01", until=None)
    with pytest.raises(errors.QuantityError, match="at least 1"):
        windows.span(now=NOW, days=0, since=None, until=None)
    with pytest.raises(errors.QuantityError, match="calendar"):
        windows.span(now=NOW, days=10**7, since=None, until=None)
    assert windows.span(now=NOW, days=90, since="2026-01-01", until="2027-01-01") == windows.Window(datetime.datetime(2026, 1, 1), NOW)
