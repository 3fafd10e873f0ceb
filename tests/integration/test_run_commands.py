"""The everyday commands on real workloads: checkpoint, restore, stop, rm, ps, logs, run -d."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import time

import pytest
from supervised import LIMIT_S, Site, descendants, is_zombie, lines, wait_for

from perdure import errors
from perdure.model import rates
from perdure.model.rates import Rates
from perdure.supervisor import control, messages

pytestmark = pytest.mark.criu


def count(number: int, pause_s: float = 0.05, status: int = 0) -> list[str]:
    return ["--", "python3", "count.py", str(number), str(pause_s), str(status)]


def begun(site: Site, name: str = "a", least: int = 3) -> bool:
    return len(site.log(name).splitlines()) >= least


def detached(site: Site, *command: str, name: str = "a", every: str = "never") -> None:
    done = site.run("run", "--name", name, "--every", every, "-d", *command)
    assert done.returncode == 0, done.stderr.decode()
    assert f"{name} runs in the background".encode() in done.stderr


@pytest.mark.parametrize(("command", "how"), [("true", b"completed"), ("false", b"failed")])
def test_what_has_ended_is_not_restored_without_a_checkpoint_named(site, command, how):
    site.run("run", "--name", "a", "--every", "never", "--", command)
    done = site.run("restore", "a")
    assert done.returncode == errors.WorkloadMissing.exit_status
    (told,) = done.stderr.splitlines()
    assert b"a " + how + b" before" in told
    assert b"restore a --from ID" in told
    assert b"run --fresh --name a" in told
    assert b"anew" not in told


def test_checkpoint_by_hand_says_what_it_cost_and_ps_tells_exactly_what_is_promised(site):
    detached(site, *count(10_000))
    wait_for(lambda: begun(site))
    done = site.run("checkpoint", "a", "--json")
    assert done.returncode == 0, done.stderr.decode()
    made = json.loads(done.stdout)
    assert made["id"] == "a@1.1"
    assert made["logical_bytes"] > made["new_bytes"] > 0
    assert 0 < made["stopped_s"] < made["cost_s"]
    phases = [json.loads(line)["phase"] for line in done.stderr.splitlines()]
    assert [phase for phase in dict.fromkeys(phases) if phase in ("check", "freeze", "store", "commit", "committed")] == [
        "check",
        "freeze",
        "store",
        "commit",
        "committed",
    ]
    found = site.ps("a")
    assert list(found) == ["name", "state", "epoch", "pid", "checkpoints", "last_checkpoint"]
    assert list(found["last_checkpoint"]) == ["id", "age_s", "logical_bytes", "stored_bytes", "new_bytes", "stopped_s"]
    assert (found["name"], found["state"], found["epoch"], found["checkpoints"]) == ("a", "running", 1, 1)
    assert os.path.exists(f"/proc/{found['pid']}")
    text = site.run("ps")
    assert text.stdout.split()[:4] == [b"name", b"state", b"epoch", b"pid"]
    second = site.run("checkpoint", "a")
    assert second.returncode == 0
    assert second.stdout.startswith(b"a@1.2: ")


def test_checkpoint_and_stop_then_restore(site):
    detached(site, *count(4000))
    wait_for(lambda: begun(site, least=20))
    done = site.run("checkpoint", "a", "--stop")
    assert done.returncode == 0, done.stderr.decode()
    assert b"stopped for good" in done.stdout
    assert site.ps("a")["state"] == "stopped"
    assert site.run("checkpoint", "a").returncode == 21
    site.hurry()
    again = site.run("restore", "a")
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == lines(4000)
    assert site.ps("a")["state"] == "completed"
    # One that was completed goes on only when it is asked for by its id.
    refused = site.run("restore", "a")
    assert refused.returncode == 21
    third = site.run("restore", "a", "--from", "a@1.1")
    assert third.returncode == 0, third.stderr.decode()
    assert site.log("a") == lines(4000)
    assert site.ps("a")["epoch"] == 3


def test_restore_from_an_older_one_leaves_the_newer_branch(site):
    detached(site, *count(10_000))
    wait_for(lambda: begun(site, least=5))
    assert site.run("checkpoint", "a").returncode == 0
    wait_for(lambda: begun(site, least=30))
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    back = site.run("restore", "a", "--from", "a@1.1", "-d")
    assert back.returncode == 0, back.stderr.decode()
    wait_for(lambda: begun(site, least=8))
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    assert site.log("a") == lines(len(site.log("a").splitlines()))
    again = site.start("restore", "a")
    wait_for(lambda: b"goes on from a@2.1" in _peek(again))


def test_a_restore_from_an_older_one_that_failed_leaves_everything_as_it_was(site):
    detached(site, "--probe", f"test -e {site.work}/ok", *count(10_000))
    wait_for(lambda: begun(site, least=5))
    assert site.run("checkpoint", "a").returncode == 0
    wait_for(lambda: begun(site, least=30))
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    failed = site.run("restore", "a", "--from", "a@1.1")
    assert failed.returncode == 20, failed.stderr.decode()
    assert b"the probe failed" in failed.stderr
    assert (site.ps("a")["state"], site.ps("a")["last_checkpoint"]["id"]) == ("stopped", "a@1.2")
    (site.work / "ok").touch()
    again = site.start("restore", "a")
    wait_for(lambda: b"goes on from a@1.2, life 3" in _peek(again))


def _peek(process: subprocess.Popen[bytes]) -> bytes:
    os.set_blocking(process.stderr.fileno(), False)
    process.seen = getattr(process, "seen", b"") + (process.stderr.read() or b"")
    return process.seen


def test_usr1_saves_and_goes_on(site):
    process = site.start("run", "--name", "a", "--every", "never", *count(4000))
    wait_for(lambda: begun(site))
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: site.manifests("a"))
    site.hurry()
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, lines(4000))


def test_stop_ends_it_and_the_next_run_goes_on(site):
    detached(site, *count(4000), every="1s")
    # Known to its supervisor, which is a moment after it lies in the store.
    wait_for(lambda: site.ps("a")["last_checkpoint"])
    done = site.run("stop", "a")
    assert done.returncode == 0
    assert b"goes on from a@1." in done.stderr
    assert site.ps("a")["state"] == "stopped"
    assert site.run("stop", "a").returncode == 21
    site.hurry()
    again = site.run("run", "--name", "a", "--every", "1s", *count(4000))
    assert again.returncode == 0, again.stderr.decode()
    assert site.log("a") == lines(4000)


def test_stop_kills_one_that_does_not_listen(site):
    (site.work / "deaf.sh").write_text("trap '' TERM; echo up; while :; do sleep 0.1; done")
    detached(site, "--", "sh", "deaf.sh")
    wait_for(lambda: begun(site, least=1))
    assert site.run("stop", "a", "--grace", "300ms").returncode == 0
    assert site.ps("a")["state"] == "stopped"


SLOW = """
import contextlib, sys, time
from perdure.__main__ import main
from perdure.supervisor import control, lock

