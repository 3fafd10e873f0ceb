"""Workloads on a GPU of the stand-in, under the real command line and the real CRIU: saved, ended, brought back, whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from standin.world import Fault, Gpu, Standin
from supervised import Site
from supervised import wait_for as wait

from perdure.supervisor import lock

pytest.importorskip("cuda.bindings", reason="needs the extra gpu")
pytestmark = pytest.mark.criu

A, B, C, D = (f"GPU-{number * 8}-0000-4000-8000-000000000000" for number in "abcd")
PROGRAM = str(Path(__file__).resolve().parent.parent / "standin" / "program.py")
SIZE = 3 << 20
LIMIT_S = 240.0
"""For what takes a second or two where nothing else runs."""


def wait_for(is_true, what: str) -> None:
    wait(is_true, LIMIT_S, what)


@pytest.fixture
def world(tmp_path, libraries):
    world = Standin(tmp_path / "world", libraries)
    world.gpus(Gpu(A), Gpu(B))
    return world


@pytest.fixture
def site(world, site):
    site.environment |= world.environment
    return site


def counted(site: Site, name: str = "a") -> int:
    """How far the program says it is."""
    found = re.findall(rb"at (\d+)", site.log(name))
    return int(found[-1]) if found else -1


def start(site: Site, *options: str, size: int = SIZE, gpu: int = 0, work_us: int = 0) -> None:
    done = site.run(
        "run",
        "-d",
        "--name",
        "a",
        "--every",
        "never",
        *options,
        "--",
        sys.executable,
        "-u",
        PROGRAM,
        str(size),
        str(gpu),
        "1000",
        str(work_us),
    )
    assert done.returncode == 0, done.stderr.decode()
    wait_for(lambda: counted(site) > 5, what="for the program to begin")


def goes_on(site: Site) -> None:
    """The program counts on: it ends as soon as a step is missing or done twice, or its memory changed."""
    before = counted(site)
    assert not re.search(rb"astray|changed|CUDA error", site.log("a")), site.log("a")[-500:]
    wait_for(lambda: counted(site) > before + 20, what=f"for the program to go on, after {site.log('a')[-500:]!r}")


def end(site: Site) -> None:
    """The supervisor and the workload die at once, as on a machine that fails."""
    supervisor = site.supervisor("a")
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{supervisor}").exists(), what="for the supervisor to die")


def await_leave(site: Site) -> None:
    """Who waited for a workload's end is told of it before its supervisor is gone."""
    wait_for(lambda: not lock.is_held(site.state / "workloads" / "a" / "lock"), what="for the supervisor to leave")


def again(site: Site) -> None:
    await_leave(site)
    done = site.run("restore", "-d", "a")
    assert done.returncode == 0, done.stderr.decode()


def checkpoint(site: Site, *options: str) -> dict:
    done = site.run("checkpoint", "a", "--json", *options)
    assert done.returncode == 0, done.stderr.decode()
    if "--stop" in options:
        await_leave(site)
    return json.loads(done.stdout)


def manifest(site: Site, name: str) -> dict:
    done = site.run("store", "show", name, "--json")
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


HOST = ("checkpoint", "remap")
DIRECT = (*HOST, "custom-storage")


