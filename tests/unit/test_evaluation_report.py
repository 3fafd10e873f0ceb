"""The report of whole evaluations: headline, JSON, CSV, terminal, and the page as a document. What a browser does with it: tests/e2e."""

from __future__ import annotations

import csv
import io
import re

import evaluations
import msgspec
import pytest
import reported
from documents import Document
from rich.console import Console

from perdure.evaluation import amend, drawing, headline, leaving, page, tables, wording
from perdure.model.advice import Interval
from perdure.model.evaluation import Arm, MeasureKind, MeasureResult, Mistake, Outcome, Point, Threshold, Unmeasured


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluations")
    return {name: getattr(reported, name)(root / name) for name in ("clean", "rigged", "hostile")}


@pytest.fixture(scope="module")
def reports(places):
    return {name: reported.read(there) for name, there in places.items()}


@pytest.fixture(scope="module")
def pages(reports):
    return {name: page.render(one) for name, one in reports.items()}


# The headline


def result(kind, outcome):
    return MeasureResult(
        kind=kind,
        unit="s",
        points=(Point("r", Arm.MANAGED, 0, 1.0),),
        medians={},
        intervals={},
        difference=None,
        difference_interval=None,
        ratio=None,
        ratio_interval=None,
        threshold=Threshold(reason="r", at_most=1.0),
        outcome=outcome,
        runs_needed=None,
        includes="",
    )


def four(*outcomes):
    return [result(kind, outcome) for kind, outcome in zip(headline.FOUR, outcomes, strict=True)]


def test_an_arm_without_any_value_says_why_and_not_that_the_other_has_one():
    lack = Unmeasured("r", Arm.UNMANAGED, 0, "no-pace", "its pace cannot be told")
    beside = Unmeasured("r", Arm.MANAGED, 0, "no-partner", "the other side of its pair has no value")
    one = msgspec.structs.replace(result(MeasureKind.WORK_LOST, None), unmeasured=(lack, lack, beside))
    assert wording.lacks(one) == ("unmanaged: 2 × its pace cannot be told",)
    of_pairs = msgspec.structs.replace(one, kind=MeasureKind.OVERHEAD)
    assert wording.lacks(of_pairs) == ()
    assert wording.lacks(msgspec.structs.replace(one, points=())) == (
        "2 × its pace cannot be told",
        "1 × the other side of its pair has no value",
    )


@pytest.mark.parametrize(
    ("outcomes", "verdict", "words"),
    [
        ((Outcome.PASS,) * 4, "passed", "all four measures"),
        ((Outcome.PASS, Outcome.FAIL, Outcome.PASS, Outcome.FAIL), "failed", "work lost per interruption and steady-state overhead"),
        ((Outcome.UNDECIDED, Outcome.FAIL, Outcome.PASS, None), "failed", "Not settled: recovery time and steady-state overhead"),
        ((Outcome.PASS, Outcome.UNDECIDED, Outcome.PASS, Outcome.PASS), "undecided", "do not settle work lost"),
        ((Outcome.PASS, Outcome.UNDECIDED, None, Outcome.PASS), "incomplete", "utilisation at the job level cannot be judged"),
    ],
)
def test_the_headline_says_the_worst(outcomes, verdict, words):
    found = headline.write(four(*outcomes), (), ())
    assert found.verdict == verdict
    assert words in found.text
    assert not found.flagged


def test_a_flag_comes_before_everything_else():
    clear, flag = Mistake("a", False, "clear one", ""), Mistake("b", True, "the flagged one", "")
    found = headline.write(four(*(Outcome.PASS,) * 4), (clear, flag), ())
    assert found.text.startswith("Flagged: one thing puts this result in doubt. Passed")
    assert found.doubts == ("the flagged one",)
    assert headline.write((), (), ("the lock was edited",)).text.startswith("Flagged")


