"""A clean evaluation in which no mistake is found, and for each mistake a rigged one in which it is, and no other."""

from __future__ import annotations

import itertools
from pathlib import Path

import evaluations
import msgspec
import pytest
from synthetic_runs import PLAN_HASH, Script, noise, pairs, play

from perdure.evaluation import canonical, headline, measures, mistakes, paper, plan, plan_workload
from perdure.evaluation.folder import Folder, RunLog
from perdure.evaluation.standing import Standing
from perdure.evaluation.this_machine import Signature
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, MeasureKind, Threshold

COMMAND = ("python3", "train.py")
FAULTS = ((30, FaultKind.KILL), (71, FaultKind.NODE_LOST))
SIX = ("no-baseline", "different-clocks", "nobody-runs-it", "no-interruption", "run-once", "two-changes")
OTHERS = (
    "numbers-changed",
    "unequal-lengths",
    "different-machines",
    "too-few-runs",
    "one-workload",
    "excluded-runs",
    "other-faults",
    "survivors-only",
)
PLAN = plan.Plan(
    header=plan.Header(name="trial", format=1),
    workload=plan_workload.Workload(command=COMMAND, owner="speech group", made_for_evaluation=False, gpus=4, nodes=2),
    success=plan.Success(
        recovery_time=Threshold(reason="the night's deadline", at_most=300.0),
        work_lost=Threshold(reason="the group pays for it", ratio_at_most=0.5),
        utilisation=Threshold(reason="pays for the storage", gain_at_least=0.1),
        overhead=Threshold(reason="what one more node costs", at_most=0.05),
    ),
    site=plan.Site(nodes=("node1",), repetitions=6),
    faults=plan.Faults(seed=7, kinds=(FaultKind.KILL, FaultKind.NODE_LOST), at_progress=(30.0, 71.0)),
)
LOCKED = Signature(at_unix_s=1_799_999_000.0, user="maria", host="node1")
BASELINE = paper.Baseline(
    runs=tuple(paper.BaselineRun(id=f"b{number}", node="node1", sha256="0" * 64, duration_s=207.0, ready_s=7.0) for number in range(3)),
    duration_s=207.0,
    ready_s=7.0,
)
LOCK = paper.Lock(
    format=1,
    name="trial",
    plan_sha256=PLAN_HASH,
    workload_sha256="c" * 64,
    signed=LOCKED,
    versions={},
    baseline=BASELINE,
    plan=canonical.content(PLAN),
)
MATRIX = play(Script(), Arm.MANAGED, id="matrix-1", purpose="matrix", command=("python3", "server.py"))


def clean(faults=FAULTS, count=6):
    runs = pairs(
        count,
        lambda pair: Script(faults=faults, noise=noise(pair, 0.002)),
        lambda pair: Script(faults=faults, every=20, stopped_s=0.5, restart_s=2.0, noise=noise(1000 + pair, 0.002)),
    )
    # Of each pair the other one goes first: the arms take turns.
    return tuple(
        change(run, begun_unix_s=run.begun_unix_s + 500 * ((run.arm is Arm.MANAGED) == (run.pair % 2 == 0)), command=wrapped(run))
        for run in runs
    )


def wrapped(run):
    return ("perdure", "run", "--every", "10m", "--", *COMMAND) if run.arm is Arm.MANAGED else COMMAND


def change(record, **changes):
    return msgspec.structs.replace(record, **changes)


def stand(runs=None, **changes):
    everything = (*(clean() if runs is None else runs), MATRIX)
    parts = {
        "folder": Folder(Path("evaluation")),
        "plan": PLAN,
        "plan_sha256": PLAN_HASH,
        "lock": LOCK,
        "amendments": (),
        "log": RunLog(everything, tuple(msgspec.json.encode(run) for run in everything)),
        "unamended": (),
        "problems": (),
        "newest_sha256": "",
        "torn_amendments": 0,
    }
    return Standing(**(parts | changes))


def check(standing):
    return {each.code: each for each in mistakes.check(standing, measures.compute(standing.log.runs, standing.plan))}


def flagged(standing):
    return {code for code, each in check(standing).items() if each.flagged}


def test_a_clean_evaluation_has_none():
    found = check(stand())
    assert tuple(found) == SIX + OTHERS
    assert not {code: each.evidence for code, each in found.items() if each.flagged}
    for each in found.values():
        assert each.title
        assert each.evidence


