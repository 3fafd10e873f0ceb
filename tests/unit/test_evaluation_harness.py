"""Which runs are missing, what follows the end of a life, and a journal from which nothing is lost."""

from __future__ import annotations

import threading

import evaluations
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.evaluation import agenda, harness, recover, requests, restarter, runs
from perdure.evaluation import folder as folders
from perdure.evaluation import plan as plans
from perdure.evaluation.arms import Said, Size
from perdure.evaluation.checkpoints import Checkpoints
from perdure.evaluation.folder import RunLog
from perdure.evaluation.restarter import End
from perdure.evaluation.runs import Recorder
from perdure.evaluation.schedule import Pace
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind

UNMANAGED, MANAGED = Arm.UNMANAGED, Arm.MANAGED


@pytest.fixture
def there(tmp_path):
    return evaluations.begin(tmp_path)


def _log(there, *made) -> RunLog:
    return RunLog(tuple(evaluations.run(there, pair, purpose="arms", arm=arm, **changed) for pair, arm, changed in made))


def test_arms_alternate(there):
    plan = plans.load(there.plan)
    assert agenda.missing(plan, RunLog()) == ((1, (UNMANAGED, MANAGED)), (2, (MANAGED, UNMANAGED)), (3, (UNMANAGED, MANAGED)))


def test_only_what_is_missing_is_made(there):
    plan = plans.load(there.plan)
    log = _log(there, (1, UNMANAGED, {}), (1, MANAGED, {}), (2, MANAGED, {}), (3, UNMANAGED, {"finished": False}))
    assert agenda.missing(plan, log) == ((2, (UNMANAGED,)), (3, (UNMANAGED, MANAGED)))
    log = _log(there, (1, UNMANAGED, {}), (1, MANAGED, {"excluded": "a fan failed"}))
    assert agenda.missing(plan, log)[0] == (1, (MANAGED,))


def test_side_by_side_a_broken_pair_is_made_anew(tmp_path):
    there = evaluations.begin(tmp_path)
    there.plan.write_text(there.plan.read_text() + '[arms]\norder = "side-by-side"\n')
    plan = plans.load(there.plan)
    log = _log(there, (1, UNMANAGED, {}), (1, MANAGED, {}), (2, UNMANAGED, {}), (2, MANAGED, {"finished": False}))
    assert agenda.missing(plan, log) == ((3, (UNMANAGED, MANAGED)), (4, (UNMANAGED, MANAGED)))


def test_nothing_is_missing_when_all_pairs_are_complete(there):
    plan = plans.load(there.plan)
    log = _log(there, *((pair, arm, {}) for pair in (1, 2, 3) for arm in Arm))
    assert agenda.missing(plan, log) == ()


def test_pace_is_that_of_undisturbed_runs(there):
    plan = plans.load(there.plan)

    def run(number, per_s, *, disturbed=False):
        made = evaluations.run(there, number)
        events = [Event(0.0, EventKind.LAUNCHED), Event(1.0, EventKind.PROGRESS, per_s), Event(11.0, EventKind.PROGRESS, 11 * per_s)]
        if disturbed:
            events.append(Event(11.5, EventKind.FAULT_INJECTED, data={"kind": "kill"}))
        events.append(Event(12.0, EventKind.ENDED, data={"completed": True}))
        return msgspec.structs.replace(made, events=tuple(events))

    made = (run(1, 2.0), run(2, 4.0), run(3, 100.0, disturbed=True))
    log = RunLog(made, tuple(msgspec.json.encode(each) for each in made))
    assert agenda.pace_of(plan, log) == Pace(3.0, 33.0)
    assert agenda.pace_of(plan, RunLog()) is None


@pytest.mark.parametrize(
    ("end", "following"),
    [
        (End(status=0), "completed"),
        (End(status=1), "failed"),
        (End(status=-9, struck=FaultKind.KILL), "restart"),
        (End(status=137, struck=FaultKind.KILL), "restart"),
        (End(status=0, struck=FaultKind.KILL), "completed"),  # it was done before the signal reached it
        (End(status=0, struck=FaultKind.PREEMPTION), "restart"),
        (End(status=75), "restart"),
        (End(status=None, struck=FaultKind.NODE_LOST), "restart"),
        (End(status=-9, hung=True), "restart"),
        (End(status=0, hung=True), "restart"),
        (End(status=20, fruitless=1, has_recovered=True), "restart"),
        (End(status=20, fruitless=3, has_recovered=True), "failed"),
        (End(status=20, fruitless=1), "failed"),
        (End(status=1, struck=FaultKind.DISK_FULL), "restart"),
        (End(status=-9, is_target_reached=True), "completed"),
    ],
)
def test_what_follows_the_end_of_a_life(end, following):
    assert restarter.after(end) == following


