"""The lock: four things there and concrete, a baseline that was measured, and no data yet; written once, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil

import dying
import evaluations
import msgspec
import pytest

from perdure import errors
from perdure.evaluation import amend, canonical, completeness, evidence, folder, lock, paper, placeholders, plan, standing
from perdure.evaluation.folder import Folder
from perdure.evaluation.this_machine import Signature
from perdure.model.evaluation import Arm, Event, EventKind

SIGNED = Signature(1_764_460_000.0, "maria", "login1")


def fix(there: Folder) -> paper.Lock:
    return lock.fix(there, signed=SIGNED)


def keys(lacks) -> list[str]:
    return [lack.key for lack in lacks]


def lacks_of(there: Folder) -> list[str]:
    return keys(lock.lacks(standing.look(there)))


def test_a_complete_plan_with_its_baseline_is_locked_once(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    written = fix(there)
    found, _ = paper.read_lock(there)
    assert found == written
    planned = plan.load(there.plan)
    assert (found.plan_sha256, found.workload_sha256) == (canonical.plan_hash(planned), canonical.workload_hash(planned))
    assert canonical.digest(found.plan) == found.plan_sha256
    assert found.signed == SIGNED
    assert found.versions["torch"] == "2.9"
    assert {"perdure", "python", "kernel"} <= found.versions.keys()
    assert [run.id for run in found.baseline.runs] == ["baseline-unmanaged-0", "baseline-unmanaged-1"]
    assert (found.baseline.duration_s, found.baseline.ready_s) == (10.5, 1.0)
    assert there.lock.stat().st_mode & 0o777 == 0o600
    before = there.lock.read_bytes()
    with pytest.raises(errors.UsageError, match="locked on 2025-11-29 23:46 UTC by maria") as caught:
        fix(there)
    assert "amend" in caught.value.hint
    assert there.lock.read_bytes() == before


def test_blanks_and_comments_after_the_lock_are_no_change(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    fix(there)
    there.plan.write_text("# to be read by the board\n\n" + there.plan.read_text().replace(" = ", "   =   "))
    assert standing.require_locked(there).is_sound


# What is missing or not concrete: the line that replaces a good one, and the key that is named.
LACKS = [
    ("command", "command = []", "workload.command"),
    ("command", 'command = ["<your command>"]', "workload.command"),
    ("command", 'command = ["no-such-program-here"]', "workload.command"),
    ("command", 'command = ["./train.sh"]', "workload.command"),
    ("working_directory", 'working_directory = "relative"', "workload.working_directory"),
    ("working_directory", 'working_directory = "/no/such/folder"', "workload.working_directory"),
    ("working_directory", "", "workload.working_directory"),
    ("owner", 'owner = "TBD"', "workload.owner"),
    ("owner", 'owner = "somebody"', "workload.owner"),
    ("owner", "", "workload.owner"),
    ("made_for_evaluation", "", "workload.made_for_evaluation"),
    ("reason", 'reason = "TODO: ask the board for it"', "success.recovery-time.reason"),
    ("reason", 'reason = "because"', "success.recovery-time.reason"),
    ("who", 'who = "N/A"', "exit.who"),
    ("who", 'who = "CHANGE-ME: a person or a group"', "exit.who"),
    ("commands", "commands = []", "exit.commands"),
    ("commands", 'commands = [["true"], ["no-such-program-here"]]', "exit.commands[1]"),
    ("commands", 'commands = [["rm", "/path/to/perdure"]]', "exit.commands[0]"),
    ("nodes", "nodes = []", "site.nodes"),
    ("nodes", 'nodes = ["another-node"]', "site.nodes"),
    ("duration_s", "", "site.window"),
    ("seed", "", "faults.seed"),
    ("kinds", "", "faults.kinds"),
    ("at_progress", "", "faults"),
    ("ratio_at_most", "at_least = 0.5", "success.work-lost"),
    ("ratio_at_most", "ratio_at_most = 0", "success.work-lost.ratio_at_most"),
    ("gain_at_least", "at_least = 0", "success.utilisation.at_least"),
    ("gain_at_least", "gain_at_least = 1", "success.utilisation.gain_at_least"),
    ("gain_at_least", "at_most = 1", "success.utilisation"),
    ("pattern", "pattern = 'step ([0-9]+)'\ntarget = 10", "faults.at_progress"),
]


@pytest.mark.parametrize(("line", "instead", "key"), LACKS)
def test_what_is_missing_or_holds_a_place_is_named(tmp_path, line, instead, key):
    there = evaluations.begin(tmp_path, **{line: instead})
    evaluations.measure_baseline(there)
    with pytest.raises(errors.PlanUnfinished) as caught:
        fix(there)
    assert key in keys(caught.value.lacks)
    assert all(lack.what and lack.remedy for lack in caught.value.lacks)
    assert caught.value.exit_status == 4
    assert not there.lock.exists()


@pytest.mark.parametrize("table", ["workload.progress", "workload.own_checkpoint", "success.recovery-time", "success.overhead"])
def test_a_missing_table_is_named(tmp_path, table):
    there = evaluations.begin(tmp_path)
    text = there.plan.read_text()
    start = text.index(f"[{table}]")
    there.plan.write_text(
        text[:start] + text[text.index("[", start + 1) :]
        if table != "workload.progress"
        else text.replace(f"[{table}]\npattern = 'step ([0-9]+)'\n", "")
    )
    evaluations.measure_baseline(there)
    assert table in lacks_of(there)


def test_a_program_beside_the_workload_counts_from_there(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    there = evaluations.begin(tmp_path, command='command = ["./train.sh"]')
    assert "workload.command" in keys(completeness.check(plan.load(there.plan)))
    script.chmod(0o700)
    assert completeness.check(plan.load(there.plan)) == ()


def test_slurm_needs_a_partition_and_enough_nodes(tmp_path):
    there = evaluations.begin(
        tmp_path, nodes='where = "slurm"\nnodes = ["n1"]', made_for_evaluation="made_for_evaluation = true\nnodes = 2"
    )
    assert keys(completeness.check(plan.load(there.plan))) == ["site.nodes", "site.queue"]


# The baseline is measured and not merely promised ---------------------------------------------------------------------


SPOILT = [
    ({"purpose": "matrix"}, "0 of 1"),
    ({"arm": Arm.MANAGED}, "not unmanaged"),
    ({"finished": False}, "cut short"),
    ({"excluded": "the disk was full"}, "excluded"),
    ({"plan_hash": "0" * 64}, "another workload"),
    ({"node": "another"}, "node that site.nodes does not name"),
    ({"events": (Event(0.0, EventKind.LAUNCHED), Event(9.0, EventKind.ENDED))}, "no progress was seen"),
]


@pytest.mark.parametrize(("changed", "says"), SPOILT)
def test_a_run_that_is_no_baseline_does_not_count(tmp_path, changed, says):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there, 1)
    folder.append_run(there, evaluations.run(there, 7, **({"purpose": "baseline"} | changed)))
    (lack,) = evidence.lacks(plan.load(there.plan), folder.read_runs(there))
    assert lack.key == "baseline"
    assert "1 of 2 runs were measured" in lack.what
    assert says in lack.what or says == "0 of 1"


def test_a_workload_that_changed_since_has_no_baseline(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    there.plan.write_text(evaluations.text(tmp_path, command='command = ["sh", "-c", "echo step 2"]'))
    with pytest.raises(errors.PlanUnfinished) as caught:
        fix(there)
    assert keys(caught.value.lacks) == ["baseline"]
    assert "2 more do not count: of another workload" in caught.value.lacks[0].what


@pytest.mark.parametrize(("counters", "is_late"), [("10, 99", False), ("10, 100", True), ("150", True)])
def test_a_fault_that_would_come_when_the_work_is_done_is_refused(tmp_path, counters, is_late):
    there = evaluations.begin(tmp_path, at_progress=f"at_progress = [{counters}]")
    evaluations.measure_baseline(there)
    cut = evaluations.run(there, 3, finished=False)
    folder.append_run(there, msgspec.structs.replace(cut, events=cut.events[:-2]))
    found = [lack for lack in lock.lacks(standing.look(there)) if lack.key == "faults.at_progress"]
    assert bool(found) == is_late
    if is_late:
        assert found[0].what.endswith("when the work is done: a run of the baseline ended at 100")


def test_figures_that_the_runs_do_not_bear_out_are_found(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    good = there.plan.read_text()
    for rows, key in (
        ("runs = ['baseline-unmanaged-0', 'invented']", "baseline.measured.runs"),
        ("runs = ['baseline-unmanaged-0', 'baseline-unmanaged-1']\nduration_s = 12", "baseline.measured.duration_s"),
        ("runs = ['baseline-unmanaged-0']\nready_s = 9", "baseline.measured.ready_s"),
    ):
        there.plan.write_text(f"{good}[baseline.measured]\n{rows}\n")
        assert lacks_of(there) == [key]
    there.plan.write_text(f"{good}[baseline.measured]\nruns = ['baseline-unmanaged-0', 'baseline-unmanaged-1']\nduration_s = 10.5\n")
    assert lacks_of(there) == []


def test_a_history_is_fixed_with_it(tmp_path):
    there = evaluations.begin(tmp_path, repetitions='repetitions = 2\nhistory = "attempts.parquet"')
    there.plan.write_text(there.plan.read_text().replace('history = "attempts.parquet"\n[site.window]', "[site.window]"))
    evaluations.measure_baseline(there)
    with pytest.raises(errors.InputMissing, match="history"):
        fix(there)
    (tmp_path / "attempts.parquet").write_bytes(b"PAR1")
    import hashlib

    assert fix(there).baseline.history_sha256 == hashlib.sha256(b"PAR1").hexdigest()


# Not once there are data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("purpose", "arm"), [("arms", Arm.MANAGED), ("arms", Arm.UNMANAGED), ("coldstart", Arm.MANAGED)])
def test_numbers_are_not_fixed_once_managed_data_exist(tmp_path, purpose, arm):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    folder.append_run(there, evaluations.run(there, 9, purpose=purpose, arm=arm))
    with pytest.raises(errors.UsageError, match="managed data already") as caught:
        fix(there)
    assert "another folder" in caught.value.hint
    assert not there.lock.exists()


def test_a_recipe_of_the_matrix_is_no_such_data(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    folder.append_run(there, evaluations.run(there, 9, purpose="matrix", arm=Arm.MANAGED))
    fix(there)


def test_raw_logs_of_a_run_that_nobody_recorded_may_be_managed_data(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    folder.make_raw(there, "lost-1")
    with pytest.raises(errors.UsageError, match="lost-1 belongs to no recorded run"):
        fix(there)
    folder.append_run(there, evaluations.run(there, 3, id="lost-1", finished=False))
    fix(there)


# Written whole or not at all ------------------------------------------------------------------------------------------


def test_a_crash_at_every_step_leaves_no_lock_or_a_whole_one(tmp_path):
    place = tmp_path / "evaluation"
    there = Folder(place)
    outcomes = set()

    def prepare() -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        evaluations.begin(place)
        evaluations.measure_baseline(there)

    for _ in dying.crashes(lambda: fix(there), prepare):
        found = paper.read_lock(there)
        outcomes.add(found is not None)
        if found is None:
            fix(there)
        assert standing.require_locked(there).is_sound
        assert not [name for name in os.listdir(place) if name.endswith(".tmp")] or found is not None
    assert outcomes == {True, False}


def test_what_is_written_once_is_never_replaced(tmp_path):
    there = Folder(tmp_path)
    folder.create(there, "evaluation.lock", b"first")
    with pytest.raises(errors.OutputError, match="there already"):
        folder.create(there, "evaluation.lock", b"second")
    assert there.lock.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["evaluation.lock"]


def test_nobody_else_is_at_work_meanwhile(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    with folder.at_work(there), pytest.raises(errors.WorkloadBusy) as caught:
        fix(there)
    assert caught.value.retryable
    fix(there)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    there.lock.symlink_to(victim)
    with pytest.raises(errors.LinkInPath):
        fix(there)
    assert victim.read_text() == "precious"


def test_what_is_no_lock_is_said_to_be_none(tmp_path):
    there = evaluations.begin(tmp_path)
    for content in (b"", b"{}", b"[" * 100_000, b'{"format": "x"}', b"\xff"):
        there.lock.write_bytes(content)
        with pytest.raises(errors.InputFormat, match="is not a lock"):
            standing.look(there)
    there.lock.unlink()
    evaluations.measure_baseline(there)
    fix(there)
    there.lock.write_bytes(there.lock.read_bytes().replace(b'"format": 1', b'"format": 2', 1))
    with pytest.raises(errors.InputFormat, match="format 2"):
        standing.look(there)


# Found by every command -----------------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path) -> Folder:
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    fix(there)
    return there


def test_a_plan_that_was_edited_after_the_lock_is_found(locked, tmp_path):
    locked.plan.write_text(evaluations.text(tmp_path, at_most="at_most = 900"))
    with pytest.raises(errors.PlanChanged, match="recovery-time") as caught:
        standing.require(locked)
    assert "amend" in caught.value.hint
    assert [(change.key, change.old, change.new) for change in standing.look(locked).unamended] == [
        ("success.overhead.at_most", 0.02, 900),
        ("success.recovery-time.at_most", 300, 900),
    ]


def test_a_lock_that_was_edited_with_the_plan_is_found(locked, tmp_path):
    locked.plan.write_text(evaluations.text(tmp_path, at_most="at_most = 900"))
    document = json.loads(locked.lock.read_bytes())
    document["plan"]["success"]["recovery-time"]["at_most"] = 900
    locked.lock.write_text(json.dumps(document))
    with pytest.raises(errors.PlanChanged, match="lock was edited"):
        standing.require(locked)


def test_a_lock_that_was_dated_back_is_found(locked):
    document = json.loads(locked.lock.read_bytes())
    assert standing.require(locked).is_sound
    document["signed"]["at_unix_s"] -= 86400
    locked.lock.write_text(json.dumps(document))
    with pytest.raises(errors.PlanChanged, match="lock was edited"):
        standing.require(locked)


def test_a_baseline_that_was_edited_is_found(locked):
    content = locked.runs.read_bytes()
    locked.runs.write_bytes(content.replace(b'"at_s":10.5', b'"at_s":99.5', 1))
    with pytest.raises(errors.PlanChanged, match="baseline-unmanaged-0 of the baseline was changed"):
        standing.require(locked)
    locked.runs.write_bytes(content[content.index(b"\n") + 1 :])
    with pytest.raises(errors.PlanChanged, match="baseline-unmanaged-0 of the baseline is gone"):
        standing.require(locked)


def test_a_lock_that_was_taken_away_is_missed(locked):
    folder.append_run(locked, evaluations.run(locked, 1, purpose="arms"))
    locked.lock.unlink()
    with pytest.raises(errors.PlanChanged, match="lock is gone"):
        standing.require(locked)


def test_a_lock_is_not_made_again_beside_amendments_to_another(locked, tmp_path):
    locked.plan.write_text(evaluations.text(tmp_path, seed="seed = 8"))
    amend.record(locked, reason="the old seed had no fault", signed=SIGNED)
    locked.lock.unlink()
    with pytest.raises(errors.PlanChanged, match="lock is gone"):
        fix(locked)
    assert not locked.lock.exists()


def test_a_run_under_a_plan_that_nobody_recorded_is_found(locked):
    folder.append_run(locked, evaluations.run(locked, 1, purpose="arms"))
    assert standing.require_locked(locked).is_sound
    folder.append_run(locked, evaluations.run(locked, 2, purpose="arms", plan_hash="0" * 64))
    with pytest.raises(errors.PlanChanged, match="neither the lock nor an amendment"):
        standing.require_locked(locked)


def test_without_a_lock_there_is_nothing_to_run(tmp_path):
    there = evaluations.begin(tmp_path)
    assert standing.require(there).lock is None
    with pytest.raises(errors.PlanUnfinished, match="not locked") as caught:
        standing.require_locked(there)
    assert "eval lock" in caught.value.hint


# The runs -------------------------------------------------------------------------------------------------------------


def test_a_line_that_is_no_run_is_named_and_not_dropped(tmp_path):
    there = evaluations.begin(tmp_path)
    evaluations.measure_baseline(there)
    with open(there.runs, "ab") as handle:
        handle.write(b'{"id": "x"}\n')
    with pytest.raises(errors.InputFormat, match="line 3 is not a run"):
        folder.read_runs(there)


def test_runs_come_back_as_they_were(tmp_path):
    there = evaluations.begin(tmp_path)
    made = evaluations.run(there, 1, events=(Event(0.1, EventKind.PROGRESS, 1e300, {"line": "é\u2028\x00"}),))
    folder.append_run(there, made)
    assert folder.read_runs(there).runs == (made,)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b", "-x", "x" * 129, "a b"])
def test_an_id_cannot_lead_out_of_the_folder(tmp_path, name):
    with pytest.raises(errors.OutputError):
        folder.make_raw(Folder(tmp_path), name)
    assert list(tmp_path.iterdir()) == []


def test_raw_logs_lie_in_folders_of_their_own(tmp_path):
    there = Folder(tmp_path)
    assert folder.raw_ids(there) == frozenset()
    path = folder.make_raw(there, "r1")
    assert path.stat().st_mode & 0o777 == 0o700
    assert folder.raw_ids(there) == {"r1"}
    with pytest.raises(errors.OutputError, match="exists"):
        folder.make_raw(there, "r1")
    shutil.rmtree(there.raw)
    (tmp_path / "elsewhere").mkdir()
    there.raw.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.OutputError):
        folder.make_raw(there, "r2")


# Words that hold a place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["TODO", "tbd", "to be decided", "<owner>", "x ... y", "fill me in", "CHANGE_ME", "see /path/to/it", "XXX", "why??"]
)
def test_words_that_hold_a_place(text):
    assert placeholders.in_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "longer than a night, and the deadline is lost",
        "recovery <5 min and overhead >2 % are both seen",
        "Maria Rossi, speech group",
        "5 % of 10 k€ a month",
        "the todos of others do not count",
    ],
)
def test_words_that_say_something(text):
    assert placeholders.in_prose(text) is None


@pytest.mark.parametrize("text", ["import x; print(x[...])", "a<b and c>d", "--what=todo-list", "file…", "-c", "x > y"])
def test_code_is_no_placeholder(text):
    assert not placeholders.is_argument(text)