def test_evidence_of_a_clean_one_has_figures():
    found = check(stand())
    assert found["no-baseline"].evidence == "3 unmanaged runs measured before, 6 beside the managed ones, on the same nodes"
    assert found["no-interruption"].evidence == "unmanaged: 6 × kill, 6 × node-lost; managed: 6 × kill, 6 × node-lost"
    assert found["run-once"].evidence == "6 unmanaged runs, 6 managed runs"
    assert found["other-faults"].evidence == "24 faults as planned, the same in both arms"
    assert found["excluded-runs"].evidence == "0 of 12 runs excluded, each with its reason; 0 cut short with the harness"


# The rigged ones: name, what is flagged, how it is rigged, what the evidence says -------------------------------------


def each_run(**of):
    """Change runs of the clean evaluation: `managed`, `unmanaged` or both by a function from run to changes."""
    return tuple(change(run, **of[run.arm.value](run)) if run.arm.value in of else run for run in clean())


def environment(**changes):
    return lambda run: {"environment": change(run.environment, **changes)}


def events(rewrite):
    return lambda run: {"events": tuple(new for old in run.events for new in rewrite(old))}


def without_faults():
    return tuple(change(run, events=play(Script(noise=noise(run.pair, 0.002))).events) for run in clean())


def in_a_row():
    return tuple(change(run, begun_unix_s=1.8e9 + run.pair + 100 * (run.arm is Arm.MANAGED)) for run in clean())


def late_useful():
    def rewrite(event):
        return [change(event, at_s=event.at_s + 30)] if event.kind is EventKind.USEFUL else [event]

    return each_run(unmanaged=events(rewrite))


def shorter():
    return tuple(
        change(run, events=play(Script(steps=80, faults=FAULTS, every=20, noise=noise(run.pair, 0.002)), Arm.MANAGED).events)
        if run.arm is Arm.MANAGED
        else run
        for run in clean()
    )


def elsewhere_struck():
    other = clean(((50, FaultKind.KILL), (71, FaultKind.NODE_LOST)))
    return tuple(theirs if theirs.arm is Arm.MANAGED else ours for ours, theirs in zip(clean(), other, strict=True))


def planned_elsewhere(event):
    return [change(event, value=5.0)] if event.kind is EventKind.FAULT_PLANNED and event.value == 30 else [event]


def missed(event):
    return [event, change(event, value=90.0)] if event.kind is EventKind.FAULT_PLANNED and event.value == 71 else [event]


def excluded(reason, arms=tuple(Arm)):
    extra = tuple(play(Script(faults=FAULTS), arm, pair=9, id=f"x-{arm}-{number}", excluded=reason) for arm in arms for number in range(2))
    return (*clean(), *extra)


def lost():
    runs = list(clean(count=7))
    last = runs[-1]
    place = max(place for place, each in enumerate(last.events) if each.kind is EventKind.RESTARTED)
    end = Event(last.events[-1].at_s, EventKind.ENDED, None, {"completed": False})
    runs[-1] = change(last, events=(*last.events[:place], end))
    return tuple(runs)


def amendment(changes, *, data_existed=True, **fields):
    known = {"number": 1, "old_sha256": PLAN_HASH, "new_sha256": PLAN_HASH, "previous_sha256": "", "plan": {}}
    return paper.Amendment(
        **(known | fields),
        reason="it was too hard to reach",
        changes=changes,
        signed=LOCKED,
        data_existed=data_existed,
        managed_runs=6,
    )


def amended(key, *, data_existed=True, old=100):
    return stand(amendments=(amendment((paper.Change(key, old, 300),), data_existed=data_existed),))


def with_pairs_planned(*numbers, data_existed=True):
    """The clean evaluation of six pairs, under plans of so many pairs, the last of which holds."""
    plans = [change(PLAN, site=change(PLAN.site, repetitions=number)) for number in numbers]
    contents = [canonical.content(one) for one in plans]
    changed = [amendment(paper.diff(*two), data_existed=data_existed) for two in itertools.pairwise(contents)]
    return stand(plan=plans[-1], lock=change(LOCK, plan=contents[0]), amendments=tuple(changed))


def pooled(**changes):
    """The clean evaluation whose second half was made under a plan that was amended to `changes`."""
    other = change(PLAN, **changes)
    content = canonical.content(other)
    changed = amendment(paper.diff(LOCK.plan, content), data_existed=False, new_sha256="b" * 64, plan=content)
    runs = tuple(change(run, plan_hash="b" * 64) if run.pair >= 3 else run for run in clean())
    return stand(runs, plan=other, amendments=(changed,))