held, listen = lock.held, control.Server.__init__


@contextlib.contextmanager
def slowly(*arguments):
    with held(*arguments) as it:
        yield it
        time.sleep(1)


def late(*arguments):
    time.sleep(1)
    listen(*arguments)


lock.held, control.Server.__init__ = slowly, late
sys.exit(main(sys.argv[1:]))
"""
"""A supervisor that takes its time before it listens, and before it lets go of the workload."""


def test_what_is_said_to_be_begun_can_be_stopped_and_what_is_said_to_be_over_is_removed_at_once(site):
    begins = site.run("run", "--name", "a", "--every", "never", "-d", *count(10_000), by=SLOW)
    assert begins.returncode == 0, begins.stderr.decode()
    stopped = site.run("stop", "a", "--grace", "0")
    assert stopped.returncode == 0, stopped.stderr.decode()
    removed = site.run("rm", "a")
    assert removed.returncode == 0, removed.stderr.decode()


def test_rm_forgets_and_refuses_while_it_runs(site):
    detached(site, *count(10_000))
    wait_for(lambda: begun(site))
    assert site.run("checkpoint", "a").returncode == 0
    assert site.run("rm", "a").returncode == 11
    assert site.run("stop", "a").returncode == 0
    assert site.run("rm", "a").returncode == 0
    assert site.run("ps", "a").returncode == 21
    assert len(site.manifests("a")) == 1
    # The checkpoint stayed: a run of the same name goes on from it.
    detached(site, *count(10_000))
    assert site.ps("a")["epoch"] == 2
    assert site.log("a").startswith(lines(3))
    assert site.run("stop", "a").returncode == 0
    assert site.run("rm", "a", "--checkpoints").returncode == 0
    assert site.manifests("a") == []
    assert list((site.state / "store" / "packs").rglob("*")) == [] or not any(
        path.is_file() for path in (site.state / "store" / "packs").rglob("*")
    )


def test_logs_follow_until_the_end(site):
    detached(site, *count(30))
    followed = site.run("logs", "-f", "a")
    assert (followed.returncode, followed.stdout) == (0, lines(30))
    assert site.run("logs", "a", "--tail", "2").stdout == b"line 28\nline 29\n"
    assert site.run("logs", "a", "--tail", "0").stdout == b""
    assert site.run("logs", "nobody").returncode == 21


def test_logs_follow_through_a_resume_until_the_workload_has_ended(site):
    detached(site, *count(10_000))
    follower = site.start("logs", "-f", "a", bufsize=0)
    assert follower.stdout.readline() == b"line 0\n"
    wait_for(lambda: begun(site, least=10))
    assert site.run("checkpoint", "a").returncode == 0
    saved = len(site.log("a").splitlines())
    # So many that what is read again takes a while to be written: a log that is cut and as long again between two looks looks uncut.
    wait_for(lambda: begun(site, least=saved + 40))
    kill_detached(site, "a")
    assert b"perdure: a was cut off; waiting until it is gone on with" in follower.stderr.readline()
    written = site.log("a")
    # In the background again, and what it writes goes to the follower.
    detached(site, *count(10_000))
    wait_for(lambda: len(site.log("a")) > len(written))
    site.hurry()
    out, err = follower.communicate(timeout=LIMIT_S)
    assert (follower.returncode, err) == (0, b"")
    out = b"line 0\n" + out
    assert out.startswith(written)
    again = out[len(written) :]
    assert lines(10_000).endswith(again)
    assert len(again) > len(lines(10_000)) - len(written), "what was cut off was not read again"
    assert site.ps("a")["state"] == "completed"


def test_following_a_log_is_left_cleanly_and_the_workload_runs_on(site):
    detached(site, *count(10_000))
    follower = site.start("logs", "-f", "a", bufsize=0)
    assert follower.stdout.readline() == b"line 0\n"
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=LIMIT_S)
    assert (follower.returncode, err) == (130, b"perdure: interrupted\n")
    seen = len(site.log("a").splitlines())
    wait_for(lambda: begun(site, least=seen + 3))
    assert site.ps("a")["state"] == "running"
    # One that was lost before anybody followed is not waited for.
    kill_detached(site, "a")
    assert site.run("logs", "-f", "a").stdout == site.log("a")


def kill_detached(site: Site, name: str) -> None:
    """Kill a supervisor in the background with all that is below it, and wait until all are gone."""
    pids = [site.supervisor(name), *descendants(site.supervisor(name))]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        wait_for(lambda pid=pid: not os.path.exists(f"/proc/{pid}") or is_zombie(pid))


def test_a_background_run_that_cannot_start_says_why(site):
    done = site.run("run", "--name", "a", "-d", "--", "no-such-program")
    assert done.returncode == 127
    assert b"no-such-program" in done.stderr
    assert site.run("run", "--name", "a", "--", "no-such-program").returncode == 127


def test_keep_removes_what_is_older(site):
    detached(site, *count(10_000))
    wait_for(lambda: begun(site))
    for _ in range(5):
        assert site.run("checkpoint", "a").returncode == 0
    wait_for(lambda: site.ps("a")["checkpoints"] == 3)
    assert site.manifests("a") == ["00000001.00000003", "00000001.00000004", "00000001.00000005"]


def test_several_askers_get_one_answer_each_and_strangers_to_the_protocol_none(site, monkeypatch):
    detached(site, *count(10_000))
    wait_for(lambda: begun(site))
    askers = [site.start("checkpoint", "a") for _ in range(4)]
    said = [process.communicate(timeout=LIMIT_S)[0] for process in askers]
    assert all(process.returncode == 0 for process in askers)
    assert all(one.startswith(b"a@1.") for one in said)
    assert len(site.manifests("a")) <= 4
    path = site.folder / "run" / "a" / "control.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.chdir(path.parent)
    for junk in (b"hello\n", b"{}\n", b'{"type":"checkpoint","stop":3}\n', b"x" * 200_000, b""):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect("control.sock")
            stranger.settimeout(LIMIT_S)
            try:
                stranger.sendall(junk)
                stranger.shutdown(socket.SHUT_WR)
                answer = stranger.recv(1 << 16)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
            assert not answer or b'"refusal"' in answer
    answer = control.ask(path, messages.Status(), on_event=lambda _event: None, patience_s=LIMIT_S)
    assert (answer.state, answer.epoch, answer.phase) == ("running", 1, None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], b"no command"),
        (["run", "--every", "0.1s", "--", "true"], b"shorter than a second"),
        (["run", "--every", "10", "--", "true"], b"no unit"),
        (["run", "--before-end", "5m", "--", "true"], b"nobody says when"),
        (["run", "--keep", "0", "--", "true"], b"less than 1"),
        (["run", "--name", "a b", "--", "true"], b"cannot be a workload's name"),
        (["run", "--end-time", "soon", "--", "true"], b"cannot read 'soon'"),
        (["restore", "a", "--from", "b@1.1"], b"no checkpoint of a"),
        (["restore", "a", "--from", "b"], b"is not a checkpoint"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(site, arguments, said):
    done = site.run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_before_the_end_of_the_time_it_saves_and_ends_with_75(site):
    end = int(time.time()) + 200
    done = site.run("run", "--name", "a", "--every", "never", "--before-end", "198s", *count(10_000), env={"SLURM_JOB_END_TIME": str(end)})
    assert done.returncode == 75, done.stderr.decode()
    assert site.manifests("a") == ["00000001.00000001"]
    assert time.time() < end, "it was saved when the time was over, and not before"


def test_variables_from_a_file(site):
    (site.work / "env").write_text('# comment\nA=1 = "x"\nHOME\nMISSING\n')
    done = site.run("run", "--name", "a", "--env-file", "env", "--", "sh", "-c", 'echo "$A|$HOME|${MISSING-unset}|$PERDURE_WORKLOAD"')
    assert done.stdout.decode().strip() == f'1 = "x"|{site.folder}|unset|a'


def test_signals_that_a_supervisor_ignores_are_not_ignored_by_its_workload(site):
    done = site.run("run", "--name", "a", "--every", "never", "--", "grep", "SigIgn", "/proc/self/status")
    assert done.returncode == 0, done.stderr.decode()
    ours = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU)
    ignored = int(done.stdout.split()[1], 16)
    assert [number.name for number in ours if ignored >> (number - 1) & 1] == []


def test_events_for_programs(site):
    process = site.start("run", "--name", "a", "--every", "1s", "--json", "--events", "events", *count(10_000))
    wait_for(lambda: (site.work / "events").exists() and b'"committed"' in (site.work / "events").read_bytes())
    assert site.run("stop", "a").returncode == 0
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 75
    phases = [json.loads(line)["phase"] for line in err.splitlines()]
    assert phases[0] == "running"
    assert phases[-1] == "ended"
    assert "committed" in phases
    assert [json.loads(line)["phase"] for line in (site.work / "events").read_bytes().splitlines()] == phases


def test_events_of_a_restore_tell_how_far_it_is(site):
    (site.work / "held.py").write_text("import os, time\nkept = os.urandom(8 << 20)\nprint('up', flush=True)\ntime.sleep(600)\n")
    command = ["--", "python3", "held.py"]
    detached(site, *command)
    wait_for(lambda: b"up" in site.log("a"))
    assert site.run("checkpoint", "a", "--stop").returncode == 0
    again = site.start("restore", "a", "--json", "--events", "events")
    wait_for(lambda: b'"running"' in _peek(again))
    assert site.run("stop", "a").returncode == 0
    again.wait(LIMIT_S)
    told = [json.loads(line) for line in _peek(again).splitlines()]
    phases = [phase for phase, _ in itertools.groupby(one["phase"] for one in told)]
    assert phases == ["fetch", "restore", "verify", "running", "ended"]
    # What lies in a folder is read before, and memory while it is brought back: each says how much there is, and how much of it is done.
    for phase, least in (("fetch", 10_000), ("restore", 8 << 20)):
        amounts = [(one["done_bytes"], one["total_bytes"]) for one in told if one["phase"] == phase]
        assert amounts[0][0] == 0
        assert all(done <= total and total >= least for done, total in amounts)
        assert amounts == sorted(amounts)
    assert [json.loads(line)["phase"] for line in (site.work / "events").read_bytes().splitlines()] == [one["phase"] for one in told]


def test_figures_for_prometheus(site):
    parser = pytest.importorskip("prometheus_client.parser")
    figures = site.work / "a.prom"

    def found() -> dict[str, float]:
        families = parser.text_string_to_metric_families(figures.read_text() if figures.exists() else "")
        return {one.name: one.value for family in families for one in family.samples if one.labels == {"workload": "a"}}

    process = site.start("run", "--name", "a", "--every", "1s", "--metrics", "a.prom", *count(10_000))
    wait_for(lambda: found().get("perdure_checkpoints_total", 0) >= 1)
    assert found()["perdure_workload_running"] == 1
    assert site.run("stop", "a").returncode == 0
    assert process.wait(LIMIT_S) == 75
    last = found()
    assert last["perdure_workload_running"] == 0
    assert last["perdure_checkpoints_total"] >= 1
    assert last["perdure_last_checkpoint_logical_bytes"] > last["perdure_last_checkpoint_new_bytes"] > 0
    assert site.run("run", "--metrics", "a.txt", *count(1)).returncode == 2
    done = site.run("run", "--metrics", "absent/a.prom", *count(1))
    assert (done.returncode, b"there is no folder" in done.stderr) == (2, True)


def test_a_store_that_others_may_look_at_is_warned_about(site):
    place = site.work / "place"
    place.mkdir(mode=0o700)
    run = ["run", "--name", "a", "--every", "never", "--store", place / "store"]
    assert b"may list" not in site.run(*run, *count(1)).stderr
    place.chmod(0o755)
    assert f"everybody may list {place}".encode() in site.run(*run, *count(1)).stderr.replace(b"\n", b" ")
    told = [json.loads(line) for line in site.run(*run, "--json", *count(1)).stderr.splitlines()]
    assert {"store-parent-readable": str(place)}.items() <= {one["code"]: one["about"] for one in told if one["phase"] == "warning"}.items()
    key = site.work / "key"
    key.write_bytes(b"k" * 32)
    key.chmod(0o644)
    done = site.run("run", "--name", "b", "--every", "never", "--store", place / "sealed", "--key-file", key, *count(1))
    assert (done.returncode, b"others may read or change the key file" in done.stderr) == (0, True), done.stderr


def test_the_interval_is_that_of_the_sites_history_for_the_workloads_size(site):
    found = Rates(history="h", end="", classification="strict", gpu=((1.0, 6400.0), (64.0, 100.0)), node=((1.0, 9000.0),))
    path = site.work / "rates.json"
    path.write_bytes(rates.encode_rates(found))
    run = ("run", "--name", "a", "--fresh")
    eight = site.run(*run, "--rates", "rates.json", "--", "true", env={"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"})
    # √(6400 · 100) minutes.
    assert b"at a mean time to failure of 13h20m (the history's, of 8 GPUs)\n" in eight.stderr
    by_setting = site.run(*run, "--", "true", env={"PERDURE_RATES": str(path)})
    assert b"at a mean time to failure of 6d6h (the history's, of one node)\n" in by_setting.stderr
    said = site.run(*run, "--rates", "rates.json", "--mttf", "2h", "--", "true")
    assert b"at a mean time to failure of 2h\n" in said.stderr
    path.write_text("{}")
    wrong = site.run(*run, "--rates", "rates.json", "--", "touch", "begun")
    assert (wrong.returncode, wrong.stderr.count(b"\n")) == (2, 1)
    assert b"rates.json: not a file of rates" in wrong.stderr
    assert not (site.work / "begun").exists()