def test_what_was_never_measured_is_not_undecided():
    empty = [msgspec.structs.replace(one, points=()) for one in four(*(Outcome.UNDECIDED,) * 4)]
    assert headline.write(empty, (), ()).verdict == "incomplete"


def test_other_answers_after_a_restore_put_the_result_in_doubt(tmp_path):
    there = reported.begin(tmp_path / "trial")
    (*others, last) = reported.cold_starts(there)
    events = (*last.events[:-1], reported.ended("different"))
    reported.append(there, [*others, msgspec.structs.replace(last, events=events)])
    found = reported.read(there)
    assert "1 of 6 restored servers gave other answers than before the checkpoint" in found.headline.doubts


def test_a_clean_evaluation_passes_and_a_rigged_one_is_flagged(reports):
    assert reports["clean"].headline.text == "Passed: all four measures reached the numbers that were fixed beforehand."
    rigged = reports["rigged"].headline
    assert rigged.flagged
    assert "the plan was never locked: its numbers may have been chosen after the data" in rigged.doubts
    assert len(rigged.doubts) > 5


# JSON and CSV


def test_the_json_has_a_version_and_holds_everything(reports):
    document = msgspec.json.decode(msgspec.json.encode(reports["clean"]))
    assert document["format"] == 1
    assert {one["kind"] for one in document["measures"]} == {kind.value for kind in MeasureKind}
    assert len(document["timelines"]) == 6 * 2 * 3
    assert len(document["runs"]) == 2 + 12 + 12 + 3
    assert document["lock"]["plan_sha256"] == document["plan_sha256"]
    assert [one["result"] for one in document["matrix"]] == ["works", "refused", "failed"]


def test_every_point_is_in_the_csv(reports, tmp_path):
    tables.write_csv(reports["clean"], tmp_path / "points.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "points.csv").read_text(), newline="")))
    points = [one for result in reports["clean"].measures for one in result.points]
    cold = [row for row in rows if row["measure"] == "cold-start"]
    assert [float(row["value"]) for row in rows if row["value"] and row not in cold] == [one.value for one in points]
    assert [float(row["value"]) for row in cold] == [one.ready_s for one in reports["clean"].cold_start.runs]
    recovery = [row for row in rows if row["measure"] == "recovery-time" and row["value"]]
    assert len(recovery) == 36
    for row in recovery:
        parts = [float(row[name]) for name in ("detection", "scheduling", "restart", "warm_up") if row[name]]
        assert sum(parts) <= float(row["value"]) + 1e-9


def test_no_spreadsheet_runs_what_a_run_is_called(reports, tmp_path):
    tables.write_csv(reports["hostile"], tmp_path / "points.csv")
    cells = [cell for row in csv.reader(io.StringIO((tmp_path / "points.csv").read_text(), newline="")) for cell in row]
    assert "'=cmd|' /C calc'!A0" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "@")) or re.match(r"[+-][^0-9.]", cell)]


# The terminal


def printed(report, **options):
    console = Console(file=io.StringIO(), width=200, **options)
    tables.print_report(report, console)
    return console.file.getvalue()


def test_the_terminal_shows_measures_mistakes_and_what_it_stands_on(reports):
    text = printed(reports["clean"])
    assert re.search(r"recovery time +18\.0 s +15\.9 s .* at most 5m +pass +6 ", text)
    assert re.search(r"^clear +no baseline +2 unmanaged runs", text, re.MULTILINE)
    assert "locked by auditor on node1" in text
    assert "restore  warm      3  2.10 s   1.20 s   3.00 s       0         0" in text
    assert "Exit test: not run." in text
    assert re.search(r"All node-hours of the window, summed\nside +runs .*\nunmanaged +6 +[0-9.]+ +[0-9.]+ +[0-9.]+ % ", text)
    assert "managed: hours from the harness's clock; device busy: not measured: the workload uses no GPU." in text
    assert printed(reports["rigged"]).startswith("Flagged: ")