def with_plan(**changes):
    return change(PLAN, workload=change(PLAN.workload, **changes))


def split_by_noise():
    """Managed is as slow as the threshold allows, give or take."""
    return tuple(
        change(
            run, events=play(Script(faults=FAULTS, every=20, restart_s=2, step_s=2.1, noise=noise(50 + run.pair, 0.02)), Arm.MANAGED).events
        )
        if run.arm is Arm.MANAGED
        else run
        for run in clean()
    )


BEFORE = change(LOCK, signed=change(LOCKED, at_unix_s=1_900_000_000.0))
RIGGED = {
    "no baseline was measured": (
        "no-baseline",
        lambda: stand(lock=change(LOCK, baseline=change(BASELINE, runs=()))),
        "0 runs of the workload",
    ),
    "the baseline is of one run": (
        "no-baseline",
        lambda: stand(lock=change(LOCK, baseline=change(BASELINE, runs=BASELINE.runs[:1]))),
        "1 run",
    ),
    "the baseline is of other nodes": (
        "no-baseline",
        lambda: stand(
            lock=change(LOCK, baseline=change(BASELINE, runs=tuple(change(each, node="node7") for each in BASELINE.runs))),
        ),
        "no baseline on node1",
    ),
    "a clock that can be set": (
        "different-clocks",
        lambda: stand(each_run(managed=environment(clock="CLOCK_REALTIME"))),
        "the sides were timed by CLOCK_MONOTONIC and CLOCK_REALTIME",
    ),
    "one side's recovery ends on something else": ("different-clocks", lambda: stand(late_useful()), "after the first signal of progress"),
    "it was made for the evaluation": ("nobody-runs-it", lambda: stand(plan=with_plan(made_for_evaluation=True)), "declares"),
    "it does not say who runs it": ("nobody-runs-it", lambda: stand(plan=with_plan(made_for_evaluation=None)), "does not say"),
    "the evaluator owns it": ("nobody-runs-it", lambda: stand(plan=with_plan(owner="Maria (speech)")), "is maria, who locked the plan"),
    "something else was run": (
        "nobody-runs-it",
        lambda: stand(plan=with_plan(command=("python3", "production.py"))),
        "12 runs ran another command",
    ),
    "each was run once": ("run-once", lambda: stand(clean(count=1)), "1 unmanaged run"),
    "the unmanaged side was held back": (
        "two-changes",
        lambda: stand(each_run(unmanaged=lambda run: {"command": ("nice", "-n", "19", *run.command)})),
        "pair 0: the unmanaged side ran behind 'nice -n 19'",
    ),
    "the managed side had processors of its own": (
        "two-changes",
        lambda: stand(each_run(managed=lambda run: {"command": ("taskset", "-c", "0-31", *run.command)})),
        "pair 0: the managed side ran behind 'taskset -c 0-31 perdure run --every 10m --'",
    ),
    "managed had more GPUs": ("two-changes", lambda: stand(each_run(managed=lambda run: {"gpus": 8})), "GPUs: 4 unmanaged, 8 managed"),
    "managed had more memory": ("two-changes", lambda: stand(each_run(managed=environment(memory_bytes=1 << 39))), "memory"),
    "one arm came first": ("two-changes", lambda: stand(in_a_row()), "all runs of one arm came before"),
    "another warm-up": ("two-changes", lambda: stand(each_run(managed=lambda run: {"warm_up_s": 20.0})), "warm-up: 0.0 unmanaged, 20.0"),
    "a number was changed with data in sight": (
        "numbers-changed",
        lambda: amended("success.recovery-time.at_most"),
        "amendment 1 changed success.recovery-time.at_most with 6 runs in sight: it was too hard to reach",
    ),
    "the level was changed with data in sight": ("numbers-changed", lambda: amended("site.level"), "site.level"),
    "the managed side was changed with data in sight": ("numbers-changed", lambda: amended("arms.managed_options"), "arms.managed_options"),
    "the faults were changed with data in sight": ("numbers-changed", lambda: amended("faults.at_progress"), "faults.at_progress"),
    "the workload was changed with data in sight": ("numbers-changed", lambda: amended("workload.ready.kind"), "workload.ready.kind"),
    "the window was changed with data in sight": ("numbers-changed", lambda: amended("site.window.duration_s"), "site.window.duration_s"),
    "it went on until it passed": ("numbers-changed", lambda: with_pairs_planned(5, 6), "amendment 1 changed site.repetitions with 6 runs"),
    "the managed options were changed half way": (
        "two-changes",
        lambda: pooled(arms=change(PLAN.arms, managed_options=("--every", "1m"))),
        "the runs were made under 2 plans, which differ in arms.managed_options",
    ),
    "half of the runs are of a plan that is not recorded": (
        "two-changes",
        lambda: stand(tuple(change(run, plan_hash="b" * 64) if run.pair >= 3 else run for run in clean())),
        "the runs were made under 2 plans, of which 1 is not recorded",
    ),
    "a number was changed in silence": (
        "numbers-changed",
        lambda: stand(unamended=(paper.Change("success.overhead.at_most", 0.01, 0.05),)),
        "success.overhead.at_most was changed without an amendment",
    ),
    "the lock came after the data": ("numbers-changed", lambda: stand(lock=BEFORE), "began before the lock"),
    "managed did less": ("unequal-lengths", lambda: stand(shorter()), "counted to 100"),
    "managed ran elsewhere": (
        "different-machines",
        lambda: stand(
            each_run(managed=lambda run: {"node": "node2"}),
            lock=change(LOCK, baseline=change(BASELINE, runs=(*BASELINE.runs, change(BASELINE.runs[0], node="node2")))),
        ),
        "pair 0 ran on node1 unmanaged and on node2 managed",
    ),
    "another driver": ("different-machines", lambda: stand(each_run(managed=environment(driver_version="580.2"))), "driver: 570.1"),
    "a version was changed meanwhile": (
        "different-machines",
        lambda: stand(
            tuple(change(run, environment=change(run.environment, versions={"torch": f"2.{run.pair // 3}"})) for run in clean()),
        ),
        "torch: 2.0 first in unmanaged-0, 2.1 first in",
    ),
    "too few pairs for what is claimed": ("too-few-runs", lambda: stand(split_by_noise()), "overhead is not settled by 6 pairs"),
    "fewer pairs than planned": ("too-few-runs", lambda: stand(clean(count=5)), "5 of 6 planned pairs were run"),
    "one workload": (
        "one-workload",
        lambda: stand(log=RunLog(clean(), tuple(msgspec.json.encode(run) for run in clean()))),
        "one workload, and 12 of 12 interruptions of it ended well",
    ),
    "an outlier is left out": ("excluded-runs", lambda: stand(excluded("outlier")), "excluded for 'outlier'"),
    "a reason to come": ("excluded-runs", lambda: stand(excluded("TODO write the reason")), "TODO"),
    "only managed runs are left out": (
        "excluded-runs",
        lambda: stand(excluded("the node was rebooted by its owner", (Arm.MANAGED,))),
        "all 2 excluded runs are managed ones",
    ),
    "managed met its faults elsewhere": (
        "other-faults",
        lambda: stand(elsewhere_struck()),
        "met kill at 30 unmanaged, and kill at 50 managed",
    ),
    "faults struck elsewhere than planned": (
        "other-faults",
        lambda: stand(each_run(managed=events(planned_elsewhere), unmanaged=events(planned_elsewhere))),
        "planned kill at 5, injected kill at 30",
    ),
    "a planned fault was not injected": (
        "other-faults",
        lambda: stand(each_run(managed=events(missed), unmanaged=events(missed))),
        "3 planned, 2 injected",
    ),
    "a kind that the plan does not name": (
        "other-faults",
        lambda: stand(plan=change(PLAN, faults=change(PLAN.faults, kinds=(FaultKind.KILL,)))),
        "the plan names no node-lost at 71",
    ),
}