@pytest.mark.parametrize("features", [HOST, DIRECT], ids=["host", "direct"])
def test_a_workload_is_saved_and_goes_on_on_another_gpu(site, world, features):
    world.driver(features=features)
    start(site)
    made = checkpoint(site)
    goes_on(site)
    shown = manifest(site, made["id"])
    assert [(gpu["uuid"], gpu["model"], gpu["used_bytes"]) for gpu in shown["gpus"]] == [
        (A, "Stand-in H100", SIZE),
        (B, "Stand-in H100", 0),
    ]
    # Of the one that it used, the time is told; nothing was moved off the other.
    assert ["moved_s" in gpu for gpu in shown["gpus"]] == [True, False]
    assert 0 < shown["gpus"][0]["moved_s"] <= shown["durations_s"]["gpu-checkpoint"]
    assert shown["gpu_driver"] == "580.65.06"
    (process,) = shown["cuda_processes"]
    assert (process["gpus"], process["memory_bytes"]) == ([A], SIZE)
    assert [region["size_bytes"] for region in process["regions"]] == ([SIZE] if features is DIRECT else [])
    gpu_bytes = [size["logical_bytes"] for size in shown["sizes"] if size["part"] == "gpu"]
    assert gpu_bytes == ([SIZE] if features is DIRECT else [])
    durations = shown["durations_s"]
    assert durations["stopped"] >= durations["gpu-lock"] + durations["gpu-checkpoint"] + durations["gpu-restore"] > 0
    end(site)
    world.gpus(Gpu(C), Gpu(D))
    again(site)
    goes_on(site)
    assert site.ps("a")["epoch"] == 2


def test_in_a_job_with_one_gpu_of_the_machine_it_comes_back_on_that(site, world):
    unrestricted = dict(site.environment)
    site.environment |= world.restricted(B)
    start(site)
    checkpoint(site, "--stop")
    again(site)
    goes_on(site)
    checkpoint(site, "--stop")
    assert world.calls("restore"), "the driver was asked to bring it back"
    site.environment.clear()
    site.environment.update(unrestricted | world.restricted(A) | {"CUDA_VISIBLE_DEVICES": "0"})
    again(site)
    goes_on(site)
    assert [(gpu["uuid"], gpu["used_bytes"]) for gpu in manifest(site, checkpoint(site)["id"])["gpus"]] == [(A, 0), (B, SIZE)]


def test_where_nvml_tells_of_no_process_only_the_gpus_that_are_open_are_asked_back(site, world):
    world.driver(features=(*HOST, "no-pids"))
    site.environment |= world.restricted(B)
    start(site)
    shown = manifest(site, checkpoint(site, "--stop")["id"])
    assert [(gpu["uuid"], gpu["used_bytes"]) for gpu in shown["gpus"]] == [(A, None), (B, 0)]
    assert [process["gpus"] for process in shown["cuda_processes"]] == [[A]]
    again(site)
    goes_on(site)


def test_gpu_memory_that_is_damaged_in_the_store_leads_to_the_checkpoint_before(site, world):
    start(site)
    checkpoint(site)
    goes_on(site)
    packs = site.state / "store" / "packs"
    before = {path for path in packs.rglob("*") if path.is_file()}
    made = checkpoint(site)
    new = sorted({path for path in packs.rglob("*") if path.is_file()} - before, key=lambda path: path.stat().st_mtime_ns)
    assert len(new) >= 2, "what was on the GPU has packs of its own, since it was stored before the rest"
    new[0].chmod(0o600)
    with new[0].open("r+b") as pack:
        pack.write(b"damaged!")
    end(site)
    done = site.run("restore", "-d", "a")
    assert done.returncode == 0, done.stderr.decode()
    assert b"from a@1.1" in done.stderr
    told = (site.state / "workloads" / "a" / "supervisor.log").read_text()
    assert f"{made['id']} is damaged: packs/" in told
    goes_on(site)


def test_what_a_checkpoint_before_needed_alone_is_pruned_and_collected(site, world):
    start(site, "--keep", "1", size=1 << 20)
    for _ in range(3):
        checkpoint(site)
        goes_on(site)
        assert len(site.manifests("a")) == 1
    assert not list((site.state / "store" / "locks").iterdir()), "nobody holds the store after a checkpoint"


def test_life_after_life_straight_into_the_store_with_memory_that_mostly_stays_the_same(site, world):
    start(site, size=16 << 20)
    for life in (1, 2):
        checkpoint(site)
        again_made = checkpoint(site)
        (gpu,) = (size for size in manifest(site, again_made["id"])["sizes"] if size["part"] == "gpu")
        assert gpu["logical_bytes"] == 16 << 20
        assert gpu["new_bytes"] < 1 << 20, "what did not change is stored once"
        goes_on(site)
        end(site)
        again(site)
        goes_on(site)
        assert site.ps("a")["epoch"] == life + 1