@given(st.integers(-64, 255) | st.none(), st.sampled_from(FaultKind) | st.none(), st.booleans(), st.booleans())
def test_no_run_goes_on_for_ever_without_progress(status, struck, hung, recovered):
    end = End(status=status, struck=struck, hung=hung, has_recovered=recovered, fruitless=restarter.MOST_FRUITLESS)
    assert restarter.after(end) != "restart"


def test_silence_is_judged_by_what_the_life_has_done():
    def limit(**changed):
        usual = {"heartbeat_s": 10.0, "has_signalled": False, "is_up": True, "first_ready_s": 5.0, "ready_limit_s": 1800.0}
        return restarter.silence_limit_s(**(usual | changed))

    assert limit(has_signalled=True) == 10
    assert limit() == 20
    assert limit(first_ready_s=None) == 1800
    assert limit(is_up=False) == 1800


def test_a_journal_holds_what_decides(there, tmp_path):
    place = tmp_path / "run"
    place.mkdir()
    head = msgspec.structs.replace(evaluations.run(there, 1), events=())
    recorder = Recorder(place, head)
    recorder.event(Event(0.0, EventKind.LAUNCHED))
    for step in range(1000):
        recorder.signal(1.0 + step / 1000, step)
    recorder.signal(1.9999, 1000)
    recorder.event(Event(2.0, EventKind.FAULT_INJECTED))
    broken = runs.read(place)
    assert broken is not None
    assert not broken.finished
    signals = [event.value for event in broken.events if event.kind is EventKind.PROGRESS]
    assert signals[0] == 0
    assert signals[-1] == 1000  # the last one before another event, always
    assert 9 <= len(signals) <= 12
    assert recorder.signals(1.5, 1.5015) == ((1.5, 500.0), (1.501, 501.0))
    with (place / runs.JOURNAL).open("ab") as handle:
        handle.write(b'{"at_s": 3.0, "ki')
    assert runs.read(place) == broken
    assert recorder.close(finished=True) == msgspec.structs.replace(broken, finished=True)


@given(st.integers(0, 3000))
def test_a_journal_that_was_torn_anywhere_is_read(tmp_path_factory, cut):
    base = tmp_path_factory.mktemp("torn")
    there = evaluations.begin(base)
    place = base / "run"
    place.mkdir()
    head = msgspec.structs.replace(evaluations.run(there, 1), events=())
    recorder = Recorder(place, head)
    for number in range(20):
        recorder.event(Event(float(number), EventKind.PROGRESS, number))
    whole = recorder.close(finished=False)
    journal = place / runs.JOURNAL
    content = journal.read_bytes()
    journal.write_bytes(content[:cut])
    found = runs.read(place)
    complete = content[:cut].count(b"\n")
    if complete == 0:
        assert found is None
    else:
        assert found is not None
        assert found.events == whole.events[: complete - 1]


def test_what_broke_is_recorded_once(there):
    plan = plans.load(there.plan)
    head = msgspec.structs.replace(evaluations.run(there, 1), events=(), id="baseline-001-unmanaged-abc123")
    recorder = Recorder(folders.make_raw(there, head.id), head)
    recorder.event(Event(1.0, EventKind.LAUNCHED))
    folders.make_raw(there, "baseline-002-unmanaged-abc123")  # nothing was written there yet
    found = recover.recover(there, plan)
    assert [run.id for run in found] == [head.id]
    assert [(run.id, run.finished) for run in folders.read_runs(there).runs] == [(head.id, False)]
    assert folders.raw_ids(there) == {head.id}
    assert recover.recover(there, plan) == ()
    recorder.close(finished=False)