@pytest.mark.parametrize("name", RIGGED)
def test_a_rigged_evaluation_is_flagged_for_what_it_is(name):
    code, rig, says = RIGGED[name]
    found = check(rig())
    also = {"run-once": {"too-few-runs"}}.get(code, set())
    assert {each.code for each in found.values() if each.flagged} == {code} | also
    assert says in found[code].evidence


def test_every_mistake_has_a_rigged_evaluation():
    assert {code for code, _, _ in RIGGED.values()} | {"no-interruption", "survivors-only"} == set(SIX + OTHERS)


def test_without_interruptions():
    found = check(stand(without_faults()))
    assert found["no-interruption"].flagged
    assert found["no-interruption"].evidence == "nothing interrupted the unmanaged workload; nothing interrupted the managed workload"
    # What was to strike did not, and nothing is settled by it.
    assert flagged(stand(without_faults())) == {"no-interruption", "other-faults", "too-few-runs"}


def test_faults_that_did_not_touch_the_workload_are_no_interruption():
    def rewrite(event):
        return [change(event, data={"kind": "agent-killed"})] if event.kind is EventKind.FAULT_INJECTED else [event]

    harmless = {EventKind.DETECTED, EventKind.RESTARTED, EventKind.RESTORED}
    runs = each_run(managed=lambda run: {"events": tuple(new for old in run.events if old.kind not in harmless for new in rewrite(old))})
    found = check(stand(runs))["no-interruption"]
    assert found.flagged
    assert found.evidence == "nothing interrupted the managed workload: 12 faults did not interrupt it"


