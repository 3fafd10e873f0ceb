"""Runs on Slurm, the parts without Slurm: what its programs print, the batch script, and times as the accounting has them."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import evaluations
import msgspec
import pytest
import synthetic_runs

from perdure import errors
from perdure.evaluation import (
    accounting,
    course,
    loss,
    overhead,
    places,
    recovery,
    runs,
    slurm_course,
    slurm_job,
    slurm_output,
    slurm_programs,
    slurm_run,
    slurm_script,
    slurm_strike,
    slurm_striking,
    utilisation,
)
from perdure.evaluation import plan as plans
from perdure.evaluation.accounting import Attempt, Look
from perdure.evaluation.given import Given
from perdure.evaluation.plan import Plan
from perdure.evaluation.schedule import Planned
from perdure.evaluation.slurm_job import Job
from perdure.model.evaluation import Arm, Event, EventKind, FaultKind, Point, Run, Unmeasured

# What the programs of Slurm 24.11 print: a job whose node was lost, that ran again elsewhere, with its steps.
SACCT = """\
770009|NODE_FAIL|1796000000|1796000000|1796000002|1796000040|38|1|n1|billing=1,cpu=1,gres/gpu:a100=2,gres/gpu=2,node=1|1:0|
770009.batch|CANCELLED|1796000002|1796000002|1796000002|1796000040|38|1|n1|cpu=1,node=1|0:15|cpu=00:00:03,gres/gpuutil=80
770009|COMPLETED|1796000040|1796000040|1796000050|1796000110|60|1|n2|billing=1,cpu=1,gres/gpu=2,node=1|0:0|
770009.batch|COMPLETED|1796000050|1796000050|1796000050|1796000110|60|1|n2|cpu=1,node=1|0:0|cpu=00:00:09,gres/gpuutil=20
770009.extern|COMPLETED|1796000050|1796000050|1796000050|1796000110|60|1|n2|cpu=1,node=1|0:0|cpu=00:00:00
"""


def test_attempts_are_read_with_their_steps():
    one, other = accounting.attempts(SACCT)
    assert (one.state, one.start_s, one.end_s, one.elapsed_s, one.node_list) == ("NODE_FAIL", 1796000002, 1796000040, 38, "n1")
    assert (other.state, other.gpus, other.nodes, other.exit_status) == ("COMPLETED", 2, 1, 0)
    assert (one.device, other.device) == (0.8, 0.2)
    assert accounting.allocated_s((one, other)) == 98
    assert accounting.device((one, other)) == pytest.approx((0.8 * 38 + 0.2 * 60) / 98)


def test_what_is_no_attempt_is_left_out_and_what_never_ran_stands_last():
    waiting = "770009|PENDING|1796000120|Unknown|Unknown|Unknown|0|1|None assigned||0:0|\n"
    found = accounting.attempts("no accounts\n" + waiting + SACCT)
    assert [each.state for each in found] == ["NODE_FAIL", "COMPLETED", "PENDING"]
    assert found[-1].start_s is None
    assert len(accounting.ran(found)) == 2
    assert accounting.device((found[0], msgspec.structs.replace(found[1], device=None))) is None
    assert accounting.device(()) is None


@pytest.mark.parametrize(
    ("line", "look"),
    [
        ("RUNNING|0|n1|1|", Look(state="RUNNING", phase="runs", restarts=0, node="n1")),
        ("PENDING|1|(null)|4294901759|", Look(state="PENDING", phase="waits", restarts=1, node="")),
        ("PENDING|1||1|", Look(state="PENDING", phase="waits", restarts=1, node="")),
        ("PENDING|1||0|", Look(state="PENDING", phase="held", restarts=1, node="")),
        ("REQUEUE_HOLD|1||0|", Look(state="REQUEUE_HOLD", phase="held", restarts=1, node="")),
        ("COMPLETING|0|n1|0|", Look(state="COMPLETING", phase="ends", restarts=0, node="n1")),
        ("FAILED|2|n3|1|", Look(state="FAILED", phase="over", restarts=2, node="n3")),
        ("", None),
        ("slurm_load_jobs error", None),
    ],
)
def test_a_look_at_a_job(line, look):
    assert accounting.look(line) == look


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("perdure: slurm-lab-7, life 1 on n1: starts anew", slurm_output.Said(True)),
        ("perdure: slurm-lab-7, life 3 on n2, restart 2: goes on from slurm-lab-7@2.4", slurm_output.Said(True, "slurm-lab-7@2.4")),
        ("perdure: the store is away; it runs unmanaged", slurm_output.Said(False, why="the store is away; it runs unmanaged")),
        ("perdure: stderr: 431 B written after the checkpoint cut off", None),
        ("step 5", None),
        ("I said perdure: x, life 1 on n1: starts anew", None),
    ],
)
def test_what_perdure_says_in_a_jobs_output(line, said):
    assert slurm_output.said(line) == said


def test_the_output_is_read_as_it_grows_and_from_where_it_was_cut(tmp_path):
    path = tmp_path / "out"
    tail = slurm_output.Tail(path)
    assert tail.read() == b""
    assert not tail.grown()
    path.write_bytes(b"step 1\nstep 2\nstep 3\n")
    assert tail.grown()
    assert tail.read() == b"step 1\nstep 2\nstep 3\n"
    assert not tail.grown()
    path.write_bytes(b"step 1\n")
    assert tail.read() == b""
    with open(path, "ab") as handle:
        handle.write(b"step 2\n")
    assert tail.read() == b"step 2\n"


# The batch script


def the_plan(place, **changed) -> Plan:
    plan = plans.load(evaluations.begin(place).plan)
    site = msgspec.structs.replace(plan.site, where="slurm", queue="main", slurm=plans.Slurm(options=("--time=30",)))
    return msgspec.structs.replace(plan, site=site, **changed)


def test_the_arms_differ_in_one_word(tmp_path):
    plan = the_plan(tmp_path, arms=plans.Arms(managed_options=("--every", "10m", "--keep=2")))
    unmanaged, managed = (slurm_script.options(plan, arm, "run-1", tmp_path, None) for arm in (Arm.UNMANAGED, Arm.MANAGED))
    assert set(managed) - set(unmanaged) == {"--comment=perdure:every=10m,keep=2,events=1"}
    assert set(unmanaged) <= set(managed)
    assert unmanaged[0] == "--time=30"
    assert {"--partition=main", "--requeue", "--open-mode=append", "--job-name=run-1"} <= set(unmanaged)
    assert slurm_script.comment(()) == "perdure"
    assert "--time=2" in slurm_script.options(plan, Arm.UNMANAGED, "run-1", tmp_path, 120.0)


@pytest.mark.parametrize("options", [("--every",), ("--detach", "--every", "1m"), ("--outputs", "a,b"), ("-q", "1"), ("every 10m",)])
def test_options_that_cannot_stand_in_a_comment(options):
    with pytest.raises(errors.UsageError):
        slurm_script.comment(options)


def test_the_script_tells_of_its_node_and_becomes_the_command(tmp_path):
    place = tmp_path / "it's a folder"
    place.mkdir()
    command = ["sh", "-c", 'echo "$0" "$PERDURE_EVAL_RUN" $$', "two words; echo 'no'"]
    text = slurm_script.script(command, "run-1", place, {"one": ("echo", "version 1"), "none": ("/no/such",)})
    (place / "job.sh").write_text(text)
    for _ in range(2):  # a job that runs again keeps what the first node told
        with subprocess.Popen(["sh", str(place / "job.sh")], stdout=subprocess.PIPE, text=True) as job:
            out, _ = job.communicate()
        assert out == f"two words; echo 'no' run-1 {job.pid}\n"
    found = slurm_script.environment((place / slurm_script.FACTS).read_text(), evaluations.ENVIRONMENT)
    assert found.host == evaluations.HOST
    assert found.cores >= 1
    assert found.memory_bytes > 1 << 20
    assert found.boot_id != "b"
    assert found.versions["one"] == "version 1"
    assert "none" in found.versions
    assert slurm_script.environment("", evaluations.ENVIRONMENT) == msgspec.structs.replace(evaluations.ENVIRONMENT, gpus=())


def test_a_node_with_gpus_tells_of_them_and_their_driver(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        """#!/bin/sh
case $* in
*name,uuid*) printf 'NVIDIA H200, GPU-1\\nNVIDIA H200, GPU-2\\n' ;;
*driver_version*) printf '570.86\\n570.86\\n' ;;
*) printf '| NVIDIA-SMI 570.86    Driver Version: 570.86    CUDA Version: 12.8     |\\n' ;;
esac
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "job.sh").write_text(slurm_script.script(["true"], "run-1", tmp_path, {}))
    subprocess.run(["sh", str(tmp_path / "job.sh")], check=True)
    found = slurm_script.environment((tmp_path / slurm_script.FACTS).read_text(), evaluations.ENVIRONMENT)
    assert found.gpus == ("NVIDIA H200 GPU-1", "NVIDIA H200 GPU-2")
    assert (found.driver_version, found.cuda_version) == ("570.86", "12.8")