def test_no_text_of_a_run_reaches_the_terminal_raw(reports):
    text = printed(reports["hostile"])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31m" in text


# The page


@pytest.mark.parametrize("name", ["clean", "rigged", "hostile"])
def test_every_element_is_closed_and_every_id_is_unique(pages, name):
    document = Document(pages[name])
    assert document.stack == []
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in document.elements:
        for key in ("aria-labelledby", "href"):
            for target in (attributes.get(key) or "").split():
                assert target.removeprefix("#") in ids, f"{key}={target} points at nothing"


@pytest.mark.parametrize("name", ["clean", "rigged", "hostile"])
def test_nothing_is_loaded_and_nothing_runs(pages, name):
    content = pages[name]
    assert "default-src 'none'" in content
    assert "unsafe" not in content
    assert not re.search(r"https?://|@import|url\((?!#)", content)
    for tag, attributes in Document(content).elements:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "image", "use", "foreignObject"}
        assert not [key for key in attributes if key.startswith("on") or key in {"style", "src"}], tag
        assert attributes.get("href", "#").startswith("#")


def test_hostile_text_is_text(pages):
    document = Document(pages["hostile"])
    assert "<script>window.canary=1</script>" in document.text
    assert "{{ 7*7 }}" in document.text
    assert not [char for char in document.text if not char.isprintable() and char not in "\n\t "]
    assert "\\u202egpj.exe" in document.text


def test_the_page_is_the_same_every_time(reports, pages):
    assert page.render(reports["clean"]) == pages["clean"]


def test_the_page_shows_what_the_protocol_asks_for(pages, reports):
    text = Document(pages["clean"]).text
    for words in (
        "Passed: all four measures",
        "measured",
        "from the fault to the first progress",
        "killed was the main process, by SIGKILL",
        "Pair 0, fault 1: kill, at step 30",
        "went on from a checkpoint of Perdure's",
        "restore_s = 0.55 + 0.5388",
        "extrapolated beyond these sizes, by the same formula",
        "file-io-uring",
        f"0 of {len(reports['clean'].mistakes)} flagged",
        "No amendments: the plan is the one that was locked.",
        reports["clean"].plan_sha256,
        "longer and the deadline of the night is missed",
        "not run: perdure eval report --exit-test",
        "All hours of the window",
        "not measured: the workload uses no GPU",
        "extrapolated: the smallest number of pairs whose interval lies",
        "perdure eval baseline",
    ):
        assert words in text, words
    flagged = Document(pages["rigged"])
    assert any(attributes.get("class") == "verdict flagged" for _, attributes in flagged.elements)
    assert "▲ never" in flagged.text


def test_every_run_is_a_point_in_both_drawings(reports):
    for one in reports["clean"].measures:
        chart = drawing.every_run(one)
        for picture in (chart.wide, chart.narrow):
            assert picture.count('<path transform="translate(') == len(one.points)
    chart = drawing.restore_time(reports["clean"].cold_start)
    assert chart.wide.count('<path transform="translate(') == len(reports["clean"].cold_start.restores)


def test_extrapolated_points_are_labelled_with_their_formula(reports):
    formula = "lost = 3 <h> × 2 nodes"
    recovery = reports["clean"].measures[1]
    guessed = [
        msgspec.structs.replace(one, basis="extrapolated", formula=formula) if one.arm is Arm.UNMANAGED else one for one in recovery.points
    ]
    changed = msgspec.structs.replace(recovery, points=tuple(guessed))
    report = msgspec.structs.replace(reports["clean"], measures=(changed,))
    assert wording.basis(changed) == "18 of 36 extrapolated"
    text = Document(page.render(report)).text
    assert formula in text
    assert "18 of 36 extrapolated" in text
    assert "extrapolated" in [entry.label for entry in drawing.every_run(changed).legend]


