"""What becomes of a job that comes back and cannot be brought back: held where something is saved, else run as ever."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest

from perdure import errors
from perdure.model.checkpoint import Owner
from perdure.slurm import commands, scheduler, seat
from perdure.slurm.seat import _end, _Hold, _leave
from perdure.supervisor.scheduler import Notice, Outlook, Standing

OWNER = Owner(uid=2001, gid=2001, groups=())
REFUSED = errors.RestoreRefused("its processor lacks avx512", hint="another node")


class Job:
    """Slurm's side of one job."""

    def __init__(self, *problems: errors.PerdureError) -> None:
        self.problems = list(problems)
        self.held: list[str] = []

    def hold(self, reason: str, say) -> None:
        say(f"{reason}; held")
        if self.problems:
            raise self.problems.pop(0)
        self.held.append(reason)


@pytest.fixture
def store(monkeypatch):
    """What the store holds, or how it fails."""
    there = SimpleNamespace(checkpoints=["job@1.1"], problem=None)

    @contextlib.contextmanager
    def opened(_place):
        if there.problem is not None:
            raise there.problem
        names = ("job", "other", "slurm-lab-8", "slurm-lab-7.0", "slurm-lab-7")
        yield SimpleNamespace(workloads=lambda: names, checkpoints=lambda name: there.checkpoints if name in ("job", "slurm-lab-7") else [])

    monkeypatch.setattr(seat.place, "opened", opened)
    monkeypatch.setattr(seat.site, "read", lambda _environment: SimpleNamespace(place_of=lambda _owner: None))
    monkeypatch.setattr(seat.time, "sleep", lambda _seconds: None)
    return there


def told(error: errors.PerdureError, hold: _Hold | None) -> tuple[int, list[dict]]:
    """What the task hears, and the seat's status."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        status = _leave(ours, error, hold)
        ours.shutdown(socket.SHUT_WR)
        return status, [json.loads(line) for line in theirs.makefile("rb")]


def test_one_that_is_saved_is_held(store):
    job = Job()
    status, lines = told(REFUSED, _Hold(job, "job", OWNER))
    assert job.held == ["its processor lacks avx512 (another node)"]
    # From the first line on, a seat that is gone does not let the task run by itself.
    assert lines == [
        {"started": {"name": "job"}},
        {"said": "its processor lacks avx512 (another node); held"},
        {"ended": {"status": REFUSED.exit_status, "error": None}},
    ]
    assert status == REFUSED.exit_status != 0


@pytest.mark.parametrize("problem", [None, errors.StoreMissing("no store")])
def test_one_of_which_nothing_is_saved_runs_as_ever(store, problem):
    store.checkpoints, store.problem = [], problem
    job = Job()
    assert told(REFUSED, _Hold(job, "job", OWNER)) == (0, [{"unmanaged": "its processor lacks avx512 (another node); it runs unmanaged"}])
    assert not job.held


def test_its_first_attempt_runs_as_ever(store):
    assert told(REFUSED, None)[1] == [{"unmanaged": "its processor lacks avx512 (another node); it runs unmanaged"}]


@pytest.mark.parametrize("problem", [errors.StoreUnavailable("no answer"), errors.StoreCorrupt("damaged")])
def test_a_store_that_does_not_say_may_hold_something(store, problem):
    store.problem = problem
    job = Job()
    assert told(problem, _Hold(job, "job", OWNER))[1][-1]["ended"]["status"] == problem.exit_status
    assert job.held


@pytest.mark.parametrize("error", [errors.WorkloadBusy("runs elsewhere"), errors.StaleLife("replaced")])
def test_one_that_runs_elsewhere_is_not_held(store, error):
    assert not _Hold(Job(), "job", OWNER)(error, pytest.fail)


def test_a_controller_that_is_away_for_a_moment_is_asked_again(store):
    job = Job(*[errors.SchedulerUnavailable("no answer")] * 3)
    said = []
    assert _Hold(job, "job", OWNER)(REFUSED, said.append)
    assert [reply.said for reply in said[1:]] == ["its processor lacks avx512 (another node); held"]
    assert job.held


def test_one_that_cannot_be_held_does_not_start_over_either(store):
    job = Job(*[errors.SchedulerUnavailable("no answer", hint="see scontrol ping")] * 4)
    status, lines = told(REFUSED, _Hold(job, "job", OWNER))
    assert lines[1]["said"] == "its processor lacks avx512 (another node); held"
    assert lines[2]["said"].endswith("; not started over, since it is saved; and not held: no answer (see scontrol ping)")
    assert lines[3]["ended"]["status"] == status != 0


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (Standing.RUNNING, "why; the job is held, so that it does not start over: scontrol release 7_1 tries again"),
        (Standing.CANCELLED, "why; the job is being ended"),
        (Standing.LEAVING, "why; the job is being ended"),
    ],
)
def test_slurm_is_asked_as_the_jobs_user_and_not_for_one_that_leaves(monkeypatch, standing, said):
    asked, told = [], []
    monkeypatch.setattr(scheduler.time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(scheduler, "see", lambda _number, _owner: SimpleNamespace(address="7_1"))
    monkeypatch.setattr(scheduler.SlurmJob, "_judged", lambda _self, _seen: SimpleNamespace(standing=standing))

    def ask(*words, owner):
        assert told, "it must be told before Slurm ends who writes it down"
        asked.append((*words, owner.uid))

    monkeypatch.setattr(commands, "run", ask)
    scheduler.SlurmJob(7, 1, OWNER, scheduler.Site(cluster="c", kill_wait_s=30, grace_s=None)).hold("why", told.append)
    assert told == [said]
    assert asked == ([("scontrol", "requeuehold", "7_1", 2001)] if standing is Standing.RUNNING else [])


FACTS = seat.Facts(owner=OWNER, job=7, step=seat.naming.BATCH, task_pid=1, own="", defaults=())


@pytest.fixture
def controller(monkeypatch):
    """Slurm's controller: how many times it does not answer before it does."""
    there = SimpleNamespace(away=0, asked=0)

    def see(_job, _owner):
        there.asked += 1
        if there.asked <= there.away:
            raise errors.SchedulerUnavailable("no answer", hint="see scontrol ping")
        return SimpleNamespace(address="7", partition="main", restarts=1, may_requeue=True)

    monkeypatch.setattr(scheduler, "see", see)
    monkeypatch.setattr(scheduler, "site", lambda _owner, _partition: scheduler.Site(cluster="lab", kill_wait_s=30, grace_s=None))
    monkeypatch.setattr(seat, "_PAUSE_S", 0.001)
    return there