def test_faults_of_which_the_site_must_say_how(tmp_path):
    plan = the_plan(tmp_path)
    plan = msgspec.structs.replace(plan, faults=msgspec.structs.replace(plan.faults, kinds=tuple(FaultKind), time_limit_s=60.0))
    keys = ("lose_node", "exhaust_memory", "fill_disk", "kill_agent", "free_disk")
    assert [key for key, _, _ in slurm_strike.lacks(plan)] == [f"site.slurm.{key}" for key in (*keys, "preemptor")]
    told = plans.Slurm(**dict.fromkeys(keys, ("do", "{node}")), preemptor=("--partition=high",))
    plan = msgspec.structs.replace(plan, site=msgspec.structs.replace(plan.site, slurm=told))
    assert list(slurm_strike.lacks(plan)) == []


# Times as the accounting has them

ORIGIN = 1796000000.0
"""The evaluation's clock stood at 0 then."""


def seen(arm: Arm) -> Run:
    """A run whose node was lost at counter 6, as the harness saw it, each thing some time after it was so."""
    restored = arm is Arm.MANAGED
    first = 5.0 if restored else 1.0
    again = [Event(53.0 + step - first, EventKind.PROGRESS, step) for step in range(int(first), 11)]
    events = (
        Event(1.0, EventKind.FAULT_PLANNED, 6.0, {"kind": "node-lost"}),
        Event(3.0, EventKind.LAUNCHED, None, {"life": 1}),
        *(Event(3.0 + step, EventKind.PROGRESS, step) for step in range(1, 7)),
        Event(9.5, EventKind.FAULT_INJECTED, 6.0, {"kind": "node-lost"}),
        Event(40.8, EventKind.DETECTED, None, {"how": "Slurm: PENDING"}),
        Event(50.9, EventKind.RESTARTED, None, {"life": 2, "how": "start"}),
        *((Event(51.5, EventKind.RESTORED, None, {"from": "w@1.2"}),) if restored else ()),
        Event(53.0, EventKind.READY, first),
        Event(53.0, EventKind.USEFUL, first),
        *again,
        Event(111.0, EventKind.ENDED, None, {"completed": True, "checkpoints_told": not restored}),
    )
    return Run(
        id=f"arms-1-{arm}",
        arm=arm,
        pair=1,
        repetition=1,
        node="n1,n2",
        nodes=1,
        gpus=0,
        begun_unix_s=ORIGIN,
        environment=synthetic_runs.ENVIRONMENT,
        command=("c",),
        events=events,
        plan_hash="a",
    )


