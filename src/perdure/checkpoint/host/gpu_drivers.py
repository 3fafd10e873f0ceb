"""What each version of NVIDIA's driver can do, and which are known to be faulty. Pure; called by preflight.

Versions are compared by their numbers. What a version can do is told here for people and for refusing early; whoever calls the driver
looks for each function itself.
"""

from __future__ import annotations

import enum

import msgspec

Version = tuple[int, ...]


class Ability(enum.StrEnum):
    """What saving and bringing back GPU state needs of the driver."""

    SAVE = "save"
    """Lock with a time limit, checkpoint, restore, unlock."""
    REMAP = "remap"
    """Restore onto other GPUs than those it was saved from."""
    SHARED = "shared"
    """Memory that processes share by CUDA IPC."""
    DIRECT = "direct"
    """GPU memory is handed out to be stored, and does not pass through the workload's memory."""


class Step(msgspec.Struct, frozen=True):
    """An ability and what it needs: a driver, or a CUDA version that the driver offers."""

    ability: Ability
    driver: Version | None
    cuda: Version | None
    words: str

    @property
    def needs(self) -> str:
        """What it needs, in words."""
        if self.driver is not None:
            return f"driver {'.'.join(map(str, self.driver))}"
        return f"a driver for CUDA {'.'.join(map(str, self.cuda or ()))}"


LADDER: tuple[Step, ...] = (
    Step(Ability.SAVE, (570,), None, "save and bring back GPU state"),
    Step(Ability.REMAP, (580,), None, "restore onto other GPUs than the ones it was saved from"),
    Step(Ability.SHARED, (610,), None, "save memory that processes share by CUDA IPC"),
    Step(Ability.DIRECT, None, (13, 4), "hand GPU memory out to be stored, without passing through the workload's memory"),
)
"""From the driver's documentation. 550 can only be toggled and 555 has single actions, both without a time limit for the lock: a
program that does not come to rest would hang for ever, so neither is used."""


class Advisory(msgspec.Struct, frozen=True):
    """A fault of certain drivers that users reported."""

    first: Version
    last: Version
    """Both included."""
    only_open: bool
    """Only with the open kernel driver."""
    forbids: bool
    """Saving must not even be tried."""
    fault: str
    source: str
    """Where it was reported."""


ADVISORIES: tuple[Advisory, ...] = (
    Advisory(
        (570, 86, 15),
        (570, 158, 1),
        only_open=False,
        forbids=False,
        fault="even simple PyTorch programs were not saved (operation not supported), while plain CUDA programs were;"
        " 575.57.08 is said to save them",
        source="NVIDIA/cuda-checkpoint#34",
    ),
    Advisory(
        (610, 57, 4),
        (610, 57, 4),
        only_open=False,
        forbids=True,
        fault="locking a process ends it with SIGSEGV",
        source="NVIDIA/cuda-checkpoint#58",
    ),
    Advisory(
        (595, 71, 5),
        (595, 71, 5),
        only_open=True,
        forbids=False,
        fault="killing a process that was restored can hang the whole machine: perdure suspend it first, which frees the GPU",
        source="NVIDIA/cuda-checkpoint#53",
    ),
)
"""Reported, not tried here. A version that is not listed is not thereby known to be good."""


def version(text: str) -> Version:
    """Return the numbers of a version such as ``595.71.05``; empty for a text that is none."""
    words = text.strip().split(".")
    return tuple(int(word) for word in words) if all(word.isascii() and word.isdigit() and len(word) < 9 for word in words) else ()


def can(ability: Ability, driver: Version, cuda: Version | None) -> bool:
    """Tell whether a driver has `ability`. Of one whose version is not known, nothing is believed."""
    step = next(one for one in LADDER if one.ability is ability)
    if step.driver is not None:
        return driver >= step.driver
    return cuda is not None and cuda >= (step.cuda or ())


def advisories(driver: Version, *, is_open: bool) -> tuple[Advisory, ...]:
    """Return what is known to be wrong with a driver."""
    return tuple(one for one in ADVISORIES if driver and one.first <= driver <= one.last and (is_open or not one.only_open))
