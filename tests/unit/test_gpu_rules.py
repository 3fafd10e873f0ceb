"""What is judged about drivers, GPUs and workloads that use them, on machines that are not here."""

from __future__ import annotations

import gpu_specimens as gs
import msgspec
import pytest
from gpu_specimens import GIB
from hypothesis import given
from hypothesis import strategies as st

from perdure import errors
from perdure.checkpoint.cuda import mapping
from perdure.checkpoint.cuda.contract import Driver, State
from perdure.checkpoint.host import gpu_drivers as drivers
from perdure.checkpoint.host.gpu import Gpus, Unread
from perdure.checkpoint.preflight import gpu, gpu_machine, gpu_restore
from perdure.model.checkpoint import GpuRegion
from perdure.model.finding import Severity, problems


def names(findings) -> list[str]:
    """The codes of findings."""
    return [finding.code for finding in findings]


class TestDrivers:
    """The ladder of drivers."""

    @pytest.mark.parametrize(
        ("text", "abilities"),
        [
            ("535.183.06", ""),
            ("550.54.15", ""),
            ("555.42.02", ""),
            ("569.99", ""),
            ("570.86.15", "save"),
            ("575.51.03", "save"),
            ("580.65.06", "save remap"),
            ("595.71.05", "save remap"),
            ("610.43", "save remap shared"),
        ],
    )
    def test_each_can_what_its_documentation_says(self, text, abilities):
        able = [ability.value for ability in drivers.Ability if drivers.can(ability, drivers.version(text), (13, 3))]
        assert " ".join(able) == abilities

    def test_direct_storage_goes_by_cuda(self):
        assert not drivers.can(drivers.Ability.DIRECT, (999,), (13, 3))
        assert drivers.can(drivers.Ability.DIRECT, (999,), (13, 4))
        assert not drivers.can(drivers.Ability.DIRECT, (999,), None)

    @given(st.text())
    def test_what_is_no_version_can_nothing(self, text):
        numbers = drivers.version(text)
        assert numbers == () or all(number >= 0 for number in numbers)
        if not numbers:
            assert not any(drivers.can(ability, numbers, None) for ability in drivers.Ability)

    @given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=4))
    def test_a_newer_driver_can_no_less(self, one, other):
        older, newer = sorted((tuple(one), tuple(other)))
        for ability in drivers.Ability:
            assert drivers.can(ability, newer, (13, 4)) or not drivers.can(ability, older, (13, 4))

    def test_a_fault_of_the_open_driver_is_only_its(self):
        assert drivers.advisories((595, 71, 5), is_open=True)
        assert not drivers.advisories((595, 71, 5), is_open=False)
        assert not drivers.advisories((595, 71, 6), is_open=True)
        (known,) = drivers.advisories(drivers.version("610.57.04"), is_open=False)
        assert known.forbids

    @pytest.mark.parametrize(
        ("text", "is_known"),
        [("570.86.15", True), ("570.133.20", True), ("570.158.01", True), ("575.57.08", False), ("580.65.06", False)],
    )
    def test_drivers_that_are_reported_to_refuse_pytorch_are_named(self, text, is_known):
        found = drivers.advisories(drivers.version(text), is_open=False)
        assert [one.source for one in found] == (["NVIDIA/cuda-checkpoint#34"] if is_known else [])
        assert all("PyTorch" in one.fault and not one.forbids for one in found)


class TestAllowed:
    """Which GPUs of a machine a workload may use."""

    def test_without_a_restriction_all(self):
        machine = gs.gpus(gs.device(0), gs.device(1))
        assert machine.allowed(None, {gs.uuid(0), gs.uuid(1)}) is None
        assert machine.allowed("0,1", {gs.uuid(0), gs.uuid(1)}) is None
        assert machine.allowed("1", {gs.uuid(0), gs.uuid(1)}) == {gs.uuid(1)}

    def test_in_a_job_those_that_it_has(self):
        job = gs.gpus(gs.device(3))
        everything = {gs.uuid(number) for number in range(8)}
        assert job.allowed(None, everything) == {gs.uuid(3)}
        assert job.allowed("0", everything) == {gs.uuid(3)}

    def test_none_is_not_all(self):
        none = msgspec.structs.replace(gs.gpus(), devices=())
        assert none.allowed(None, {gs.uuid(0)}) == frozenset()
        assert gs.gpus().allowed("", {gs.uuid(0)}) == frozenset()

    def test_what_is_not_known_is_not_all(self):
        with pytest.raises(errors.GpuUnavailable, match="did not answer"):
            gs.gpus(driver="", refusal="NVML did not answer within 60 s").allowed(None, {gs.uuid(0)})