def settled(arm: Arm, text: str = SACCT) -> Run:
    return slurm_course.settle(seen(arm), accounting.attempts(text), origin_unix_s=ORIGIN, is_each_heard=True)


def test_recovery_is_split_by_the_times_of_the_accounting():
    (point,) = recovery.points(course.read(settled(Arm.UNMANAGED)))
    assert isinstance(point, Point)
    assert point.value == pytest.approx(53.0 - 9.5)
    # The node was found lost 40 s after the submit, and the next attempt began at 50 s.
    assert point.parts == pytest.approx({"detection": 40 - 9.5, "scheduling": 10, "restart": 3.0, "warm_up": 0.0})
    (managed,) = recovery.points(course.read(settled(Arm.MANAGED)))
    assert isinstance(managed, Point)
    assert managed.parts == pytest.approx({"detection": 40 - 9.5, "scheduling": 10, "restart": 1.5, "warm_up": 1.5})


def test_a_restore_proves_the_counter_that_it_went_on_from():
    (managed,) = loss.points(course.read(settled(Arm.MANAGED)))
    (unmanaged,) = loss.points(course.read(settled(Arm.UNMANAGED)))
    assert isinstance(managed, Point)
    assert isinstance(unmanaged, Point)
    assert (managed.parts["at_fault"], managed.parts["recoverable"], managed.parts["after"]) == (6, 4, 1)
    assert (unmanaged.parts["at_fault"], unmanaged.parts["recoverable"], unmanaged.parts["after"]) == (6, 0, 0)
    how = [event.data["how"] for event in settled(Arm.MANAGED).events if event.kind is EventKind.RESTARTED]
    assert how == ["restore"]


