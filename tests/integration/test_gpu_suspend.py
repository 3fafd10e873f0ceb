"""`perdure suspend` and `resume` on the stand-in driver, over real workloads whose GPU memory is checked all the time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from standin.world import Fault, Gpu, Standin
from supervised import Site
from supervised import wait_for as wait

from perdure.supervisor import control, messages

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/standin/program.py"
GPU = "GPU-0000000a-1111-2222-3333-444444444444"
OTHER = "GPU-0000000b-1111-2222-3333-444444444444"
MIB = 1 << 20
LIMIT_S = 240.0
"""For what takes a second or two where nothing else runs."""

pytestmark = [pytest.mark.criu, pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the stand-in driver")]


def wait_for(is_true, what: str) -> None:
    wait(is_true, LIMIT_S, what)


@pytest.fixture
def driver(tmp_path: Path, libraries: Path) -> Standin:
    """A driver with one GPU of 8 MiB, that moves GPU memory through the processes' own."""
    (tmp_path / "world").mkdir()
    standin = Standin(tmp_path / "world", libraries)
    standin.driver(version="610.80.02", cuda=13030, features=("checkpoint", "remap"))
    standin.gpus(Gpu(GPU, memory_bytes=8 * MIB))
    return standin


@pytest.fixture
def site(driver: Standin, site: Site) -> Site:
    site.environment |= driver.environment
    return site


def start(site: Site, name: str, *arguments: object) -> subprocess.Popen[bytes]:
    """Start a workload with 5 MiB on the GPU, and wait until it works."""
    command = (sys.executable, PROGRAM, *map(str, arguments or (5 * MIB,)))
    process = site.start("run", "--name", name, "--every", "never", "--", *command)
    wait_for(lambda: re.search(rb"^at \d+\n", site.log(name), re.MULTILINE), what=f"for {name} to begin")
    return process


def ask(site: Site, *arguments: str) -> dict:
    """Run a command that has to go well, and return what it prints as JSON."""
    done = site.run(*arguments, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def refusal(site: Site, *arguments: str) -> tuple[int, dict]:
    """Run a command that is refused, and return its status and error."""
    done = site.run(*arguments, "--json")
    assert done.returncode not in (0, 1), done.stdout.decode() + done.stderr.decode()
    return done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]


def steps(site: Site, name: str) -> int:
    """How far the workload says it is. It ends itself when a step or its memory is wrong."""
    return int(re.findall(rb"^at (\d+)\n", site.log(name), re.MULTILINE)[-1])


def goes_on(site: Site, name: str) -> None:
    """Wait until the workload has done some more steps."""
    before = steps(site, name)
    wait_for(lambda: steps(site, name) > before + 5, what=f"for {name} to go on")


def stands_still(site: Site, name: str) -> int:
    """Wait until a suspended workload says nothing any more, what was under way is written down, and return how far it is."""
    seen = []

    def is_silent() -> bool:
        seen.append(steps(site, name))
        time.sleep(1.0)
        return steps(site, name) == seen[-1]

    wait_for(is_silent, what=f"for {name} to stand still")
    return seen[-1]


def used_bytes(site: Site, driver: Standin) -> int:
    """What living processes have on the GPU, as NVML tells it."""
    asked = [sys.executable, "-m", "perdure.checkpoint.host.gpu_nvml"]
    told = json.loads(subprocess.run(asked, env=site.environment, capture_output=True, check=True).stdout)
    return sum(use["memory_bytes"] for use in told["uses"])


def used_on(site: Site) -> dict[str, int]:
    """The same by GPU."""
    asked = [sys.executable, "-m", "perdure.checkpoint.host.gpu_nvml"]
    told = json.loads(subprocess.run(asked, env=site.environment, capture_output=True, check=True).stdout)
    return {use["uuid"]: use["memory_bytes"] for use in told["uses"]}


