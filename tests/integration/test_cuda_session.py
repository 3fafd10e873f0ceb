"""CUDA processes suspended and resumed through the real helper and the real bindings, on the stand-in driver. No CRIU."""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from standin.world import Fault, Gpu, Standin

from perdure import errors
from perdure.checkpoint import tree
from perdure.checkpoint.cuda import processes
from perdure.checkpoint.cuda.contract import HELD, Kept, Operation, Request, State, Store, Trouble
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.cuda.session import Limits, Session
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import CheckpointId
from perdure.supervisor import place
from perdure.supervisor.gpus import Gpus

pytest.importorskip("cuda.bindings", reason="needs the extra gpu")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-bbbbbbbb-0000-4000-8000-000000000002"
PROGRAM = str(Path(__file__).resolve().parent.parent / "standin" / "program.py")
LIMITS = Limits(lock_s=20.0, answer_s=60.0)
MOVE_S = 6.5
WAIT_S = 180.0


class Hasty(Limits, frozen=True, kw_only=True):
    """Moving memory may take `MOVE_S`; everything else as long as it takes on a busy machine."""

    @property
    def move_s(self) -> float:
        return MOVE_S


@pytest.fixture
def world(tmp_path, libraries, monkeypatch):
    world = Standin(tmp_path / "world", libraries)
    world.gpus(Gpu(A), Gpu(B))
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    return world


@pytest.fixture
def helper(world):
    with Helper() as started:
        yield started