def test_two_processes_of_one_job_are_saved_at_one_instant(site, world):
    both = f"{sys.executable} -u {PROGRAM} 200000 0 & {sys.executable} -u {PROGRAM} 200000 1; wait"
    done = site.run("run", "-d", "--name", "a", "--every", "never", "--", "sh", "-c", both)
    assert done.returncode == 0, done.stderr.decode()
    # What both write is one log: that each has begun, its GPU shows.
    memory = [world.root / "memory" / uuid for uuid in (A, B)]
    wait_for(lambda: all(any(gpu.iterdir()) for gpu in memory) and counted(site) > 20, what="for both programs to begin")
    made = checkpoint(site, "--stop")
    assert len(manifest(site, made["id"])["cuda_processes"]) == 2
    again(site)
    goes_on(site)


def test_a_workload_that_was_stopped_with_its_checkpoint_goes_on_from_it(site, world):
    start(site)
    checkpoint(site, "--stop")
    assert site.ps("a")["state"] == "stopped"
    assert list((world.root / "memory" / A).iterdir()) == [], "a given-up workload left memory on the GPU"
    again(site)
    goes_on(site)


def test_work_that_does_not_come_to_rest_costs_a_checkpoint_and_nothing_else(site, world):
    start(site)
    world.faults(Fault("lock", 0, "error", 600))
    done = site.run("checkpoint", "a")
    assert done.returncode == 20
    assert b"CUDA_ERROR_NOT_READY" in done.stderr
    assert b"runs on" in done.stderr
    goes_on(site)
    world.faults()
    checkpoint(site)
    goes_on(site)


def test_what_cannot_be_brought_back_after_the_dump_is_stored_and_given_up(site, world):
    start(site)
    world.faults(Fault("restore", 0, "error", 2))
    done = site.run("checkpoint", "a")
    assert done.returncode == 0, done.stderr.decode()
    wait_for(lambda: site.ps("a")["state"] == "stopped", what="for the workload to be given up")
    assert len(site.manifests("a")) == 1
    world.faults()
    again(site)
    goes_on(site)


def test_a_process_that_dies_in_the_drivers_hands_is_lost_and_goes_on_from_its_checkpoint(site, world):
    start(site)
    checkpoint(site)
    world.faults(Fault("checkpoint", 1, "die"))
    done = site.run("checkpoint", "a")
    assert done.returncode == 20
    wait_for(lambda: site.ps("a")["state"] == "lost", what="for the workload to be told lost")
    world.faults()
    again(site)
    goes_on(site)


def test_a_restore_that_the_driver_refuses_leaves_the_checkpoint_as_it_is(site, world):
    start(site)
    checkpoint(site, "--stop")
    world.faults(Fault("restore", 0, "error", 304))
    done = site.run("restore", "-d", "a")
    assert done.returncode == 20
    assert b"CUDA_ERROR_OPERATING_SYSTEM" in done.stderr
    assert site.ps("a")["pid"] is None
    world.faults()
    again(site)
    goes_on(site)


@pytest.mark.parametrize(
    "gpus",
    [[Gpu(C, model="Stand-in A100", capability="8.0"), Gpu(D)], [Gpu(C, memory_bytes=1 << 20), Gpu(D, memory_bytes=1 << 20)], [Gpu(C)]],
    ids=["another kind", "too small", "too few"],
)
def test_a_machine_that_lacks_what_it_takes_is_refused_before_anything_is_done(site, world, gpus):
    start(site)
    checkpoint(site, "--stop")
    world.gpus(*gpus)
    world.faults()
    done = site.run("restore", "-d", "a")
    assert done.returncode == 22, done.stderr.decode()
    assert world.calls("restore") == []
    world.gpus(Gpu(A), Gpu(B))
    again(site)
    goes_on(site)