def test_gpu_memory_moves_away_and_back_and_the_work_goes_on(site, driver):
    start(site, "a")
    assert used_bytes(site, driver) == 5 * MIB
    moved = ask(site, "suspend", "a")
    assert moved["state"] == "suspended"
    assert moved["gpu_bytes"] == 5 * MIB
    assert used_bytes(site, driver) == 0
    assert site.ps("a")["state"] == "suspended"
    stood = stands_still(site, "a")
    assert ask(site, "suspend", "a")["took_s"] is None, "it was suspended already"
    assert site.run("check", "a").returncode == 0
    assert steps(site, "a") == stood
    assert ask(site, "resume", "a")["state"] == "running"
    assert used_bytes(site, driver) == 5 * MIB
    goes_on(site, "a")
    assert site.ps("a")["state"] == "running"
    assert ask(site, "resume", "a")["took_s"] is None


def test_all_processes_of_a_tree_go_together_or_not_at_all(site, driver):
    driver.gpus(Gpu(GPU, memory_bytes=8 * MIB), Gpu(OTHER, memory_bytes=8 * MIB))
    each = [f"{sys.executable} {PROGRAM} {3 * MIB} {number} &" for number in (0, 1, 1)]
    site.start("run", "--name", "a", "--every", "never", "--", "sh", "-c", " ".join([*each, "wait"]))
    wait_for(lambda: used_bytes(site, driver) == 9 * MIB and b"at " in site.log("a"), what="for three processes to use GPUs")
    driver.faults(Fault("lock", 3, "error", 801))
    status, error = refusal(site, "suspend", "a")
    assert (status, error["code"]) == (20, "gpu")
    assert used_bytes(site, driver) == 9 * MIB
    assert len(driver.calls("unlock")) == 2, "those that were locked run again"
    goes_on(site, "a")
    driver.faults()
    assert ask(site, "suspend", "a")["gpu_bytes"] == 9 * MIB
    assert used_bytes(site, driver) == 0
    ask(site, "resume", "a")
    assert used_bytes(site, driver) == 9 * MIB
    log = len(site.log("a"))
    wait_for(lambda: len(site.log("a")) > log + 300, what="for all to go on")


def test_two_workloads_take_turns_on_one_gpu(site):
    start(site, "a")
    ask(site, "suspend", "a")
    start(site, "b")
    status, error = refusal(site, "resume", "a")
    assert status == 11
    assert error["code"] == "workload-busy"
    assert "has 5 MiB free: the freest has 3" in error["message"]
    assert site.ps("a")["state"] == "suspended"
    goes_on(site, "b")
    ask(site, "suspend", "b")
    ask(site, "resume", "a")
    goes_on(site, "a")
    site.run("stop", "a")
    ask(site, "resume", "b")
    goes_on(site, "b")


def test_one_whose_gpu_is_taken_comes_back_on_another_of_its_kind(site, driver):
    both = (Gpu(GPU, memory_bytes=8 * MIB), Gpu(OTHER, memory_bytes=8 * MIB))
    driver.gpus(*both)
    start(site, "a")
    ask(site, "suspend", "a")
    start(site, "b")
    ask(site, "resume", "a")
    goes_on(site, "a")
    goes_on(site, "b")
    assert used_on(site) == {GPU: 5 * MIB, OTHER: 5 * MIB}
    ask(site, "checkpoint", "a")
    # Every GPU has to be named in the map: without one in the place of the other, the driver refuses, and nothing is lost.
    ask(site, "suspend", "a")
    driver.gpus(both[0])
    status, error = refusal(site, "resume", "a")
    assert status == 11
    assert "too few" in error["message"]
    driver.gpus(*both)
    ask(site, "resume", "a")
    goes_on(site, "a")


def test_one_that_may_not_use_the_other_gpu_stays_suspended(site, driver):
    driver.gpus(Gpu(GPU, memory_bytes=8 * MIB), Gpu(OTHER, memory_bytes=8 * MIB))
    site.environment["CUDA_VISIBLE_DEVICES"] = GPU
    start(site, "a")
    ask(site, "suspend", "a")
    start(site, "b")
    status, error = refusal(site, "resume", "a")
    assert (status, error["code"]) == (11, "workload-busy")
    ask(site, "suspend", "b")
    ask(site, "resume", "a")
    goes_on(site, "a")