def found(facts: seat.Facts) -> tuple[bool, list[dict]]:
    """Whether Slurm says that it is the first attempt, and what the task hears meanwhile."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _job, is_first = seat._find(ours, facts)
        ours.shutdown(socket.SHUT_WR)
        return is_first, [json.loads(line) for line in theirs.makefile("rb")]


def test_a_saved_job_waits_for_a_controller_that_is_away_for_long_and_says_so_once(store, controller):
    controller.away = 50
    said = "no answer (see scontrol ping); waiting for Slurm's controller, since the job may have been saved"
    assert found(FACTS) == (False, [{"said": said}])
    assert controller.asked == 51


@pytest.mark.parametrize(("checkpoints", "step", "problem"), [([], "batch", None), (["job@1.1"], "0", None), ([], "batch", "missing")])
def test_one_of_which_nothing_is_saved_does_not_wait_for_it(store, controller, checkpoints, step, problem):
    store.checkpoints, controller.away = checkpoints, 50
    store.problem = errors.StoreMissing("no store") if problem else None
    with pytest.raises(errors.SchedulerUnavailable):
        found(msgspec.structs.replace(FACTS, step=step))
    assert controller.asked == seat._TRIES


def test_where_the_store_does_not_say_either_it_waits_until_the_task_ends(store, controller):
    store.problem, controller.away = errors.StoreUnavailable("no store"), 10**9
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.close()
        with pytest.raises(seat._Unmanaged, match="the task has ended"):
            seat._find(ours, FACTS)


def test_a_saved_job_does_not_wait_for_ever_for_commands_of_slurms_that_are_gone_and_is_not_started_over(store, monkeypatch, tmp_path):
    asked = []

    def see(job, owner):
        asked.append(job)
        assert len(asked) < 1000, "it waits for ever"
        return commands.run("squeue", owner=owner)

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(scheduler, "see", see)
    monkeypatch.setattr(seat, "_PAUSE_S", 0.001)
    monkeypatch.setattr(seat, "_reach_slurm", lambda: None)
    monkeypatch.setattr(seat, "_terminable", contextlib.nullcontext)
    monkeypatch.setattr(seat.resource, "setrlimit", lambda *_: None)
    now = iter(range(0, 10**9, 60))
    monkeypatch.setattr(commands.time, "monotonic", lambda: next(now))
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(seat, "CHANNEL", ours.detach())
    mine = Owner(uid=os.geteuid(), gid=os.getegid(), groups=())
    with theirs:
        status = seat.sit(msgspec.structs.replace(FACTS, owner=mine))
        lines = [json.loads(line) for line in theirs.makefile("rb")]
    gone = "squeue cannot be run: No such file or directory (is Slurm's client installed?)"
    assert lines == [
        {"said": f"{gone}; waiting for Slurm's controller, since the job may have been saved"},
        {"said": f"{gone}; not started over, since the job may have been saved: scontrol requeue 7 runs it again, where Slurm's client is"},
        {"ended": {"status": status, "error": None}},
    ]
    assert status == errors.SchedulerUnavailable.exit_status


def test_a_component_of_a_heterogeneous_job_is_not_kept(store, monkeypatch):
    seen = SimpleNamespace(address="7+1", partition="main", restarts=0, may_requeue=True)
    monkeypatch.setattr(scheduler, "see", lambda _job, _owner: seen)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(seat._Unmanaged, match="heterogeneous"):
        seat._find(ours, FACTS)


def test_what_slurm_refuses_is_told(monkeypatch):
    def refuse(*_words, owner):
        raise commands.Refused("Access denied")

    monkeypatch.setattr(scheduler, "see", lambda _number, _owner: SimpleNamespace(address="7"))
    monkeypatch.setattr(scheduler.SlurmJob, "_judged", lambda _self, _seen: SimpleNamespace(standing=Standing.RUNNING))
    monkeypatch.setattr(commands, "run", refuse)
    with pytest.raises(errors.Unsupported, match="Access denied"):
        scheduler.SlurmJob(7, 1, OWNER, scheduler.Site(cluster="c", kill_wait_s=30, grace_s=None)).hold("why", lambda _words: None)


TERMINATED = """
import os, signal
from perdure.slurm.seat import _Terminated, _terminable
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
try:
    with _terminable():
        print("goes on")
