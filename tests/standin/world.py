"""The world of the stand-in driver, as a test sets it up and looks at it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

FLAGS = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")

Operation = Literal["init", "state", "lock", "checkpoint", "restore", "unlock", "complete", "copy", "pin", "unpin", "nvml"]


class Gpu(NamedTuple):
    """A device of the stand-in."""

    uuid: str
    """``GPU-`` and a UUID."""
    memory_bytes: int = 1 << 30
    capability: str = "9.0"
    mig: bool = False
    model: str = "Stand-in H100"


class Fault(NamedTuple):
    """What the `nth` call (from 1; 0: every call) of an operation does instead of succeeding."""

    operation: Operation
    nth: int
    action: Literal["error", "hang", "die", "fail", "late", "slow"]
    """``error``: return `number`, do nothing. ``hang``: never return. ``die``: the process is killed, the call returns error 999.
    ``fail``: the process goes to the state failed, the call returns `number`. ``late``: do it, and return error `number` all the same.
    ``slow``: of a copy: it takes `number` milliseconds more."""
    number: int = 999
    """A CUresult: 1 invalid value, 2 out of memory, 304 operating system, 401 illegal state, 600 not ready, 801 not supported."""


class Refused(NamedTuple):
    """A device of which NVML tells nothing, wherever it is asked."""

    uuid: str
    number: int
    """An nvmlReturn_t: 4 no permission, 15 lost, 999 unknown."""
    at: Literal["handle", "memory"] = "handle"
    """What NVML refuses: the device, or how much memory it has."""


class Call(NamedTuple):
    """One call that the driver got."""

    operation: str
    pid: int
    result: int


class Standin:
    """One world. `environment` is what a process needs to load the stand-in instead of a driver; `restricted` hides devices from it."""

    def __init__(self, root: Path, libraries: Path) -> None:
        self.root = root
        self.libraries = libraries
        (root / "memory").mkdir(parents=True, exist_ok=True)
        (root / "dev").mkdir(exist_ok=True)
        for name in ("nvidiactl", "nvidia-uvm"):
            (root / "dev" / name).touch()
        self.driver()
        self.gpus()
        self.faults()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the workload and for the helper."""
        return {"STANDIN_CUDA": str(self.root), "LD_LIBRARY_PATH": str(self.libraries)}

    def restricted(self, *uuids: str) -> dict[str, str]:
        """Return variables besides `environment` that keep the devices `uuids` from a process, as a job's control group does.

        The helper drops them with all of NVIDIA's, as it leaves such a group.
        """
        return {"NVIDIA_STANDIN_HIDDEN": ",".join(uuids)}

    def driver(
        self,
        version: str = "580.65.06",
        cuda: int = 13040,
        features: tuple[str, ...] = ("checkpoint", "remap", "custom-storage", "page-locking"),
    ) -> None:
        """Say which driver it is. `cuda` is 1000 × major + 10 × minor. With ``no-pids`` NVML tells of no process, as in a container."""
        self._write("driver", f"version {version}\ncuda {cuda}\nfeatures {' '.join(features)}\n")

    def gpus(self, *gpus: Gpu) -> None:
        """Say which devices there are."""
        for number, gpu in enumerate(gpus):
            (self.root / "memory" / gpu.uuid).mkdir(exist_ok=True)
            (self.root / "dev" / f"nvidia{number}").touch()
        self._write("gpus", "".join(f"{g.uuid} {g.memory_bytes} {g.capability} {int(g.mig)} {g.model}\n" for g in gpus))

    def refused(self, *refused: Refused) -> None:
        """Say of which devices NVML tells nothing from now on."""
        self._write("refused", "".join(f"{one.uuid} {one.number} {one.at}\n" for one in refused))

    def faults(self, *faults: Fault) -> None:
        """Say what goes wrong from now on; counting begins again."""
        self._write("calls", "")
        self._write("counts", "")
        self._write("faults", "".join(f"{f.operation} {f.nth} {f.action} {f.number}\n" for f in faults))

    def calls(self, operation: Operation | None = None) -> list[Call]:
        """Return what was called since `faults`."""
        text = (self.root / "calls").read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()  # the last line may be half written
        found = [Call(words[0], int(words[1]), int(words[2])) for words in map(str.split, whole)]
        return [call for call in found if operation in (None, call.operation)]

    def _write(self, name: str, text: str) -> None:
        aside = self.root / f".{name}"
        aside.write_text(text)
        aside.replace(self.root / name)


def build(folder: Path) -> Path:
    """Compile both libraries into `folder`, unless they are there; returns it."""
    sources = Path(__file__).parent
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    for name in ("cuda", "nvidia-ml"):
        target = folder / f"lib{name}.so.1"
        if target.exists():
            continue
        aside = folder / f".{target.name}.{os.getpid()}"
        command = [
            compiler,
            *FLAGS,
            f"-Wl,-soname,{target.name}",
            "-o",
            str(aside),
            str(sources / f"lib{name}.c"),
            str(sources / "world.c"),
            "-ldl",
        ]
        subprocess.run(command, check=True)
        aside.replace(target)
    return folder