def test_amendments_and_edits_stand_beside_the_result(tmp_path):
    there = reported.clean(tmp_path / "trial", pairs=2)
    there.plan.write_text(there.plan.read_text().replace("at_most = 300", "at_most = 900"))
    edited = reported.read(there)
    assert edited.headline.flagged
    assert any("success.recovery-time.at_most was changed" in one for one in edited.headline.doubts)
    amend.record(there, reason="the night got longer, says R&D; and 5 < 6", signed=reported.SIGNED)
    amended = reported.read(there)
    assert not amended.problems
    content = page.render(amended)
    assert "the night got longer, says R&amp;D; and 5 &lt; 6" in content
    assert f"after {amended.amendments[0].managed_runs} managed runs" in Document(content).text
    assert "300 → 900" in Document(content).text
    assert "300 → 900" in printed(amended)


def test_an_empty_evaluation_has_a_report_too(tmp_path):
    (tmp_path / "trial").mkdir()
    there = evaluations.begin(tmp_path / "trial")
    report = reported.read(there)
    assert report.headline.flagged
    shown = Document(page.render(report))
    assert shown.stack == []
    assert shown.text.count("Not measured: no run gave a value.") == len(report.measures)
    assert "recovery time: no run tells of it" in printed(report)
    assert "0 runs" in printed(report)


# The exit test


@pytest.mark.parametrize(("script", "status", "passed"), [("echo fine", 0, True), ("echo broken; exit 3", 3, False)])
def test_the_exit_test_is_run_and_kept(tmp_path, script, status, passed):
    (tmp_path / "trial").mkdir()
    there = evaluations.begin(tmp_path / "trial", who=f'who = "Maria Rossi"\ntest = ["sh", "-c", "{script}"]')
    from perdure.evaluation import plan

    found = leaving.run(there, plan.load(there.plan), signed=reported.SIGNED, clock=iter((1.0, 3.0)).__next__)
    assert (found.exit_status, found.passed, found.duration_s) == (status, passed, 2.0)
    assert leaving.read(there) == (found,)
    report = reported.read(there)
    assert ("● passed" if passed else "▲ failed") in Document(page.render(report)).text
    assert ("Exit test: passed." if passed else "Exit test: failed with 3.") in printed(report)


# Figures


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (0.0, "s", "0 s"),
        (3.14159, "s", "3.14 s"),
        (-12.34, "s", "−12.3 s"),
        (250.0, "s", "4m10s"),
        (0.0123, "share", "1.2 %"),
        (-0.004, "ratio", "−0.40 %"),
        (0.00123, "node-hours", "0.00123 node-hours"),
        (1234.0, "GPU-hours", "1,234 GPU-hours"),
    ],
)
def test_quantities_read_well(value, unit, text):
    assert wording.quantity(value, unit) == text


def test_differences_of_shares_are_points():
    assert wording.difference(0.314, "share") == "31.4 points"
    assert wording.difference(-2.04, "s") == "−2.04 s"
    assert wording.difference_interval(Interval(-0.012, 0.3, 0.9), "share") == "−1.2 to 30.0 points (90%)"
    assert wording.threshold(Threshold(reason="r", gain_at_least=0.05), "share") == "at least 5.0 points more than unmanaged"


@pytest.mark.parametrize("span", [1e-9, 0.003, 1.0, 7.0, 42.0, 1e6])
def test_ticks_are_few_and_inside(span):
    found = drawing.ticks(0.0, span, 5)
    assert 2 <= len(found) <= 6
    assert all(0 <= one <= span * 1.000001 for one in found)


def test_a_number_far_beyond_the_values_leaves_them_room(reports):
    chart = drawing.every_run(reports["clean"].measures[0])
    assert "5m →" in chart.wide
    point = Point("r", Arm.MANAGED, 0, 100.0)
    near = msgspec.structs.replace(reports["clean"].measures[0], points=(point,), threshold=Threshold(reason="r", at_most=120.0))
    assert "→" not in drawing.every_run(near).wide