FORKING = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
if os.fork() == 0:
    time.sleep(3600)
while True:
    print("at", int(time.monotonic() * 100), flush=True)
    time.sleep(0.02)
"""


def test_a_worker_that_was_forked_with_the_devices_open_is_named(site, world):
    (site.work / "forking.py").write_text(FORKING)
    done = site.run("run", "-d", "--name", "a", "--every", "never", "--", sys.executable, "-u", "forking.py")
    assert done.returncode == 0, done.stderr.decode()
    wait_for(lambda: counted(site) > 5, what="for the program to begin")
    done = site.run("checkpoint", "a")
    assert done.returncode in (20, 22)
    assert b"/dev/nvidia" in done.stderr
    goes_on(site)


def test_a_dump_that_is_given_up_leaves_the_gpu_at_work(site, world):
    """A ledger's transaction stands against every one of five dumps, each with all its GPU memory moved away and back."""
    (site.work / "ledger.db").write_bytes(b"SQLite format 3\0".ljust(68, b"\0") + b"perf".ljust(100, b"\0"))
    program = f"exec 3<>ledger.db; exec {sys.executable} -u {PROGRAM} {SIZE} 0"
    done = site.run("run", "-d", "--name", "a", "--every", "never", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr.decode()
    wait_for(lambda: counted(site) > 5, what="for the program to begin")
    world.faults()
    done = site.run("checkpoint", "a")
    assert done.returncode == 75, done.stderr.decode()
    assert len(world.calls("complete")) == 10, "each dump takes all away and brings it back, by files"
    goes_on(site)


def test_the_only_copy_is_stored_again_when_the_store_was_away(site, world):
    start(site)
    checkpoint(site)
    world.faults(Fault("restore", 0, "error", 2))
    config, away = site.state / "store" / "perdure.json", site.state / "away"
    config.rename(away)  # without it there is no store
    making = site.start("checkpoint", "a")
    messages = site.state / "workloads" / "a" / "supervisor.log"
    wait_for(lambda: b"it is the only copy" in messages.read_bytes(), what="for the first try to fail")
    away.rename(config)
    assert making.wait(LIMIT_S) == 0
    wait_for(lambda: site.ps("a")["state"] == "stopped", what="for the workload to be given up")
    world.faults()
    again(site)
    goes_on(site)


def test_gpus_are_told_to_people_and_to_monitoring(site, world):
    start(site, "--metrics", site.work / "metrics.prom")
    checkpoint(site)
    last = site.ps("a")["last_checkpoint"]
    assert last["gpu_bytes"] == SIZE
    (gpu,) = last["gpus"]
    assert (gpu["uuid"], gpu["model"], gpu["used_bytes"]) == (A, "Stand-in H100", SIZE)
    assert gpu["moved_s"] > 0
    assert "on GPUs" in site.run("ps").stdout.decode()
    figures = (site.work / "metrics.prom").read_text()
    assert f'perdure_last_checkpoint_gpu_bytes{{workload="a"}} {SIZE}' in figures
    for phase in ("lock", "checkpoint", "restore"):
        assert f"\nperdure_last_checkpoint_gpu_{phase}_seconds" in figures
    labels = f'{{workload="a",gpu="{A}"}}'
    assert f"\nperdure_last_checkpoint_gpu_used_bytes{labels} {SIZE}\n" in figures
    assert f"\nperdure_last_checkpoint_gpu_moved_seconds{labels} {gpu['moved_s']:.15g}\n" in figures
    assert B not in figures
    shown = site.run("store", "show", "a").stdout.decode()
    assert "moved in" in shown
    assert "580.65.06" in shown
    assert "gpu-checkpoint" in shown
    assert A in shown
    assert "Stand-in H100" in shown