def test_allocated_hours_are_those_of_the_accounting():
    for arm in Arm:
        found = utilisation.split(course.read(settled(arm)))
        assert isinstance(found, utilisation.Hours)
        assert found.allocated_s == pytest.approx(98), "38 and 60 seconds: the ten between are the queue's"
    (point,) = utilisation.points(course.read(settled(Arm.UNMANAGED)))
    assert isinstance(point, Point)
    assert point.parts["device"] == pytest.approx((0.8 * 38 + 0.2 * 60) / 98)


def test_an_overhead_is_not_told_where_nobody_tells_of_checkpoints():
    (found,) = overhead.points(course.read(settled(Arm.UNMANAGED)), course.read(settled(Arm.MANAGED)))
    assert isinstance(found, Unmeasured)
    assert found.code == "not-told"
    (cost,) = overhead.costs(course.read(settled(Arm.MANAGED)))
    assert isinstance(cost, Unmeasured)


def test_without_accounts_the_run_stays_as_it_was_seen():
    for text in ("", SACCT.splitlines()[0] + "\n"):
        run = settled(Arm.UNMANAGED, text)
        assert run.events == seen(Arm.UNMANAGED).events
        assert "accounting" not in run.events[-1].data


def test_times_never_go_back_behind_what_had_to_come_first():
    # Whole seconds lie before what the harness saw within them, and a controller's clock may be wrong.
    early = [
        msgspec.structs.replace(one, start_s=one.start_s - 30, end_s=one.end_s - 30)
        for one in accounting.attempts(SACCT)
        if one.start_s is not None and one.end_s is not None
    ]
    run = slurm_course.settle(seen(Arm.MANAGED), early, origin_unix_s=ORIGIN, is_each_heard=True)
    aside = (EventKind.PROGRESS, EventKind.RECOVERABLE, EventKind.FAULT_PLANNED)
    assert [event.kind for event in run.events if event.kind not in aside] == [
        event.kind for event in seen(Arm.MANAGED).events if event.kind not in aside
    ]
    fault = next(event for event in run.events if event.kind is EventKind.FAULT_INJECTED)
    assert all(event.at_s >= fault.at_s for event in run.events if event.kind in (EventKind.DETECTED, EventKind.RESTARTED))
    (point,) = loss.points(course.read(run))
    assert isinstance(point, Point)
    assert point.parts["at_fault"] == 6