def test_what_never_came_back_is_said():
    standing = stand(lost(), plan=change(PLAN, site=change(PLAN.site, repetitions=7)))
    found = check(standing)["survivors-only"]
    assert found.flagged
    assert found.evidence == "1 of 14 managed interruptions never came back: no time of recovery counts them"


def broken_off(count=1, arms=tuple(Arm), *, until=EventKind.RESTARTED):
    """Runs that somebody broke off, after their first event of the kind `until`, beside those of the clean evaluation."""
    cut = []
    for run in (run for run in clean(count=count) if run.arm in arms):
        place = next(place for place, event in enumerate(run.events) if event.kind is until)
        cut.append(change(run, id=f"cut-{run.id}", events=run.events[: place + 1], finished=False))
    return (*clean(), *cut)


def test_runs_that_were_broken_off_before_they_came_back_are_said():
    standing = stand(broken_off(6, (Arm.MANAGED,)))
    found = check(standing)
    assert {code for code, each in found.items() if each.flagged} == {"excluded-runs", "survivors-only"}
    assert found["excluded-runs"].evidence == "all 6 runs that were broken off are managed ones"
    assert found["survivors-only"].evidence.startswith("cut-managed-0 was broken off and had not come back from its kill; ")
    assert found["survivors-only"].evidence.endswith("and 3 more")
    assert flagged(stand(broken_off())) == {"survivors-only"}
    assert flagged(stand(broken_off(until=EventKind.USEFUL))) == set()


def test_runs_that_were_broken_off_at_work_are_no_doubt_unless_all_are_of_one_side():
    assert flagged(stand(broken_off(until=EventKind.PROGRESS))) == set()
    assert "2 cut short with the harness" in check(stand(broken_off(until=EventKind.PROGRESS)))["excluded-runs"].evidence
    assert flagged(stand(broken_off(1, (Arm.MANAGED,), until=EventKind.PROGRESS))) == set()
    assert flagged(stand(broken_off(2, (Arm.UNMANAGED,), until=EventKind.PROGRESS))) == {"excluded-runs"}


def test_managed_runs_alone_are_no_comparison():
    standing = stand(tuple(run for run in clean() if run.arm is Arm.MANAGED))
    assert {"no-baseline", "run-once", "no-interruption", "too-few-runs"} <= flagged(standing)
    assert "no unmanaged run beside" in check(standing)["no-baseline"].evidence


def test_an_evaluation_without_any_run_or_lock():
    empty = stand(log=RunLog(), lock=None)
    assert {"no-baseline", "no-interruption", "run-once", "too-few-runs", "one-workload"} == flagged(empty)
    unlocked = stand(lock=None)
    assert check(unlocked)["numbers-changed"].evidence.startswith("there are data and no lock")


def test_an_amendment_of_something_else_or_before_data_is_clear():
    assert not check(amended("site.queue"))["numbers-changed"].flagged
    assert not check(amended("success.overhead.reason"))["numbers-changed"].flagged
    before = check(amended("success.overhead.at_most", data_existed=False))["numbers-changed"]
    assert not before.flagged
    assert "1 amendment" in before.evidence


def test_fewer_pairs_than_were_ever_planned_with_data_in_sight_are_too_few():
    standing = with_pairs_planned(20, 6)
    found = check(standing)
    assert {code for code, each in found.items() if each.flagged} == {"numbers-changed", "too-few-runs"}
    assert "site.repetitions" in found["numbers-changed"].evidence
    assert found["too-few-runs"].evidence == "6 of 20 planned pairs were run"
    assert "too-few-runs" in flagged(with_pairs_planned(6, 20, 6))
    assert flagged(with_pairs_planned(20, 6, data_existed=False)) == set()