@pytest.mark.parametrize(("limit", "said"), [("0s", "above 0"), ("11m", "at most 600s"), ("soon", "soon")])
def test_a_lock_limit_that_cannot_be_one_names_where_it_was_set(site, limit, said):
    site.environment["PERDURE_GPU_LOCK_LIMIT"] = limit
    done = site.run("run", "--name", "a", "--", "true")
    assert done.returncode == 2
    assert "PERDURE_GPU_LOCK_LIMIT" in done.stderr.decode()
    assert said in done.stderr.decode()


def test_the_lock_limit_is_what_was_set(site, driver):
    (site.work / "perdure.toml").write_text('gpu-lock-limit = "1s"\n')
    process = site.start("run", "--name", "a", "--every", "never", "--", sys.executable, str(PROGRAM), str(MIB), "0", "1000", "600000000")
    wait_for(lambda: b"at " in site.log("a"), what="for the program to begin")
    (driver.root / "long").touch()
    wait_for((driver.root / "working").exists, what="for a kernel that takes long")
    status, error = refusal(site, "checkpoint", "a")
    assert (status, error["code"]) == (20, "gpu")
    assert "NOT_READY" in error["message"]
    assert process.poll() is None
    status, _ = refusal(site, "suspend", "a")
    assert status == 20


def test_a_checkpoint_of_a_suspended_workload_comes_back_running(site, driver):
    first = start(site, "a")
    ask(site, "suspend", "a")
    saved = ask(site, "checkpoint", "a")
    assert site.ps("a")["state"] == "suspended"
    assert used_bytes(site, driver) == 0
    shown = json.loads(site.run("store", "show", saved["id"], "--json").stdout)
    assert "5242880" in json.dumps(shown), "the checkpoint does not say how much it needs on the GPU"
    ask(site, "resume", "a")
    goes_on(site, "a")
    ask(site, "suspend", "a")
    ask(site, "checkpoint", "a", "--stop")
    first.wait(LIMIT_S)
    stood = steps(site, "a")
    assert site.ps("a")["state"] == "stopped"
    site.start("run", "--name", "a", "--every", "never", "--", sys.executable, str(PROGRAM), str(5 * MIB))
    wait_for(lambda: steps(site, "a") > stood + 5, what="for the second life")
    assert site.ps("a")["state"] == "running"
    assert used_bytes(site, driver) == 5 * MIB


def test_the_clock_stands_still_meanwhile_and_goes_on_afterwards(site):
    site.start("run", "--name", "a", "--every", "1s", "--", sys.executable, str(PROGRAM), str(5 * MIB))
    wait_for(lambda: site.manifests("a"), what="for the first checkpoint")
    ask(site, "suspend", "a")
    status = control.ask(site.folder / "run/a/control.sock", messages.Status(), on_event=lambda _: None, patience_s=60.0)
    assert (status.state, status.next_s) == ("suspended", None)
    ask(site, "resume", "a")
    last = site.manifests("a")[-1]
    wait_for(lambda: site.manifests("a")[-1] > last, what="for a checkpoint after it was resumed")


def test_a_workload_without_cuda_is_told_so(site):
    site.start("run", "--name", "a", "--every", "never", "--", sys.executable, "count.py", "30000", "0.05")
    wait_for(lambda: site.log("a"), what="for the program to begin")
    for command in ("suspend",):
        status, error = refusal(site, command, "a")
        assert (status, error["code"]) == (22, "unsupported")
        assert "GPU" in error["message"]
    assert ask(site, "resume", "a")["took_s"] is None
    assert site.ps("a")["state"] == "running"