class TestMachine:
    """Driver and GPUs."""

    def test_without_a_driver_there_is_one_finding(self):
        found = gpu_machine.judge(Gpus(refusal="libnvidia-ml.so.1: cannot open shared object file", refusal_number=12))
        assert names(found) == ["gpu-no-driver"]
        assert found[0].severity is Severity.PROBLEM
        assert "570" in found[0].remedy

    def test_a_good_machine_has_no_problem(self):
        found = gpu_machine.judge(gs.gpus())
        assert names(found) == ["gpu-driver", "gpu-device"]
        assert "without passing through" in found[0].message
        assert "79 GiB of 80 GiB" in found[1].message

    def test_a_driver_that_does_not_answer_is_named_with_what_it_said(self):
        (silent,) = gpu_machine.judge(gs.gpus(driver="", refusal="NVML did not answer within 60 s"))
        assert silent.code == "gpu-driver-silent"
        assert "did not answer" in silent.message
        assert "610.80.02" in silent.message
        (apart,) = gpu_machine.judge(gs.gpus(driver="", refusal="nvmlInit_v2: mismatch (18)", refusal_number=18))
        assert apart.code == "gpu-driver-mismatch"
        assert "reboot" in apart.remedy

    @pytest.mark.parametrize(
        ("values", "code", "severity"),
        [
            ({"driver": "550.54.15", "cuda": (12, 4)}, "gpu-driver-old", "problem"),
            ({"driver": "610.57.04"}, "gpu-driver-faulty", "problem"),
            ({"driver": "595.71.05", "is_open_driver": True}, "gpu-driver-caution", "warning"),
            ({"driver": "570.158.01"}, "gpu-driver-caution", "warning"),
            ({"driver": "570.86.15"}, "gpu-no-remap", "warning"),
            ({"driver": "580.65.06"}, "gpu-no-shared", "info"),
            ({"cuda": (13, 3)}, "gpu-no-direct", "info"),
            ({"bindings": None}, "gpu-no-bindings", "problem"),
            ({"mps": (71,)}, "gpu-mps", "problem"),
            ({"virtual": (gs.uuid(0),)}, "gpu-virtual", "problem"),
            ({"devices": (gs.device(mig=True),)}, "gpu-mig", "problem"),
            ({"devices": (gs.device(model="NVIDIA GB10"),), "architecture": "aarch64"}, "gpu-platform", "problem"),
        ],
    )
    def test_each_lack_has_its_code(self, values, code, severity):
        devices = values.pop("devices", ())
        found = [finding for finding in gpu_machine.judge(gs.gpus(*devices, **values)) if finding.code == code]
        assert [finding.severity.value for finding in found] == [severity]
        assert found[0].remedy

    def test_no_gpu_is_a_problem(self):
        machine = msgspec.structs.replace(gs.gpus(), devices=())
        assert "gpu-no-device" in names(problems(gpu_machine.judge(machine)))

    def test_of_an_old_driver_no_more_is_said_than_that(self):
        found = names(gpu_machine.judge(gs.gpus(driver="535.183.06", cuda=(12, 2))))
        assert found == ["gpu-driver-old", "gpu-driver", "gpu-device"]

    def test_a_lost_gpu_is_a_warning_to_everybody_and_a_forbidden_one_to_nobody(self):
        machine = gs.gpus(gs.device(1), unread=(Unread(index=0, number=15, words="lost"), Unread(index=2, number=4, words="no permission")))
        (lost,) = gpu_machine.unfit(machine, {gs.uuid(1)})
        assert (lost.code, lost.severity, lost.subject) == ("gpu-lost", Severity.WARNING, "GPU 0")
        assert names(gpu_machine.judge(machine)) == ["gpu-lost", "gpu-driver", "gpu-forbidden", "gpu-device"]
        none = msgspec.structs.replace(machine, devices=())
        (problem,) = problems(gpu_machine.judge(none))
        assert problem.code == "gpu-no-device"
        assert "1 is not for this process" in problem.message

    def test_only_the_gpus_in_use_matter_to_a_workload(self):
        machine = gs.gpus(gs.device(0), gs.device(1, mig=True))
        assert names(gpu_machine.unfit(machine, {gs.uuid(0)})) == []
        assert names(gpu_machine.unfit(machine, {gs.uuid(1)})) == ["gpu-mig"]


