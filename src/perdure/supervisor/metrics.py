"""A workload's figures for monitoring, as a file for Prometheus' node exporter. Called by `keeper`. Needs no library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perdure import errors
from perdure.base import files
from perdure.supervisor.messages import Event
from perdure.supervisor.record import OnGpu

_GPU_PHASES = {
    "gpu-lock": "Until work on GPUs had come to rest",
    "gpu-checkpoint": "Moving GPU memory away",
    "gpu-restore": "Moving GPU memory back",
}


class Metrics:
    """Counts what a supervisor tells of, and writes it to `path`, atomically, whenever something changed."""

    def __init__(self, path: Path, workload: str, epoch: int) -> None:
        self._path = path
        self._labels = f'{{workload="{workload}"}}'  # names hold nothing that would have to be escaped
        self._figures: dict[str, tuple[str, str, float]] = {}
        self._on_gpus: tuple[OnGpu, ...] = ()
        self._set("perdure_workload_running", "gauge", "Whether the workload runs", 1)
        self._set("perdure_workload_epoch", "gauge", "Number of its life", epoch)
        for name, meaning in (("checkpoints", "Checkpoints made in this life"), ("checkpoint_failures", "Checkpoints that were not made")):
            self._set(f"perdure_{name}_total", "counter", meaning, 0)
        self._set("perdure_stopped_seconds_total", "counter", "Time that checkpoints made it stand still", 0)

    def see(self, event: Event) -> None:
        """Take note of `event`. A file that cannot be written is left as it is: monitoring sees its age."""
        last = event.checkpoint
        if event.phase == "committed" and last is not None:
            self._add("perdure_checkpoints_total", 1)
            self._add("perdure_stopped_seconds_total", last.stopped_s)
            self._set("perdure_last_checkpoint_timestamp_seconds", "gauge", "When it was made", last.created_ns / 1e9)
            self._set("perdure_last_checkpoint_logical_bytes", "gauge", "Bytes as they were in the workload", last.logical_bytes)
            self._set("perdure_last_checkpoint_stored_bytes", "gauge", "Bytes the store holds for it", last.stored_bytes)
            self._set("perdure_last_checkpoint_new_bytes", "gauge", "Bytes it added to the store", last.new_bytes)
            self._set("perdure_last_checkpoint_stopped_seconds", "gauge", "How long the workload stood still", last.stopped_s)
            self._set("perdure_last_checkpoint_cost_seconds", "gauge", "From its trigger until it was durable", last.cost_s)
            if last.gpu_bytes is not None:
                self._set("perdure_last_checkpoint_gpu_bytes", "gauge", "Bytes of it that were on GPUs", last.gpu_bytes)
            self._on_gpus = last.gpus
            for phase, meaning in _GPU_PHASES.items():
                if phase in event.durations_s:
                    name = f"perdure_last_checkpoint_{phase.replace('-', '_')}_seconds"
                    self._set(name, "gauge", meaning, event.durations_s[phase])
        elif event.phase == "failed":
            self._add("perdure_checkpoint_failures_total", 1)
        elif event.phase == "ended":
            self._set("perdure_workload_running", "gauge", "Whether the workload runs", 0)
        elif event.phase != "running":
            return
        try:
            files.write_text(self._path, self.text(), mode=files.PUBLIC_MODE)
        except errors.OutputError:
            return

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        lines = []
        for name, (kind, meaning, value) in self._figures.items():
            lines += [f"# HELP {name} {meaning}.", f"# TYPE {name} {kind}", f"{name}{self._labels} {value:.15g}"]
        used = [(one.uuid, one.used_bytes) for one in self._on_gpus]
        moved = [(one.uuid, one.moved_s) for one in self._on_gpus]
        lines += self._by_gpu("perdure_last_checkpoint_gpu_used_bytes", "Bytes of it that were on each GPU", used)
        lines += self._by_gpu("perdure_last_checkpoint_gpu_moved_seconds", "Until they were off each GPU", moved)
        return "\n".join(lines) + "\n"

    def _by_gpu(self, name: str, meaning: str, figures: Sequence[tuple[str, float | None]]) -> list[str]:
        told = [f'{name}{self._labels[:-1]},gpu="{uuid}"}} {value:.15g}' for uuid, value in figures if value is not None]
        return [f"# HELP {name} {meaning}.", f"# TYPE {name} gauge", *told] if told else []

    def _set(self, name: str, kind: str, meaning: str, value: float) -> None:
        self._figures[name] = (kind, meaning, value)

    def _add(self, name: str, amount: float) -> None:
        kind, meaning, value = self._figures[name]
        self._figures[name] = (kind, meaning, value + amount)