def test_an_attempt_reads_back(tmp_path):
    """What is kept at the end of a run is plain data."""
    run = settled(Arm.UNMANAGED)
    kept = msgspec.json.decode(msgspec.json.encode(run), type=Run).events[-1].data["accounting"]
    assert msgspec.convert(kept, tuple[Attempt, ...]) == accounting.attempts(SACCT)


# A job in the harness's hands, with programs that answer what a file says


class Slurm:
    """Stand-ins for squeue, scontrol, sacct and scancel: each prints its file, or fails with the words in it; what was asked is kept."""

    PROGRAM = """#!/bin/sh
here=$(dirname "$0")
name=$(basename "$0")
echo "$name $*" >>"$here/asked"
if [ -e "$here/$name.fails" ]; then cat "$here/$name.fails" >&2; exit 1; fi
if [ -e "$here/$name.says" ]; then cat "$here/$name.says"; fi
"""

    def __init__(self, place) -> None:
        self.place = place
        for name in ("squeue", "scontrol", "sacct", "scancel", "sbatch"):
            (place / name).write_text(self.PROGRAM)
            (place / name).chmod(0o755)

    def says(self, name: str, text: str) -> None:
        (self.place / f"{name}.fails").unlink(missing_ok=True)
        (self.place / f"{name}.says").write_text(text)

    def fails(self, name: str, text: str) -> None:
        (self.place / f"{name}.fails").write_text(text)

    def asked(self, name: str) -> list[str]:
        return [line for line in (self.place / "asked").read_text().splitlines() if line.startswith(f"{name} ")]


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Slurm:
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return Slurm(place)


AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"


def test_a_controller_that_is_away_for_a_while_is_waited_for(slurm):
    now_s = 0.0
    job = Job(7, lambda: now_s)
    slurm.fails("squeue", AWAY)
    assert job.look() is None
    now_s = 800.0
    assert job.look() is None
    slurm.says("squeue", "RUNNING|0|n1|1|\n")
    seen = job.look()
    assert seen is not None
    assert seen.node == "n1"
    slurm.fails("squeue", AWAY)
    now_s = 1000.0
    assert job.look() is None
    now_s = 1900.0
    with pytest.raises(errors.SchedulerUnavailable, match="Unable to contact"):
        job.look()