class TestWorkload:
    """A running workload."""

    def test_a_plain_training_has_no_finding(self):
        assert names(gpu.check(gs.scene())) == []

    def test_gpu_memory_has_to_fit_into_the_machine(self):
        (found,) = gpu.check(gs.scene(free_bytes=3 * GIB))
        assert found.code == "gpu-host-memory"
        assert "4 GiB" in found.message
        assert "3 GiB" in found.message
        assert names(gpu.check(gs.scene(free_bytes=3 * GIB, is_direct=True))) == []
        assert names(gpu.check(gs.scene(free_bytes=3 * GIB, is_suspended=True))) == []

    def test_what_the_driver_does_not_tell_is_said(self):
        machine = gs.gpus(uses=(gs.use(memory_bytes=None),))
        assert names(gpu.check(gs.scene(gs.member(), machine=machine))) == ["gpu-memory-unknown"]
        assert names(gpu.check(gs.scene(gs.member(), machine=gs.gpus()))) == ["gpu-memory-unknown"]

    def test_what_is_not_told_is_at_most_what_is_in_use_on_the_gpus_that_are_open(self):
        machine = gs.gpus(*(gs.device(number, minor=number, free_bytes=70 * GIB) for number in range(4)))
        holder = gs.member(held=(gs.held(7, "/dev/nvidia1"), gs.held(7, "/dev/nvidia2"), gs.held(7, "/dev/nvidiactl")))
        (unknown,) = gpu.check(gs.scene(holder, machine=machine))
        assert unknown.code == "gpu-memory-unknown"
        assert "at most 20 GiB" in unknown.message
        found = tuple(gpu.check(gs.scene(holder, machine=machine, free_bytes=19 * GIB)))
        assert names(found) == ["gpu-memory-unknown", "gpu-host-memory"]
        assert "at most 20 GiB" in found[1].message
        assert names(gpu.check(gs.scene(holder, machine=machine, free_bytes=19 * GIB, is_direct=True))) == ["gpu-memory-unknown"]

    def test_a_forked_worker_is_named_with_what_it_holds(self):
        worker = gs.member(9, is_cuda=False, held=(gs.held(fd=5), gs.held(path="/dev/nvidiactl", fd=4)))
        (found,) = gpu.check(gs.scene(gs.member(), worker))
        assert (found.code, found.pid, found.fd, found.path) == ("gpu-device-held", 9, 5, "/dev/nvidia0")
        assert "/dev/nvidiactl" in found.message
        assert "spawn" in found.remedy

    def test_one_that_holds_devices_alone_is_named_too(self):
        watcher = gs.member(9, is_cuda=False, held=(gs.held(fd=None),))
        (found,) = gpu.check(gs.scene(watcher, machine=gs.gpus()))
        assert (found.code, found.fd) == ("gpu-device-held", None)

    def test_much_unified_memory_is_a_warning(self):
        assert names(gpu.check(gs.scene(gs.member(managed_bytes=gpu.MANAGED_BYTES)))) == []
        (found,) = gpu.check(gs.scene(gs.member(managed_bytes=2 * GIB)))
        assert (found.code, found.severity) == ("gpu-managed-memory", Severity.WARNING)

    def test_several_processes_may_share_memory(self):
        pair = (gs.member(7), gs.member(8))
        old = gs.gpus(driver="595.80.01", uses=(gs.use(7), gs.use(8)))
        (found,) = gpu.check(gs.scene(*pair, machine=old))
        assert found.code == "gpu-shared-memory"
        assert "610" in found.remedy
        assert names(gpu.check(gs.scene(*pair))) == []
        apart = tuple(msgspec.structs.replace(one, variables={"NCCL_P2P_DISABLE": "1"}) for one in pair)
        assert names(gpu.check(gs.scene(*apart, machine=old))) == []

    def test_nccl_over_several_gpus_wants_its_settings(self):
        machine = gs.gpus(gs.device(0), gs.device(1), uses=(gs.use(7, 0), gs.use(7, 1)))
        bare = gs.member(has_nccl=True, variables={"NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "1"})
        (found,) = gpu.check(gs.scene(bare, machine=machine))
        assert found.code == "gpu-nccl"
        assert found.flag == "NCCL_P2P_DISABLE=1 NCCL_NVLS_ENABLE=0"
        assert found.flag in found.remedy
        assert names(gpu.check(gs.scene(gs.member(has_nccl=True, variables=gs.NCCL), machine=machine))) == []
        assert names(gpu.check(gs.scene(gs.member(has_nccl=True)))) == []

    def test_vllm_over_several_gpus_wants_its_options(self):
        machine = gs.gpus(gs.device(0), gs.device(1), uses=(gs.use(7, 0), gs.use(7, 1)))
        server = gs.member(arguments=("python", "/usr/bin/vllm", "serve", "m", "--enforce-eager"))
        (found,) = gpu.check(gs.scene(server, machine=machine))
        assert (found.code, found.flag) == ("gpu-vllm", "--disable-custom-all-reduce")
        whole = gs.member(arguments=(*server.arguments, "--disable-custom-all-reduce"))
        assert names(gpu.check(gs.scene(whole, machine=machine))) == []
        assert names(gpu.check(gs.scene(server))) == []

    def test_mps_is_seen_by_who_uses_it(self):
        machine = gs.gpus(uses=(gs.use(mps=True),))
        assert names(gpu.check(gs.scene(gs.member(), machine=machine))) == ["gpu-mps"]
        beside = gs.gpus(uses=(gs.use(),), mps=(71,))
        assert names(gpu.check(gs.scene(gs.member(), machine=beside))) == []
        untold = gs.gpus(mps=(71,))
        assert "gpu-mps" in names(problems(tuple(gpu.check(gs.scene(gs.member(), machine=untold)))))

    def test_states_that_nobody_asked_for_are_told(self):
        assert names(gpu.check(gs.scene(gs.member(state=State.RUNNING)))) == []
        assert names(gpu.check(gs.scene(gs.member(state=State.LOCKED)))) == ["gpu-stuck"]
        assert names(gpu.check(gs.scene(gs.member(state=State.CHECKPOINTED), is_suspended=True))) == []
        assert names(gpu.check(gs.scene(gs.member(state=State.FAILED), is_suspended=True))) == ["gpu-failed"]

    @given(
        pids=st.lists(st.integers(2, 30), min_size=1, max_size=5, unique=True),
        cuda=st.booleans(),
        version=st.sampled_from(["", "535.1", "570.2", "580.1", "595.71.05", "610.57.04", "620.1"]),
        free=st.integers(0, 1 << 40),
        memory=st.one_of(st.none(), st.integers(0, 1 << 40)),
        managed=st.integers(0, 1 << 40),
        state=st.one_of(st.none(), st.sampled_from(State)),
        bindings=st.one_of(st.none(), st.just("13.5.0")),
        suspended=st.booleans(),
    )
    def test_findings_of_any_scene_are_whole_and_refuse_what_cannot_work(
        self, pids, cuda, version, free, memory, managed, state, bindings, suspended
    ):
        members = tuple(
            gs.member(pid, is_cuda=cuda, state=state, managed_bytes=managed, has_nccl=True, held=(gs.held(pid),)) for pid in pids
        )
        machine = gs.gpus(driver=version, bindings=bindings, uses=tuple(gs.use(pid, memory_bytes=memory) for pid in pids))
        seen = gs.scene(*members, machine=machine, free_bytes=free, is_suspended=suspended)
        found = tuple(gpu.check(seen))
        for finding in found:
            assert finding.message
            assert finding.remedy
            assert finding.pid is None or finding.pid in pids
        grave = names(problems(found))
        if not cuda:
            assert names(found) == ["gpu-device-held"] * len(pids)
        elif version in ("", "535.1", "610.57.04") or bindings is None or state is State.FAILED:
            assert grave
        elif (GIB if memory is None else memory * len(pids)) > free and not suspended:
            assert grave == ["gpu-host-memory"]
        else:
            assert grave == []


class TestRestore:
    """Bringing GPU state back."""

    def test_the_same_machine_has_no_finding(self):
        assert names(gpu_restore.check(gs.manifest(gs.fact()), gs.gpus())) == []

    def test_without_cuda_nothing_is_asked(self):
        plain = msgspec.structs.replace(gs.manifest(gs.fact()), cuda_processes=(), gpus=())
        assert names(gpu_restore.check(plain, Gpus())) == []

    def test_a_machine_without_a_driver_has_one(self):
        assert names(gpu_restore.check(gs.manifest(gs.fact()), Gpus())) == ["gpu-no-driver"]

    def test_another_driver_is_refused(self):
        (found,) = gpu_restore.check(gs.manifest(gs.fact(), driver="580.65.06"), gs.gpus())
        assert found.code == "restore-gpu-driver"
        assert "580.65.06" in found.remedy

    def test_fewer_or_other_gpus_are_refused(self):
        two = gs.manifest(gs.fact(0), gs.fact(1))
        (fewer,) = gpu_restore.check(two, gs.gpus())
        assert fewer.code == "restore-gpu-missing"
        assert "too few are here" in fewer.message
        other = gs.gpus(gs.device(0, model="NVIDIA A100"), gs.device(1))
        assert names(gpu_restore.check(two, msgspec.structs.replace(other, devices=(gs.device(3, model="NVIDIA A100"), gs.device(1))))) == [
            "restore-gpu-missing"
        ]

    def test_a_gpu_without_room_is_refused(self):
        (found,) = gpu_restore.check(gs.manifest(gs.fact()), gs.gpus(gs.device(free_bytes=GIB)))
        assert found.code == "restore-gpu-memory"
        assert "free" in found.message

    def test_other_gpus_need_a_driver_that_can(self):
        elsewhere = gs.gpus(gs.device(5))
        assert names(gpu_restore.check(gs.manifest(gs.fact()), elsewhere)) == ["restore-gpu-other"]
        old = gs.gpus(gs.device(5), driver="575.51.03")
        assert names(gpu_restore.check(gs.manifest(gs.fact(), driver="575.51.03"), old)) == ["restore-gpu-remap"]

    def test_gpus_that_the_job_may_not_use_are_none(self):
        assert names(gpu_restore.check(gs.manifest(gs.fact()), gs.gpus(), frozenset({gs.uuid(9)}))) == ["restore-gpu-missing"]

    def test_memory_in_files_of_its_own_needs_a_driver_that_takes_it(self):
        plain = gs.manifest(gs.fact())
        region = GpuRegion(uuid=gs.uuid(0), stored_as="gpu/2", size_bytes=GIB)
        direct = msgspec.structs.replace(
            plain, cuda_processes=tuple(msgspec.structs.replace(fact, regions=(region,)) for fact in plain.cuda_processes)
        )
        assert names(gpu_restore.check(direct, gs.gpus())) == []
        assert names(gpu_restore.check(direct, gs.gpus(cuda=(13, 3)))) == ["restore-gpu-storage"]

    @given(st.data())
    def test_what_the_map_refuses_is_a_problem_and_nothing_else_is(self, data):
        models = st.sampled_from(["A", "B"])
        version = data.draw(st.sampled_from(["575.51.03", "610.80.02"]))
        before = tuple(
            gs.fact(number, used_bytes=data.draw(st.one_of(st.none(), st.integers(0, 80 * GIB))), model=data.draw(models))
            for number in data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
        )
        here = tuple(
            gs.device(number, model=data.draw(models), free_bytes=data.draw(st.integers(0, 80 * GIB)))
            for number in data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=6, unique=True))
        )
        found = tuple(gpu_restore.check(gs.manifest(*before, driver=version), gs.gpus(*here, driver=version)))
        driver = Driver(version=version, cuda="13.4", has_checkpoint=True, has_remap=version > "580", has_custom_storage=True)
        try:
            planned = mapping.plan(before, here, driver)
        except errors.RestoreRefused as refused:
            said = str(refused)
            (problem,) = problems(found)
            assert problem.code in ("restore-gpu-missing", "restore-gpu-remap", "restore-gpu-memory")
            assert problem.message == said
        else:
            assert problems(found) == ()
            assert names(found) == (["restore-gpu-other"] if any(old != new for old, new in planned) else [])