@pytest.mark.parametrize("name", ["nobody", "ended"])
def test_what_does_not_run_cannot_be_suspended(site, name):
    site.run("run", "--name", "ended", "--every", "never", "--", "true")
    status, error = refusal(site, "suspend", name)
    assert (status, error["code"]) == (21, "workload-missing")


def test_work_that_does_not_come_to_rest_just_goes_on(site, driver):
    start(site, "a")
    driver.faults(Fault("lock", 0, "error", 600))
    status, error = refusal(site, "suspend", "a", "--within", "1s")
    assert (status, error["code"]) == (20, "gpu")
    assert "NOT_READY" in error["message"]
    assert site.ps("a")["state"] == "running"
    goes_on(site, "a")
    driver.faults()
    ask(site, "suspend", "a")


def test_a_resume_that_the_driver_refuses_leaves_it_suspended_and_whole(site, driver):
    start(site, "a")
    ask(site, "suspend", "a")
    driver.faults(Fault("restore", 0, "error", 2))
    status, error = refusal(site, "resume", "a")
    assert (status, error["code"]) == (20, "gpu")
    assert "stays suspended" in error["message"]
    assert site.ps("a")["state"] == "suspended"
    driver.faults()
    ask(site, "resume", "a")
    goes_on(site, "a")


def test_one_that_the_driver_has_lost_is_ended_and_said_to_be(site, driver):
    process = start(site, "a")
    ask(site, "suspend", "a")
    driver.faults(Fault("restore", 0, "fail", 999))
    status, error = refusal(site, "resume", "a")
    assert (status, error["code"]) == (20, "workload-lost")
    assert process.wait(LIMIT_S) == 75
    assert site.ps("a")["state"] == "lost"


def test_a_stop_ends_a_suspended_workload(site, driver):
    process = start(site, "a")
    ask(site, "suspend", "a")
    assert site.run("stop", "a").returncode == 0
    process.wait(LIMIT_S)
    assert site.ps("a")["state"] == "stopped"
    assert used_bytes(site, driver) == 0


def test_a_supervisor_killed_meanwhile_leaves_a_workload_that_goes_on_from_its_checkpoint(site):
    process = start(site, "a")
    ask(site, "checkpoint", "a")
    saved_at = steps(site, "a")
    ask(site, "suspend", "a")
    site.kill_all(process)
    assert site.ps("a")["state"] == "lost"
    again = site.start("run", "--name", "a", "--every", "never", "--", sys.executable, str(PROGRAM), str(5 * MIB))
    wait_for(lambda: b"life 2" in again.stderr.readline(), what="for the second life")
    wait_for(lambda: steps(site, "a") > saved_at + 5, what="for the second life to go on")


def test_an_adopted_one_whose_supervisor_is_killed_gets_its_gpu_memory_back(site, driver):
    out = site.work / "out"
    with out.open("wb") as target:
        runner = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(5 * MIB)],
            env=site.environment,
            cwd=site.work,
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=target,
            start_new_session=True,
        )
    try:
        run = ("run", "--name", "a", "--every", "never", "--adopt", str(runner.pid))
        wait_for(lambda: b"at " in out.read_bytes(), what="for the program to begin")
        kept = site.start(*run)
        wait_for((site.folder / "run/a/control.sock").exists, what="for the supervisor")
        ask(site, "suspend", "a")
        assert used_bytes(site, driver) == 0
        helpers = [int(pid) for pid in Path(f"/proc/{kept.pid}/task/{kept.pid}/children").read_text().split()]
        for pid in (kept.pid, *helpers):
            subprocess.run(["kill", "-KILL", str(pid)], check=False)
        kept.wait()
        stood = out.stat().st_size
        site.start(*run)
        wait_for(lambda: out.stat().st_size > stood + 100, what="for the work to go on")
        wait_for(lambda: site.ps("a")["state"] == "running", what="for it to be told running")
        assert runner.poll() is None
        assert used_bytes(site, driver) == 5 * MIB
    finally:
        runner.kill()
        runner.wait()