def test_checkpoints_as_perdure_tells_of_them():
    signals = ((0.9, 4.0), (1.05, 5.0), (1.5, 6.0))
    checkpoints = Checkpoints(lambda _begin, _end: signals)
    size = Size({"epoch": 2, "sequence": 3}, 100, 50, 10, 0.4)
    events = [
        event
        for at_s, said in (
            (0.5, Said("running", 0, text="w@1.7")),
            (1.0, Said("check", 0)),
            (1.01, Said("freeze", 0)),
            (1.6, Said("store", 0)),
            (1.7, Said("commit", 0, done_bytes=100)),
            (2.0, Said("committed", 0, checkpoint=size)),
        )
        for event in checkpoints.hear(said, at_s)
    ]
    assert [(event.at_s, event.kind, event.value) for event in events] == [
        (0.5, EventKind.RESTORED, None),
        (1.0, EventKind.CHECKPOINT_BEGUN, None),
        (2.0, EventKind.CHECKPOINT_DONE, None),
        (2.0, EventKind.RECOVERABLE, 5.0),
    ]
    assert events[2].data["stopped_s"] == 0.4
    assert events[3].data == {"source": "perdure", "id": "2.3"}
    assert checkpoints.committed == 1
    assert [event.data for event in checkpoints.hear(Said("failed", 0, text="no room"), 3.0)] == [{"failed": "no room"}]


def test_a_checkpoint_that_only_its_restore_tells_of():
    checkpoints = Checkpoints(lambda _begin, _end: ((0.9, 4.0), (1.05, 5.0)))
    told = (
        (1.0, Said("check", 0)),
        (1.01, Said("freeze", 0)),
        (1.6, Said("store", 0)),
        (1.9, Said("failed", 0, text="the workload ended")),
        (3.0, Said("running", 0, text="w@1.2")),
        (4.0, Said("running", 0, text="w@1.2")),
    )
    events = [event for at_s, said in told for event in checkpoints.hear(said, at_s) if event.kind is EventKind.RECOVERABLE]
    assert [(event.at_s, event.value, event.data) for event in events] == [
        (1.6, 5.0, {"source": "perdure", "id": "1.2", "told": "by the restore"})
    ]


def test_how_far_a_restore_is_says_nothing_of_a_checkpoint_that_its_life_did_not_live_to_see():
    checkpoints = Checkpoints(lambda _begin, _end: ((0.9, 4.0), (1.05, 5.0)))
    told = (
        (1.0, Said("check", 0)),
        (1.01, Said("freeze", 0)),
        (2.0, Said("fetch", 0, done_bytes=0)),
        (2.1, Said("restore", 0)),
        (2.2, Said("gpu-restore", 0)),
        (3.0, Said("running", 0, text="w@1.1")),
    )
    events = [event for at_s, said in told for event in checkpoints.hear(said, at_s)]
    assert [event.kind for event in events] == [EventKind.CHECKPOINT_BEGUN, EventKind.RESTORED]


def test_a_fault_by_hand_is_taken_once(tmp_path):
    taken = []
    done = threading.Event()

    def conduct():
        while not done.is_set():
            kind = requests.take(tmp_path)
            if kind is not None:
                taken.append(kind)
            done.wait(0.01)

    thread = threading.Thread(target=conduct)
    thread.start()
    try:
        requests.ask(tmp_path, FaultKind.HANG, limit_s=120)
    finally:
        done.set()
        thread.join()
    assert taken == [FaultKind.HANG]
    assert list(tmp_path.iterdir()) == []


def test_a_fault_by_hand_that_nobody_takes(tmp_path):
    with pytest.raises(errors.WorkloadMissing, match="nobody conducts"):
        requests.ask(tmp_path, FaultKind.KILL, limit_s=0.05)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "inject.json").symlink_to("/etc/passwd")
    with pytest.raises(errors.WorkloadBusy):
        requests.ask(tmp_path, FaultKind.KILL, limit_s=0.05)
    assert requests.take(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_plans_that_cannot_run_here(there, monkeypatch):
    plan = plans.load(there.plan)
    elsewhere = msgspec.structs.replace(plan, site=msgspec.structs.replace(plan.site, nodes=("elsewhere",)))
    with pytest.raises(errors.UsageError, match="elsewhere"):
        harness.refuse(elsewhere)
    slurm = msgspec.structs.replace(plan, site=msgspec.structs.replace(plan.site, where="slurm"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(errors.EnvironmentUnfit, match="sbatch, scancel, scontrol, squeue, sacct: not found here"):
        harness.refuse(slurm)
    harness.refuse(plan)