class Program:
    """One of the tests' programs, which ends with an error as soon as its GPU memory is not what it should be."""

    def __init__(self, gpu: int = 0, size: int = 1 << 20, work_us: int = 0) -> None:
        command = [sys.executable, "-u", PROGRAM, str(size), str(gpu), "1000", str(work_us)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.said = b""
        self.at = -1
        self.goes_on()

    @property
    def pid(self) -> int:
        return self.process.pid

    def goes_on(self, steps: int = 3) -> None:
        """Wait until it has come `steps` further than when this was called."""
        self.take(0.0)
        wanted, end_s = max(self.at, 0) + steps, time.monotonic() + WAIT_S
        while self.at < wanted:
            assert self.process.poll() is None, self.process.stderr.read().decode()
            assert time.monotonic() < end_s, f"it stands still at {self.at}"
            self.take(0.2)

    def take(self, limit_s: float) -> None:
        while select.select([self.process.stdout], [], [], limit_s)[0]:
            content = os.read(self.process.stdout.fileno(), 1 << 16)
            if not content:
                return
            self.said = (self.said + content)[-1000:]
            found = re.findall(rb"at (\d+)\n", self.said)
            self.at = int(found[-1]) if found else self.at
            limit_s = 0.0

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def programs(world):
    started: list[Program] = []

    def start(*arguments, **options) -> Program:
        started.append(Program(*arguments, **options))
        return started[-1]

    yield start
    for program in started:
        program.end()


def session(helper: Helper, *programs: Program, limits: Limits = LIMITS, folder: Path | None = None, store: Store | None = None) -> Session:
    found = processes.find([program.pid for program in programs])
    assert len(found) == len(programs)
    return Session(helper, found, limits, folder=folder, store=store)


@pytest.fixture
def store(tmp_path):
    """A store in a folder of its own."""
    where = place.Place(url=str(tmp_path / "store"), key_file=None, cache=str(tmp_path / "cache"), threads=2)
    with place.opened(where, create=True):
        pass
    return Store(url=where.url, key_file=None, cache=where.cache, threads=2, checkpoint=CheckpointId("a", 1, 1))


def packs(store: Store) -> list[Path]:
    return [path for path in (Path(store.url) / "packs").rglob("*") if path.is_file()]


def wait_until(is_true) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def states(helper: Helper, *programs: Program) -> list[State | None]:
    found = processes.find([program.pid for program in programs])
    requests = tuple(Request(number=0, operation=Operation.STATE, pid=one.pid, start_ticks=one.start_ticks) for one in found)
    return [answer.state for answer in helper.ask(requests, WAIT_S)]


@pytest.fixture
def gpus(world):
    made = Gpus()
    yield made
    made.helper.close()


def test_what_nvml_does_not_tell_of_a_tree_is_at_most_what_is_in_use_on_its_gpus(world, programs, gpus, monkeypatch):
    programs(1, size=4 << 20)  # somebody else's, on another GPU
    monkeypatch.setenv("NVIDIA_STANDIN_HIDDEN", world.restricted(B)["NVIDIA_STANDIN_HIDDEN"])
    program = programs(0, size=3 << 20)
    root = Tree(program.pid, tree.start_ticks_of(program.pid))
    assert (gpus.look(root), gpus.is_told) == (3 << 20, True)
    world.driver(features=("checkpoint", "remap", "no-pids"))
    assert (gpus.look(root), gpus.is_told) == (3 << 20, False)
    assert gpus.set_aside(root, lock_s=20.0)
    facts = gpus.describe()
    assert [(gpu.uuid, gpu.used_bytes) for gpu in facts.gpus] == [(A, None), (B, 0)], "the other GPU is not asked back"
    assert (facts.cuda_processes[0].gpus, facts.cuda_processes[0].memory_bytes) == ((A,), None)
    assert gpus.look(root) == 3 << 20, "what was moved away is as much as before"
    gpus.resume_left(root, gpus.plan_back({}))
    program.goes_on()


@pytest.fixture
def small(tmp_path):
    """A folder of a file system that holds a mebibyte."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("is_told", [True, False])
def test_memory_that_files_have_no_room_for_is_not_handed_out(helper, world, programs, small, is_told):
    world.driver(features=("checkpoint", "remap", "custom-storage", *(() if is_told else ("no-pids",))))
    program = programs(0, size=3 << 20)
    held = session(helper, program, folder=small)
    held.suspend(lambda: [program.pid])
    assert held.regions == {}, "the way through host memory is left"
    held.resume()
    program.goes_on()


@pytest.mark.parametrize("way", ["host", "files", "store"])
def test_gpus_are_freed_and_taken_up_again_crosswise(helper, world, programs, tmp_path, store, way):
    first, second = programs(0), programs(1)
    folder = tmp_path / "gpu"
    folder.mkdir()
    held = session(helper, first, second, folder=folder if way != "host" else None, store=store if way == "store" else None)
    pids = [first.pid, second.pid]
    held.suspend(lambda: pids)
    assert states(helper, first, second) == [State.CHECKPOINTED] * 2
    facts = helper.facts()
    assert facts.uses == ()
    assert [device.free_bytes for device in facts.devices] == [1 << 30] * 2
    assert processes.held(pids) == ()
    stored = {region.uuid: region.size_bytes for regions in held.regions.values() for region in regions}
    assert stored == ({A: 1 << 20, B: 1 << 20} if way != "host" else {})
    kept = {region.kept for regions in held.regions.values() for region in regions}
    assert kept == {"host": set(), "files": {Kept.FILE}, "store": {Kept.PLACED}}[way]
    assert all(region.elapsed_s > 0 for regions in held.regions.values() for region in regions)
    assert held.moved_s.keys() == {first.pid, second.pid}
    written = sum(path.stat().st_size for path in folder.iterdir())
    assert (written < 1 << 16) is (way != "files"), "GPU memory goes into files on that way only"
    assert bool(packs(store)) is (way == "store")
    held.resume(((A, B), (B, A)))
    uses = {use.pid: use.uuid for use in helper.facts().uses}
    assert uses == {first.pid: B, second.pid: A}
    first.goes_on()
    second.goes_on()
    assert set(held.durations_s) == {"gpu-lock", "gpu-checkpoint", "gpu-restore"}


def test_identical_memory_of_two_devices_is_stored_once(helper, world, programs, tmp_path, store):
    first, second = programs(0, 4 << 20), programs(1, 4 << 20)
    held = session(helper, first, second, folder=tmp_path, store=store)
    held.suspend()
    assert sum(path.stat().st_size for path in packs(store)) < 1 << 20, "a pattern of 64 KiB, in twice 4 MiB"
    held.resume()
    first.goes_on()
    second.goes_on()


@pytest.mark.parametrize("can_lock", [True, False], ids=["locked", "refused"])
def test_buffers_are_page_locked_where_that_is_allowed_and_few(helper, world, programs, tmp_path, store, can_lock):
    world.driver(features=("checkpoint", "remap", "custom-storage", *(["page-locking"] if can_lock else [])))
    size_bytes = 100 << 20
    program = programs(0, size_bytes)
    world.faults()
    held = session(helper, program, folder=tmp_path, store=store)
    held.suspend()
    held.resume()
    program.goes_on()
    assert {call.result for call in world.calls("pin")} == {0 if can_lock else 2}
    at_once = most = 0
    for call in world.calls():
        if call.operation == "pin" and not call.result:
            at_once += call.pid << 10  # the stand-in says here how many KiB
        elif call.operation == "unpin":
            at_once -= 16 << 20
        most = max(most, at_once)
    assert at_once == 0, "what was locked is given back"
    assert most == (48 << 20 if can_lock else 0)


def test_a_store_that_fails_in_the_middle_is_replaced_by_files(helper, world, programs, tmp_path, store):
    program = programs(0, 24 << 20)
    world.faults(Fault("copy", 2, "error", 999))
    folder = tmp_path / "gpu"
    folder.mkdir()
    held = session(helper, program, folder=folder, store=store)
    held.suspend()
    assert [region.kept for regions in held.regions.values() for region in regions] == [Kept.FILE]
    held.resume()
    program.goes_on()
    assert not (folder / HELD).exists(), "a store that failed is let go"


@pytest.mark.parametrize("way", ["files", "store"])
def test_one_that_copies_slowly_is_not_taken_for_one_that_hangs(helper, world, programs, tmp_path, store, way):
    """Its time would be over after `MOVE_S`, and the five copies take longer each way."""
    program = programs(0, 80 << 20)
    each_ms = 1500
    assert 5 * each_ms > MOVE_S * 1000
    world.faults(Fault("copy", 0, "slow", each_ms))
    limits = Hasty(lock_s=20.0, answer_s=60.0)
    held = session(helper, program, limits=limits, folder=tmp_path, store=store if way == "store" else None)
    held.suspend()
    assert {region.kept for regions in held.regions.values() for region in regions} == {Kept.PLACED if way == "store" else Kept.FILE}
    held.resume()
    program.goes_on()
    assert len(world.calls("copy")) == 10


def test_a_store_that_cannot_be_opened_costs_no_more_than_files(helper, world, programs, tmp_path, store):
    program = programs()
    (Path(store.url) / "perdure.json").unlink()
    held = session(helper, program, folder=tmp_path, store=store)
    held.suspend()
    assert [region.kept for regions in held.regions.values() for region in regions] == [Kept.FILE]
    held.resume()
    program.goes_on()


def test_the_store_is_held_until_what_was_left_for_the_checkpoint_is_taken(helper, world, programs, tmp_path, store):
    program = programs()
    folder = tmp_path / "gpu"
    folder.mkdir()
    held = session(helper, program, folder=folder, store=store)
    held.suspend()
    held.resume()
    assert list((Path(store.url) / "locks").iterdir())
    for record in folder.glob("*.placed"):
        record.unlink()
    wait_until(lambda: not (folder / HELD).exists())
    assert not list((Path(store.url) / "locks").iterdir())


def test_packs_that_vanish_before_they_are_needed_are_a_loss_and_named(helper, world, programs, tmp_path, store):
    program = programs()
    held = session(helper, program, folder=tmp_path, store=store)
    held.suspend()
    for pack in packs(store):
        pack.unlink()
    with pytest.raises(errors.WorkloadLost):
        held.resume()
    assert held.damage is not None
    assert held.damage.object_key.startswith("packs/")


def test_a_helper_tells_driver_and_devices(helper, world):
    world.driver(version="570.10", cuda=12080, features=("checkpoint",))
    facts = helper.facts()
    assert (facts.driver.version, facts.driver.cuda) == ("570.10", "12.8")
    assert (facts.driver.has_checkpoint, facts.driver.has_remap, facts.driver.has_custom_storage) == (True, False, False)
    assert [(device.uuid, device.memory_bytes, device.capability) for device in facts.devices] == [(A, 1 << 30, "9.0"), (B, 1 << 30, "9.0")]


def test_what_hides_gpus_from_the_workload_does_not_hide_them_from_the_helper(world, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "none")
    with Helper() as helper:
        helper.facts()
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        (child,) = (pid for pid in children if b"perdure.checkpoint.cuda.driver" in Path(f"/proc/{pid}/cmdline").read_bytes())
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
    assert not [one for one in variables if b"VISIBLE_DEVICES" in one]
    assert b"CUDA_DEVICE_ORDER=PCI_BUS_ID" in variables


def test_without_a_driver_there_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with Helper() as helper, pytest.raises(errors.GpuUnavailable, match="no CUDA driver") as raised:
        helper.facts()
    assert "doctor --gpu" in raised.value.hint


def test_a_driver_that_finds_no_gpu_is_unavailable(world, helper):
    world.gpus()
    with pytest.raises(errors.GpuUnavailable, match="CUDA_ERROR_NO_DEVICE"):
        helper.facts()


def test_a_driver_too_old_is_told_and_nothing_happens_to_the_process(world, helper, programs):
    world.driver(version="535.1", cuda=12020, features=())
    program = programs()
    with pytest.raises(errors.GpuFailed, match="it runs on"):
        session(helper, program).suspend()
    program.goes_on()


def test_work_that_does_not_end_in_time_is_left_running(world, helper, programs):
    first, second = programs(0), programs(1, work_us=600_000_000)
    (world.root / "long").touch()
    end_s = time.monotonic() + WAIT_S
    while not (world.root / "working").exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)
    with pytest.raises(errors.GpuFailed, match=rf"process {second.pid} .*CUDA_ERROR_NOT_READY"):
        session(helper, first, second, limits=Limits(lock_s=2.0, answer_s=60.0)).suspend()
    assert states(helper, first, second) == [State.RUNNING] * 2
    assert len([call for call in world.calls("lock") if call.pid == second.pid]) == 3
    first.goes_on()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("lock", 2, "error", 304), None),
        (Fault("lock", 1, "late", 600), None),
        (Fault("checkpoint", 2, "error", 2), None),
        (Fault("checkpoint", 1, "late", 999), None),
        (Fault("checkpoint", 0, "error", 2), "CUDA_ERROR_OUT_OF_MEMORY"),
        (Fault("checkpoint", 0, "error", 801), "CUDA_ERROR_NOT_SUPPORTED"),
        (Fault("lock", 0, "error", 401), "CUDA_ERROR_ILLEGAL_STATE"),
    ],
)
def test_what_passes_is_tried_again_and_what_does_not_leaves_all_running(world, helper, programs, fault, said):
    first, second = programs(0), programs(1)
    world.faults(fault)
    held = session(helper, first, second)
    if said is None:
        held.suspend()
        assert states(helper, first, second) == [State.CHECKPOINTED] * 2
        held.resume()
    else:
        with pytest.raises(errors.GpuFailed, match=said):
            held.suspend()
    assert states(helper, first, second) == [State.RUNNING] * 2
    first.goes_on()
    second.goes_on()


@pytest.mark.parametrize("fault", [Fault("restore", 1, "error", 2), Fault("unlock", 1, "error", 304), Fault("restore", 1, "late", 999)])
def test_a_driver_that_stumbles_on_the_way_back_is_asked_again(world, helper, programs, fault):
    program = programs()
    world.faults(fault)
    held = session(helper, program)
    held.suspend()
    held.resume()
    assert states(helper, program) == [State.RUNNING]
    program.goes_on()


def test_a_helper_that_hangs_is_replaced_and_the_work_goes_on(world, helper, programs):
    program = programs()
    world.faults(Fault("unlock", 1, "hang"))
    held = session(helper, program, limits=Limits(lock_s=20.0, answer_s=5.0))
    held.suspend()
    held.resume()
    program.goes_on()
    results = [call.result for call in world.calls("unlock")]
    assert (results[0], results[-1]) == (-1, 0)


@pytest.mark.parametrize("fault", [Fault("lock", 1, "die"), Fault("checkpoint", 1, "die"), Fault("checkpoint", 1, "fail", 999)])
def test_a_process_that_does_not_survive_the_driver_is_a_loss(world, helper, programs, fault):
    program = programs()
    world.faults(fault)
    with pytest.raises(errors.WorkloadLost, match=f"process {program.pid}"):
        session(helper, program).suspend()


def test_too_little_memory_on_the_way_back_is_a_loss_with_its_reason(world, helper, programs):
    program = programs(0, 8 << 20)
    held = session(helper, program)
    held.suspend()
    world.gpus(Gpu(A, memory_bytes=1 << 20), Gpu(B))
    with pytest.raises(errors.WorkloadLost, match="CUDA_ERROR_OUT_OF_MEMORY"):
        held.resume()
    assert states(helper, program) == [State.CHECKPOINTED]


def test_a_map_that_lacks_a_gpu_is_refused_by_the_driver(world, helper, programs):
    program = programs()
    held = session(helper, program)
    held.suspend()
    with pytest.raises(errors.WorkloadLost, match="CUDA_ERROR_INVALID_VALUE"):
        held.resume(((A, B),))


def test_a_device_that_somebody_else_holds_is_named_and_all_run_again(world, helper, programs):
    program = programs()
    with open(world.root / "dev" / "nvidia-uvm", "rb"):
        with pytest.raises(errors.GpuFailed, match=rf"nvidia-uvm by process {os.getpid()}"):
            session(helper, program).suspend(lambda: [program.pid, os.getpid()])
        assert states(helper, program) == [State.RUNNING]
        program.goes_on()


def test_custom_storage_that_fails_is_replaced_by_the_way_through_host_memory(world, helper, programs, tmp_path):
    program = programs()
    world.faults(Fault("checkpoint", 1, "error", 801))
    held = session(helper, program, folder=tmp_path / "gpu")
    (tmp_path / "gpu").mkdir()
    held.suspend()
    assert held.regions == {}
    assert list((tmp_path / "gpu").iterdir()) == []
    held.resume()
    program.goes_on()


@pytest.mark.parametrize("way", ["files", "store"])
@pytest.mark.parametrize("fault", [Fault("complete", 1, "error", 999), Fault("complete", 1, "late", 999), Fault("state", 3, "error", 999)])
def test_memory_that_was_handed_out_is_found_again_whatever_the_driver_says(world, helper, programs, tmp_path, store, fault, way):
    program = programs()
    folder = tmp_path / "gpu"
    folder.mkdir()
    world.faults(fault)
    held = session(helper, program, folder=folder, store=store if way == "store" else None)
    held.suspend()
    held.resume()
    program.goes_on()


@pytest.fixture
def impatient_helper(world):
    """One that is killed soon after it fell silent: the double hangs where it can no longer say that it is at work."""
    with Helper(silent_s=5.0) as started:
        yield started


@pytest.mark.parametrize("way", ["files", "store"])
def test_a_helper_that_is_killed_after_it_wrote_everything_costs_nothing(world, impatient_helper, programs, tmp_path, store, way):
    program = programs()
    folder = tmp_path / "gpu"
    folder.mkdir()
    world.faults(Fault("state", 3, "hang"))
    held = session(
        impatient_helper, program, limits=Limits(lock_s=20.0, answer_s=4.0), folder=folder, store=store if way == "store" else None
    )
    held.suspend()
    held.resume()
    program.goes_on()
    assert len(world.calls("complete")) >= 2


def test_a_process_that_was_killed_is_none_to_be_asked_about_from_then_on(world, programs):
    """It takes the kernel a while to end it, and the driver would say that it runs."""
    for _ in range(10):
        program = programs()
        (found,) = processes.find([program.pid])
        assert processes.is_same(found.pid, found.start_ticks)
        program.process.kill()
        assert not processes.is_same(found.pid, found.start_ticks)


def test_a_helper_that_is_ended_does_nothing_any_more(world, helper, programs, monkeypatch):
    """It brings back what is suspended when whoever asked it is gone: not when that one only takes another helper."""
    program = programs()
    held = session(helper, program)
    held.suspend()
    connection = helper._connection
    slow = SimpleNamespace(close=lambda: (connection.close(), time.sleep(1.0)))
    monkeypatch.setattr(helper, "_connection", slow)
    helper.close()
    assert world.calls("restore") == []
    assert states(helper, program) == [State.CHECKPOINTED]
    held.resume()
    program.goes_on()


def test_who_has_no_cuda_or_is_another_process_by_now_is_never_given_to_the_driver(world, helper, programs):
    program = programs()
    (found,) = processes.find([program.pid, os.getpid()])
    recycled = Request(number=0, operation=Operation.LOCK, pid=found.pid, start_ticks=found.start_ticks + 1, time_limit_ms=100)
    thread = next(int(name) for name in os.listdir(f"/proc/{found.pid}/task") if int(name) != found.pid)
    of_a_thread = Request(number=0, operation=Operation.LOCK, pid=thread, start_ticks=found.start_ticks, time_limit_ms=100)
    without = Request(number=0, operation=Operation.LOCK, pid=os.getpid(), start_ticks=1, time_limit_ms=100)
    world.faults()
    answers = helper.ask((recycled, of_a_thread, without), WAIT_S)
    assert [answer.problem.trouble for answer in answers] == [Trouble.GONE] * 3
    assert world.calls() == []
    assert not processes.find([thread])


FORKING = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
if cuda.cuInit(0) == 0 and os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(3600)
time.sleep(3600)
"""


def test_a_forked_worker_is_not_asked_about_either(world, helper):
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE) as parent:
        try:
            child = int(parent.stdout.readline())
            found = processes.find([parent.pid, child])
            assert [one.pid for one in found] == [parent.pid, child]
            world.faults()
            held = Session(helper, found, LIMITS)
            held.suspend()
            assert [one.pid for one in held.processes] == [parent.pid]
            assert {call.pid for call in world.calls()} == {parent.pid}
            assert {one.pid for one in processes.held([parent.pid, child])} == {child}
            held.resume()
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


