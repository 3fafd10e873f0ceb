"""The machine: boot, processor, memory, limits of PIDs. Called by doctor, preflight and whoever writes a manifest."""

from __future__ import annotations

import msgspec

from perdure.base.proc import reading


class Processor(msgspec.Struct, frozen=True):
    """The first processor: its model in words, and its features sorted by name."""

    model: str
    flags: tuple[str, ...]


class Memory(msgspec.Struct, frozen=True):
    """Memory of the machine, in bytes."""

    total_bytes: int
    available_bytes: int
    """What can be taken without swapping, as the kernel estimates it."""
    free_bytes: int
    swap_total_bytes: int
    swap_free_bytes: int
    shared_bytes: int
    """What lies in tmpfs and shared memory."""


def parse_processor(text: bytes) -> Processor:
    """Read the text of /proc/cpuinfo. arm64 has ``Features`` and no model name: its implementer and part numbers stand for it."""
    found = reading.fields(text)
    model = found.get("model name") or " ".join(
        f"{name} {found[name]}" for name in ("CPU implementer", "CPU part", "CPU variant") if name in found
    )
    flags = found.get("flags", found.get("Features", ""))
    return Processor(model=model, flags=tuple(sorted(set(flags.split()))))


def parse_memory(text: bytes) -> Memory:
    """Read the text of /proc/meminfo."""
    found = reading.fields(text)

    def size(name: str) -> int:
        return int(found.get(name, "0").split()[0]) * 1024

    return Memory(
        total_bytes=size("MemTotal"),
        available_bytes=size("MemAvailable"),
        free_bytes=size("MemFree"),
        swap_total_bytes=size("SwapTotal"),
        swap_free_bytes=size("SwapFree"),
        shared_bytes=size("Shmem"),
    )


def processor() -> Processor:
    """Return model and features of the first processor. Raises `errors.EnvironmentUnfit`."""
    return parse_processor(reading.system("cpuinfo"))


def memory() -> Memory:
    """Return how much memory there is and is free. Raises `errors.EnvironmentUnfit`."""
    return parse_memory(reading.system("meminfo"))


def boot_id() -> str:
    """Return the id of this boot of this machine. Raises `errors.EnvironmentUnfit`."""
    return reading.system("sys/kernel/random/boot_id").decode("ascii").strip()


def pid_max() -> int:
    """Return the number that PIDs stay below. Raises `errors.EnvironmentUnfit`."""
    return int(reading.system("sys/kernel/pid_max"))