def test_what_is_asked_of_a_cold_start_may_be_added_later():
    assert not flagged(amended("workload.ready.kind", old=msgspec.UNSET))
    assert flagged(amended("workload.setup", old=msgspec.UNSET)) == {"numbers-changed"}


def test_runs_of_two_plans_that_treat_them_alike_are_one_evaluation():
    site = change(PLAN.site, queue="gpu", nodes=("node1", "node2"))
    assert not flagged(pooled(site=site, way_out=change(PLAN.way_out, who="the speech group")))


def test_pairs_on_two_hosts_need_a_measured_offset():
    def other_host(offset_s):
        return stand(each_run(managed=environment(host="node2", clock_offset_s=offset_s)))

    assert "nobody measured the offset" in check(other_host(0.0))["different-clocks"].evidence
    assert not check(other_host(0.003))["different-clocks"].flagged


def test_places_of_a_runs_own_are_the_same_command():
    planned = with_plan(command=("python3", "train.py", "--out={scratch}/out"))
    runs = tuple(
        change(run, command=(*launcher, "python3", "train.py", f"--out=/e/runs/{run.id}/scratch/out"))
        for run in clean()
        for launcher in [("/opt/bin/python3", "-P", "-m", "perdure", "run", "--name", "w", "--") if run.arm is Arm.MANAGED else ()]
    )
    assert not flagged(stand(runs, plan=planned))
    other = tuple(change(run, command=(*run.command[:-1], "--out=/tmp")) for run in runs)
    assert flagged(stand(other, plan=planned)) == {"nobody-runs-it"}


def test_where_a_fault_struck_is_what_the_workload_had_counted():
    # Planned at 5 and said to have struck there, while the counter stood at 30.
    def rewrite(event):
        meant = event.kind in (EventKind.FAULT_PLANNED, EventKind.FAULT_INJECTED) and event.value == 30
        return [change(event, value=5.0)] if meant else [event]

    found = check(stand(each_run(managed=events(rewrite), unmanaged=events(rewrite))))["other-faults"]
    assert found.evidence.startswith("unmanaged-0: planned kill at 5, injected kill at 30")


def test_a_fault_that_could_not_be_injected_is_missing():
    def rewrite(event):
        late = event.kind in (EventKind.FAULT_INJECTED, EventKind.FAULT_PLANNED) and event.value == 71
        if late and event.kind is EventKind.FAULT_INJECTED:
            return [change(event, kind=EventKind.FAULT_PLANNED, data=event.data | {"failed": "it had ended"})]
        return [event]

    found = check(stand(each_run(managed=events(rewrite))))["other-faults"]
    assert found.evidence.startswith("managed-0: 2 planned, 1 injected")


def test_a_time_limit_strikes_by_the_clock():
    faults = ((30, FaultKind.TIME_LIMIT), (71, FaultKind.NODE_LOST))
    other = ((45, FaultKind.TIME_LIMIT), (71, FaultKind.NODE_LOST))
    runs = tuple(theirs if theirs.arm is Arm.MANAGED else ours for ours, theirs in zip(clean(faults), clean(other), strict=True))
    limits = change(PLAN.faults, kinds=(FaultKind.TIME_LIMIT, FaultKind.NODE_LOST), time_limit_s=60.0)
    assert not check(stand(runs, plan=change(PLAN, faults=limits)))["other-faults"].flagged


def test_faults_that_do_not_compare_alone_decide_nothing():
    killed = tuple((at, FaultKind.AGENT_KILLED) for at, _ in FAULTS)
    runs = tuple(evaluations.with_faults_marked(run) for run in clean(killed))
    standing = stand(runs, plan=change(PLAN, faults=change(PLAN.faults, kinds=(FaultKind.AGENT_KILLED,))))
    found = measures.compute(runs, standing.plan)
    assert headline.write(found, (), ()).verdict == "incomplete"
    assert {each.kind for each in found if not each.points} == {MeasureKind.RECOVERY_TIME, MeasureKind.WORK_LOST}


def test_long_evidence_is_counted():
    found = check(stand(each_run(managed=lambda run: {"gpus": 8, "nodes": 9})))["two-changes"]
    assert found.evidence.endswith("and 9 more")