@pytest.mark.parametrize("way", ["host", "store"])
def test_a_helper_whose_parent_dies_lets_run_what_it_had_suspended(world, programs, tmp_path, store, way):
    program = programs()
    script = """
import sys, time
from pathlib import Path
import msgspec
from perdure.checkpoint.cuda import processes
from perdure.checkpoint.cuda.contract import Store
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.cuda.session import Limits, Session
helper = Helper()
folder, store = (Path(sys.argv[2]), msgspec.json.decode(sys.argv[3], type=Store)) if sys.argv[2:] else (None, None)
Session(helper, processes.find([int(sys.argv[1])]), Limits(lock_s=20.0, answer_s=60.0), folder=folder, store=store).suspend()
print("suspended", flush=True)
time.sleep(600)
"""
    in_store = [str(tmp_path), msgspec.json.encode(store).decode()] if way == "store" else []
    command = [sys.executable, "-c", script, str(program.pid), *in_store]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        assert parent.stdout.readline() == b"suspended\n"
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    program.goes_on()


def test_random_troubles_leave_everything_running(world, helper, programs, tmp_path, store):
    """Some hundred sequences through the real helper; `test_cuda_machine` has ten thousand against the machine alone."""
    first, second = programs(0, 1 << 16), programs(1, 1 << 16)
    reached = {"suspended": 0, "failed": 0}
    for seed in range(150):
        rng = random.Random(seed)
        operations = ["state", "lock", "lock", "checkpoint", "checkpoint", "complete", "restore", "unlock", "pin", "copy"]
        faults = [
            Fault(rng.choice(operations), rng.randint(1, 4), rng.choice(["error", "error", "late"]), rng.choice([2, 304, 401, 600, 999]))
            for _ in range(rng.randint(0, 3))
        ]
        world.faults(*faults)
        folder = tmp_path / str(seed)
        folder.mkdir()
        is_direct = rng.random() < 0.4 and not _breaks_off(faults)
        through = msgspec.structs.replace(store, checkpoint=CheckpointId("a", 1, seed + 1)) if rng.random() < 0.6 else None
        held = session(helper, first, second, folder=folder if is_direct else None, store=through)
        try:
            held.suspend(lambda: [first.pid, second.pid])
            assert states_of(world, helper, first, second) == [State.CHECKPOINTED] * 2, f"seed {seed}: {faults}"
            held.resume(((A, B), (B, A)) if rng.random() < 0.5 else ())
            reached["suspended"] += 1
        except errors.GpuFailed:
            reached["failed"] += 1
        except errors.WorkloadLost as lost:
            pytest.fail(f"seed {seed}: {faults}: {lost}: {[tuple(call) for call in world.calls()]}, damage {held.damage}")
        assert states_of(world, helper, first, second) == [State.RUNNING] * 2, f"seed {seed}: {faults}"
    first.goes_on()
    second.goes_on()
    assert reached["suspended"] > 50


def states_of(world: Standin, helper: Helper, *programs: Program) -> list[State | None]:
    """The states, whatever is to go wrong with asking for them."""
    text = (world.root / "faults").read_text()
    (world.root / "faults").write_text("")
    try:
        return states(helper, *programs)
    finally:
        (world.root / "faults").write_text(text)


def _breaks_off(faults: list[Fault]) -> bool:
    """A driver that keeps back the handle, or does not take it back twice, leaves a process for which nothing can be done."""
    handed_out = [fault for fault in faults if fault.action == "late" and fault.operation in ("checkpoint", "restore")]
    of = [fault.operation for fault in faults]
    return bool(handed_out) or of.count("complete") > 1 or of.count("copy") > 1