def test_a_job_that_the_controller_has_forgotten_is_over(slurm):
    job = Job(7, lambda: 0.0)
    slurm.fails("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    assert job.look() is None, "not shown yet"
    slurm.says("squeue", "RUNNING|2|n1|1|\n")
    job.look()
    slurm.fails("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    assert job.look() == Look(state="UNKNOWN", phase="over", restarts=2, node="")


def test_what_could_not_be_queued_again_is_when_the_controller_is_back_but_no_later_life(slurm):
    for after, times in ((0, 2), (1, 1)):
        (slurm.place / "asked").unlink(missing_ok=True)
        job = Job(7, lambda: 0.0)
        slurm.says("squeue", "RUNNING|0|n1|1|\n")
        job.look()
        slurm.fails("scontrol", AWAY)
        assert job.requeue() == ""
        slurm.says("scontrol", "")
        slurm.says("squeue", f"RUNNING|{after}|n1|1|\n")
        job.look()
        assert len(slurm.asked("scontrol")) == times
    slurm.fails("scontrol", "Requested operation not supported\n")
    assert Job(7, lambda: 0.0).requeue() == "Slurm does not put the job into the queue again: Requested operation not supported"


SQUEUE = """#!/bin/sh
cd "$(dirname "$0")"
case "$*" in *--jobs=*) ;; *) exit 0 ;; esac
number=$(cat looked 2>/dev/null || echo 0)
[ ! -e "$((number + 1)).line" ] || echo $((number + 1)) >looked
cat $number.before >>"{output}"
cat $number.line
cat $number.after >>"{output}"
"""
# What squeue says, look by look, and what has come to the job's output just before it answers, or just after.
LOOKS = (
    ("step 1\nstep 2\n", "RUNNING|0|n1|1|", ""),
    ("", "FAILED|0|n1|1|", ""),
    ("", "PENDING|1||1|", "step 3\n"),
    ("", "PENDING|1||1|", ""),
    ("step 1\n", "RUNNING|1|n2|1|", "step 2\n"),
    ("", "RUNNING|1|n2|1|", ""),
    ("", "COMPLETED|1|n2|1|", ""),
)


def test_last_words_that_a_shared_file_system_shows_late_are_not_the_next_lifes(slurm, tmp_path):
    there = places.of(tmp_path / "raw", "run")
    there.raw.mkdir()
    (slurm.place / "squeue").write_text(SQUEUE.format(output=there.raw / slurm_script.OUTPUT))
    for number, (before, line, after) in enumerate(LOOKS):
        for name, text in (("before", before), ("line", line), ("after", after)):
            (slurm.place / f"{number}.{name}").write_text(text)
    slurm.says("sbatch", "7\n")
    recorder = runs.Recorder(there.raw, evaluations.run(evaluations.begin(tmp_path), 1, purpose="arms"))
    conducted = slurm_run.SlurmRun(
        Given(
            plan=the_plan(tmp_path),
            arm=Arm.UNMANAGED,
            places=there,
            planned=(Planned(FaultKind.KILL, 2.0),),
            clock=time.monotonic,
            end_unix_s=None,
            stop=threading.Event(),
        ),
        recorder,
    )
    assert conducted.run()
    read = recorder.close(finished=True)
    assert [(there.raw / f"life-{life}-output.log").read_text() for life in (1, 2)] == ["step 1\nstep 2\nstep 3\n", "step 1\nstep 2\n"]
    (interruption,) = course.read(read).interruptions
    assert (interruption.kind, interruption.useful.value) == (FaultKind.KILL, 1.0)
    assert course.read(read).counter_at(interruption.fault.at_s) == 3.0


def test_accounts_are_kept_and_asked_for_by_whole_attempts(slurm, tmp_path):
    slurm.says("sacct", SACCT)
    found = Job(770009, lambda: 0.0).attempts(2, 1796000000.0, tmp_path)
    assert [each.state for each in found] == ["NODE_FAIL", "COMPLETED"]
    assert (tmp_path / "accounting.txt").read_text() == SACCT
    assert f"--format={accounting.FIELDS}" in slurm.asked("sacct")[0]
    slurm.fails("sacct", "Slurm accounting storage is disabled\n")
    assert Job(770009, lambda: 0.0).attempts(2, 1796000000.0, tmp_path) == ()


def test_what_tells_the_arms_apart_does_not_reach_a_job(slurm):
    slurm.says("sbatch", "770009;lab\n")
    (slurm.place / "sbatch").write_text('#!/bin/sh\nenv >"$(dirname "$0")/environment"\necho "770009;lab"\n')
    given = {
        "PATH": os.environ["PATH"],
        "HOME": "/h",
        "PERDURE": "1",
        "PERDURE_STORE": "/s",
        "SBATCH_COMMENT": "perdure",
        "SLURM_JOB_ID": "3",
    }
    assert slurm_programs.submit("job.sh", ("--requeue",), given) == 770009
    seen = dict(line.split("=", 1) for line in (slurm.place / "environment").read_text().splitlines() if "=" in line)
    assert seen["HOME"] == "/h"
    assert not {"PERDURE", "PERDURE_STORE", "SBATCH_COMMENT", "SLURM_JOB_ID"} & seen.keys()


def test_the_controllers_clock(slurm):
    began_s = time.time()
    slurm.says("scontrol", f"Configuration data as of {int(began_s) + 100}\nClusterName = lab\n")
    offset_s = slurm_programs.clock_offset_s()
    # What it said was true when the test began.
    assert began_s + 99 <= time.time() + offset_s
    assert offset_s <= 101
    slurm.says("scontrol", "ClusterName = lab\n")
    assert slurm_programs.clock_offset_s() == 0.0


def struck(slurm, arm: Arm, kind: FaultKind) -> tuple[slurm_striking.Striking, list[Event], list[str]]:
    """Strike a job 7 on n2 with the site's commands; what they were told stands in a file."""
    script = slurm.place / "site-fault"
    script.write_text(f'#!/bin/sh\necho "$*" >>{slurm.place}/site\n')
    script.chmod(0o755)
    told = {key: ("site-fault", key, "{node}", "{job}") for key in ("exhaust_memory", "fill_disk", "free_disk", "kill_agent")}
    plan = the_plan(slurm.place)
    plan = msgspec.structs.replace(plan, site=msgspec.structs.replace(plan.site, slurm=plans.Slurm(**told)))
    events: list[Event] = []
    now_s = [100.0]
    striking = slurm_striking.Striking(
        plan, arm, "run-1", (Planned(kind, 5.0),), heartbeat_s=0.0, record=events.append, clock=lambda: now_s[0]
    )
    striking.begin(1, 7, "n2")
    striking.reached(5.0)
    return striking, events, (slurm.place / "site").read_text().splitlines() if (slurm.place / "site").exists() else []


def test_the_sites_own_faults_are_done_by_its_commands(slurm):
    striking, events, told = struck(slurm, Arm.UNMANAGED, FaultKind.OUT_OF_MEMORY)
    assert told == ["exhaust_memory n2 7"]
    assert events[-1].data["way"] == "the site's command that lets a job's memory run out: job 7 on n2"
    assert striking.struck is FaultKind.OUT_OF_MEMORY
    striking.pass_time()
    assert striking.struck is None, "it still counts: it has survived"


def test_a_disk_that_was_filled_is_emptied_before_the_job_runs_again(slurm):
    striking, _, told = struck(slurm, Arm.MANAGED, FaultKind.DISK_FULL)
    assert told == ["fill_disk n2 7"]
    striking.is_down()
    striking.close()
    assert (slurm.place / "site").read_text().splitlines() == ["fill_disk n2 7", "free_disk n2 7"]


def test_an_agent_is_killed_where_there_is_one_and_the_sides_do_not_compare(slurm):
    _, events, told = struck(slurm, Arm.MANAGED, FaultKind.AGENT_KILLED)
    assert told == ["kill_agent n2 7"]
    assert events[-1].data["comparable"] is False
    _, events, told = struck(slurm, Arm.UNMANAGED, FaultKind.AGENT_KILLED)
    assert told == ["kill_agent n2 7"], "no more than before"
    assert slurm.asked("scancel") == ["scancel --signal=KILL --batch 7"]
    assert events[-1].data["comparable"] is False


def test_all_jobs_of_a_run_are_ended_by_its_name(slurm):
    slurm.says("squeue", "")
    slurm_job.leave("arms-001-managed-1")
    assert slurm.asked("scancel") == ["scancel --name=arms-001-managed-1"]


def test_perdure_has_to_keep_the_one_and_not_the_other():
    starts, restores = b"perdure: w, life 1 on n1: starts anew\n", b"perdure: w, life 2 on n2, restart 1: goes on from w@1.2\n"
    managed = slurm_output.Keeping(is_wanted=True)
    assert managed.trouble() == "Perdure did not say that it kept the job"
    assert list(managed.feed(starts[:10])) == []
    assert list(managed.feed(starts[10:] + b"step 1\n" + restores)) == ["w@1.2"]
    assert managed.trouble() == ""
    list(managed.feed(b"perdure: the store is away; it runs unmanaged\n"))
    assert "the store is away" in managed.trouble()
    unmanaged = slurm_output.Keeping(is_wanted=False)
    assert unmanaged.trouble() == ""
    assert list(unmanaged.feed(starts)) == []
    assert unmanaged.trouble() == "Perdure kept the unmanaged job: the site's policy opts it in"
