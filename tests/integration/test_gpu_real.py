"""On a real NVIDIA GPU, by a real driver: skipped without one; `make test-gpu` makes that a failure."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from supervised import Site, wait_for

from perdure.checkpoint.host import gpu, gpu_canary

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
FORKING = """
import os, time
from perdure.checkpoint.host.gpu_buffers import Buffers
held = Buffers("-", 16 << 20)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""

pytestmark = [pytest.mark.gpu, pytest.mark.criu]


@pytest.fixture
def site(site: Site) -> Site:
    site.environment["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    return site


def test_a_canary_comes_back_on_each_gpu():
    for device in gpu.look().devices:
        outcome = gpu_canary.run(device.uuid)
        assert outcome.failure is None, f"{device.uuid}: {outcome.step}: {outcome.failure}"


def test_doctor_finds_no_problem(perdure):
    done = perdure("doctor", "--gpu", "--json")
    assert done.returncode == 0, done.stdout
    assert "gpu-canary" in {finding["code"] for finding in json.loads(done.stdout)["findings"]}


def test_what_a_gpu_counts_while_it_is_saved_again_and_again_is_right(site):
    """The program ends with 1 when the GPU counted other than it was told to."""
    program = [sys.executable, str(ROOT / "bench/programs/gpu_launch.py"), "120"]
    process = site.start("run", "--name", "a", "--every", "never", "--", *program)
    wait_for((site.folder / "run/a/control.sock").exists, limit_s=120.0)
    for _ in range(5):
        assert site.run("checkpoint", "a", timeout_s=600.0).returncode == 0
        assert site.run("suspend", "a", timeout_s=600.0).returncode == 0
        assert site.run("resume", "a", timeout_s=600.0).returncode == 0
    assert process.wait(600) == 0, process.stderr.read().decode()


def test_a_worker_that_was_forked_after_cuda_began_is_named(site):
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FORKING)],
        env=os.environ | site.environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        worker = int(program.stdout.readline())
        told = json.loads(site.run("check", str(program.pid), "--json").stdout)
        held = [finding for finding in told["findings"] if finding["code"] == "gpu-device-held"]
        assert [finding["pid"] for finding in held] == [worker]
    finally:
        os.killpg(program.pid, 9)
        program.wait()
        program.stdout.close()


@pytest.mark.timeout(7200)
def test_the_whole_proof_has_no_failure(tmp_path):
    """Buffers, turns, another GPU, launches; a training and a server where the Python of this machine has PyTorch."""
    free_bytes = max(device.free_bytes for device in gpu.look().devices)
    sizes = ",".join(f"{size}G" for size in (1, 4) if size * GIB < free_bytes * 0.8)
    python = os.environ.get("GPU_PROOF_PYTHON", "/usr/bin/python3")
    arguments = ["--out", str(tmp_path), "--sizes", sizes, "--pairs", "5", "--seconds", "5", "--python", python]
    done = subprocess.run([ROOT / "scripts/gpu-proof", *arguments], capture_output=True, text=True, timeout=7000)
    told = json.loads((tmp_path / "gpu-proof.json").read_text())
    failed = [f"{case['name']}: {case['why']}" for case in told["cases"] if case["outcome"] == "failed"]
    assert failed == []
    assert done.returncode == 0
    assert re.search(r"^passed +buffers", (tmp_path / "gpu-proof.txt").read_text(), re.MULTILINE)