except _Terminated:
    print("told")
os.kill(os.getpid(), signal.SIGTERM)
print("lives")
"""


def test_a_sigterm_that_came_while_the_seat_started_is_heeded_and_a_late_one_kills_nobody():
    done = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "told\nlives\n"), done.stderr


@pytest.mark.parametrize(
    ("outlook", "is_first", "status", "told"),
    [
        pytest.param(Outlook(standing=Standing.LEAVING, end_ns=None), True, 75, ["SIGTERM: nothing of it was started; taken"], id="ending"),
        pytest.param(Outlook(standing=Standing.CANCELLED, end_ns=None), False, 143, [], id="cancelled"),
        pytest.param(Outlook(standing=Standing.RUNNING, end_ns=None), True, 143, [], id="meant for the script"),
        # A node that is back, and told to end what was on it before: the attempt that is on it now is hit.
        pytest.param(
            Outlook(standing=Standing.RUNNING, end_ns=None), False, 75, ["SIGTERM: nothing of it was started; taken"], id="by mistake"
        ),
        pytest.param(
            Outlook(standing=Standing.RUNNING, end_ns=None, notice=Notice(1, "preempted")),
            True,
            75,
            ["preempted: nothing of it was started; taken"],
            id="preempted",
        ),
        pytest.param(None, False, 143, [], id="nobody knows"),
    ],
)
def test_a_seat_that_is_ended_before_it_began_lets_slurm_run_the_job_again(monkeypatch, outlook, is_first, status, told):
    def ask(_facts):
        if outlook is None:
            raise errors.SchedulerUnavailable("away", hint="")
        return SimpleNamespace(look=lambda: outlook, saved=lambda reason: f"{reason}; taken"), is_first

    monkeypatch.setattr(seat, "_ask", ask)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert _end(ours, SimpleNamespace()) == status
        ours.shutdown(socket.SHUT_WR)
        heard = [json.loads(line) for line in theirs.makefile("rb")]
    assert [line["said"] for line in heard if line.get("said")] == told
    assert heard[-1]["ended"]["status"] == status
