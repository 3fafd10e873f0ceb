"""What one life has on GPUs: suspended for a checkpoint and made to run again, described for the manifest, brought back with it.

Called by `engine` and `checkpointing`; ``perdure suspend`` is `suspending`'s. A workload without CUDA costs a look at what its processes
have mapped and open, and no helper is started for it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from perdure import errors
from perdure.checkpoint import tree
from perdure.checkpoint.cuda import amounts, mapping, processes
from perdure.checkpoint.cuda.contract import CudaProcess, Facts, Kept, Region, State, Store
from perdure.checkpoint.cuda.helper import Helper
from perdure.checkpoint.cuda.session import FOLDER, Limits, Session, name_of
from perdure.checkpoint.host import gpu as host
from perdure.checkpoint.preflight import gpu_states
from perdure.checkpoint.tree import Tree
from perdure.model.checkpoint import CudaFact, GpuFact, GpuRegion, Manifest, Part
from perdure.supervisor import quantities
from perdure.supervisor.saver import Item

_LEFT = "restored, but its GPU memory is not"


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says of GPUs."""

    gpus: tuple[GpuFact, ...] = ()
    cuda_processes: tuple[CudaFact, ...] = ()
    gpu_driver: str | None = None


class Gpus:
    """What one life has on GPUs. Used by one thread at a time."""

    def __init__(self, *, lock_s: float = quantities.LOCK_S) -> None:
        """Work on GPUs has to come to rest within `lock_s` of being asked to, the setting `gpu-lock-limit`."""
        self._lock_s = lock_s
        self._helper = Helper()
        self._session: Session | None = None
        self._is_suspended = False
        self._facts: Facts | None = None
        self._uses: dict[int, dict[str, int | None]] = {}
        self._began_s = 0.0
        self.is_on_purpose = False
        """GPU memory was moved away because somebody asked for it, and stays there when a checkpoint ends."""
        self.aside: dict[int, dict[str, int | None]] = {}
        """What of GPU memory was moved away on purpose: bytes by PID and UUID."""
        self._aside_bytes = 0
        """How much that is at most."""
        self._left: tuple[GpuFact, ...] = ()
        """All GPUs that there were then, and what was on them."""

    @property
    def helper(self) -> Helper:
        """What speaks to the driver; it is started when it is first asked."""
        return self._helper

    def look(self, root: Tree) -> int | None:
        """Return how many bytes the tree has on GPUs at most; None where it uses none. `is_told` tells whether it is exact.

        Raises `errors.GpuUnavailable`, `errors.ProcessGone`.
        """
        self._facts = self._session = None
        if not self.is_on_purpose:
            self._uses = {}
        pids = tree.pids(root)
        found = processes.find(pids)
        held = processes.held(pids) if found else ()
        if not found or not (self.is_on_purpose or held):
            return None
        self._facts = self._helper.facts()
        if self.is_on_purpose:
            self._uses = dict(self.aside)  # the driver tells nothing of memory that is not on a GPU
        else:
            self._uses = amounts.of((one.pid for one in found), self._facts.uses, held, self._facts.devices)
        return self._most_bytes(self._facts)

    @property
    def uses_any(self) -> bool:
        """Tell whether the tree had CUDA when it was looked at."""
        return self._facts is not None

    @property
    def is_told(self) -> bool:
        """Tell whether NVML said how much the tree has on GPUs; otherwise all that is known is how much is in use on those it has open."""
        return amounts.is_told(self._uses)

    def _most_bytes(self, facts: Facts) -> int:
        """Return what at most is moved."""
        if self.is_on_purpose:
            return self._aside_bytes
        return sum(amounts.at_most(device, self._uses) for device in facts.devices)

    @property
    def is_suspended(self) -> bool:
        """Tell whether GPU memory is to be moved back when what is going on has ended."""
        return self._is_suspended

    def suspend(self, root: Tree, staging: Path | None, *, store: Store | None = None, lock_s: float | None = None) -> None:
        """Move what the tree has on GPUs away: into `store`, or files below `staging`, where the driver offers it, else its own memory.

        `look` came before. Work on the GPU has to come to rest within `lock_s` (None: as is set). Does nothing for a tree that uses no
        GPU. Raises what `Session.suspend` does.
        """
        if self._facts is None:
            return
        folder = None
        if staging is not None and self._facts.driver.has_custom_storage:
            folder = staging / FOLDER
            shutil.rmtree(folder, ignore_errors=True)  # of a dump that was begun and given up
            folder.mkdir(mode=0o700)
        self._began_s = time.monotonic()
        limits = Limits(lock_s=lock_s or self._lock_s, moved_bytes=self._most_bytes(self._facts))
        session = Session(self._helper, processes.find(tree.pids(root)), limits, folder=folder, store=store if folder is not None else None)
        session.suspend(lambda: tree.pids(root))
        self._session, self._is_suspended = session, not session.was_suspended

    def resume(self) -> None:
        """Move back what `suspend` moved away, and let it run; what is suspended on purpose stays so. Raises `errors.WorkloadLost`."""
        if self._session is not None and self._is_suspended:
            self._is_suspended = False
            self._session.resume()

    def set_aside(self, root: Tree, *, lock_s: float) -> bool:
        """Free the GPUs until `resume_left`, without files. Returns whether there was CUDA to be suspended. Raises as `suspend`.

        `look` came before.
        """
        self.suspend(root, None, lock_s=lock_s)
        if self._session is None or not self._session.processes:
            self._is_suspended = False
            return False
        self.aside = {process.pid: self._uses.get(process.pid, {}) for process in self._session.processes}
        if self._facts is not None:
            self._aside_bytes = self._most_bytes(self._facts)
            self._left = tuple(self._gpu_facts(self._facts, self._session))
        self._is_suspended, self.is_on_purpose = False, True
        return True

    def plan_back(self, variables: Mapping[str, str]) -> mapping.Map:
        """Return which GPU takes the place of which, for what was set aside: empty where there is room on those that it was on.

        Raises `errors.RestoreRefused`, `errors.GpuUnavailable`; `variables` as in `plan`.
        """
        facts = self._helper.facts()
        return mapping.plan(self._left, facts.devices, facts.driver, self._allowed(facts, variables))

    def resume_left(self, root: Tree, planned: mapping.Map = ()) -> None:
        """Let run what was set aside, on the GPUs that are `planned`.

        Raises `errors.WorkloadLost`: it does not run, and may be whole; `errors.ProcessGone`.
        """
        found = [process for process in processes.find(tree.pids(root)) if process.pid in self.aside]
        Session.of_images(self._helper, found, {}, Limits(moved_bytes=self._aside_bytes)).resume(planned)
        self.is_on_purpose, self.aside = False, {}

    def describe(self) -> Described:
        """Return what a manifest says, of the tree as it was suspended."""
        if self._facts is None or self._session is None:
            return Described()
        return Described(
            gpus=tuple(self._gpu_facts(self._facts, self._session)),
            cuda_processes=tuple(self._cuda_fact(process, self._session) for process in self._session.processes),
            gpu_driver=self._facts.driver.version or None,
        )

    def _gpu_facts(self, facts: Facts, session: Session) -> Iterator[GpuFact]:
        took_s = self._moved_s(session)
        for device in facts.devices:
            sizes = [sizes[device.uuid] for sizes in self._uses.values() if device.uuid in sizes]
            if not self._uses:
                sizes = [None]  # suspended before: nobody tells any more where its memory was
            yield GpuFact(
                uuid=device.uuid,
                model=device.model,
                memory_bytes=device.memory_bytes,
                used_bytes=None if None in sizes else sum(size or 0 for size in sizes),
                capability=device.capability,
                moved_s=took_s.get(device.uuid, msgspec.UNSET),
            )

    def _moved_s(self, session: Session) -> dict[str, float]:
        """Return how long it took until a GPU was free of each process that had memory on it, by UUID."""
        took_s: dict[str, float] = {}
        for pid, whole_s in session.moved_s.items():
            copied_s = {region.uuid: region.elapsed_s for region in session.regions.get(pid, ())}
            for uuid in copied_s or self._uses.get(pid, {}):
                took_s[uuid] = max(took_s.get(uuid, 0.0), copied_s.get(uuid, whole_s))
        return took_s

    def _cuda_fact(self, process: CudaProcess, session: Session) -> CudaFact:
        sizes = self._uses.get(process.pid, {})
        regions = session.regions.get(process.pid, ())
        return CudaFact(
            pid=process.inner_pid,
            gpus=tuple(sorted(sizes)),
            memory_bytes=None if None in sizes.values() or not sizes else sum(size or 0 for size in sizes.values()),
            regions=tuple(
                GpuRegion(uuid=region.uuid, stored_as=name_of(process, region.uuid), size_bytes=region.size_bytes) for region in regions
            ),
        )

    def items(self) -> Iterator[Item]:
        """Yield the files that GPU memory was written into, and the records of what is in the store already."""
        if self._session is not None:
            for process in self._session.processes:
                for region in self._session.regions.get(process.pid, ()):
                    yield Item(name_of(process, region.uuid), region.path, Part.GPU, is_placed=region.kept is Kept.PLACED)

    def durations_s(self) -> dict[str, float]:
        """Return how long all took, and as ``stopped`` how long it is since it began; empty where nothing was suspended."""
        if self._session is None or self._session.was_suspended:
            return {}
        return self._session.durations_s | {"stopped": time.monotonic() - self._began_s}

    def plan(self, manifest: Manifest, variables: Mapping[str, str]) -> mapping.Map:
        """Return which GPU takes the place of which, for a restore here. Raises `errors.RestoreRefused`, `errors.GpuUnavailable`.

        `variables` are the owner's: CUDA_VISIBLE_DEVICES says which GPUs the workload may use.
        """
        if not manifest.cuda_processes:
            return ()
        facts = self._helper.facts()
        planned = mapping.plan(manifest.gpus, facts.devices, facts.driver, self._allowed(facts, variables))
        if any(fact.regions for fact in manifest.cuda_processes) and not facts.driver.has_custom_storage:
            raise errors.RestoreRefused(
                f"GPU memory was saved with custom storage, which this driver ({facts.driver.version}) lacks",
                hint="restore where a driver of CUDA 13.4 or newer is",
            )
        return planned

    @staticmethod
    def _allowed(facts: Facts, variables: Mapping[str, str]) -> frozenset[str] | None:
        """Return the UUIDs of the GPUs that the workload may use; None: all. Raises `errors.GpuUnavailable`.

        The helper sees all; what is seen from here are the job's, and that is what the variable counts.
        """
        everything = {device.uuid for device in facts.devices}
        return host.look().allowed(host.visible(variables), everything)

    def restore(self, root: Tree, manifest: Manifest, contents: Path, planned: mapping.Map, store: Store | None = None) -> None:
        """Bring GPU memory back to a tree that CRIU has just restored, and let it run: out of `store`, or else of files in `contents`.

        Raises `errors.RestoreFailed`, `errors.CheckpointDamaged`: end it then.
        """
        if not manifest.cuda_processes:
            return
        try:
            there = {process.inner_pid: process for process in processes.find(tree.pids(root))}
        except errors.ProcessGone as error:
            raise errors.RestoreFailed("the workload ended at the moment it was restored", hint="try an older checkpoint") from error
        missing = [fact.pid for fact in manifest.cuda_processes if fact.pid not in there]
        if missing:
            raise errors.RestoreFailed(f"{_LEFT}: process {missing[0]} has ended, or has no CUDA", hint="try an older checkpoint")
        regions = {there[fact.pid].pid: _regions(fact, contents, store) for fact in manifest.cuda_processes if fact.regions}
        found = [there[fact.pid] for fact in manifest.cuda_processes]
        whole_bytes = sum(gpu.memory_bytes for gpu in manifest.gpus if gpu.used_bytes != 0)
        told = [fact.memory_bytes for fact in manifest.cuda_processes]
        moved_bytes = whole_bytes if None in told else sum(size or 0 for size in told)
        session = Session.of_images(self._helper, found, regions, Limits(moved_bytes=moved_bytes), store=store)
        try:
            session.resume(planned)
        except errors.WorkloadLost as error:
            if session.damage is not None:
                raise errors.CheckpointDamaged(
                    f"{manifest.id} is damaged: {session.damage.message}",
                    hint="see perdure store verify",
                    object_key=session.damage.object_key,
                ) from error
            raise errors.RestoreFailed(f"{_LEFT}: {error}", hint="see perdure doctor --gpu; the checkpoint is untouched") from error


def wake(root: Tree) -> bool:
    """Make the CUDA processes of a tree run whose supervisor was killed, if it left one locked or suspended.

    Returns whether it had. Raises `errors.WorkloadLost`: they do not run. A tree without CUDA costs a look at its mappings.
    """
    try:
        found = processes.find(tree.pids(root))
    except errors.ProcessGone:
        return False
    if not found:
        return False
    with Helper() as helper:
        states = gpu_states.asker(helper)(found)
        left = [one for one in found if states.get(one.pid) not in (None, State.RUNNING)]
        if left:
            moved_bytes = sum(fact.resident_bytes for fact in tree.facts(root))
            Session.left_behind(helper, [one for one in found if one.pid in states], Limits(moved_bytes=moved_bytes)).resume()
    return bool(left)


def _regions(fact: CudaFact, contents: Path, store: Store | None) -> tuple[Region, ...]:
    if store is not None:
        return tuple(Region(uuid=one.uuid, path=one.stored_as, size_bytes=one.size_bytes, kept=Kept.STORED) for one in fact.regions)
    return tuple(Region(uuid=one.uuid, path=str(contents / one.stored_as), size_bytes=one.size_bytes) for one in fact.regions)
