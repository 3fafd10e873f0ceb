"""Where everything lies in a store: the key of every object, and what kind of object a key names.

Called by whatever reads or writes objects: the repository, locks, lives, retention, garbage collection and verification. Keys are the one
thing about a store that is never encrypted: they show workloads' names and how many checkpoints there are, nothing more.

::

    perdure.json                                 what the store is, and how its keys are derived
    packs/xx/HEX                                 blocks; HEX is the pack's name, 64 digits, xx its first two
    workloads/NAME/manifests/EPOCH8.SEQ8         a checkpoint
    workloads/NAME/{lives,leases,ends}/EPOCH8    a life, its lease, how it ended
    workloads/NAME/pins/EPOCH8.SEQ8              a checkpoint that retention keeps
    locks/UUID                                   somebody is at work
"""

from __future__ import annotations

import enum
import re

from perdure.model.checkpoint import NAME, CheckpointId

CONFIG = "perdure.json"
PACKS = "packs/"
WORKLOADS = "workloads/"
LOCKS = "locks/"

PACK_NAME_BYTES = 32
"""Length of a pack's name: a keyed BLAKE3 of all its bytes."""

_PACK = re.compile(r"packs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
_LOCK = re.compile(r"locks/[0-9a-f-]{32,36}")
_NUMBER = r"[0-9]{8,9}"
_OF_CHECKPOINT = re.compile(rf"workloads/({NAME.pattern})/(manifests|pins)/({_NUMBER})\.({_NUMBER})")
_OF_LIFE = re.compile(rf"workloads/({NAME.pattern})/(lives|leases|ends)/({_NUMBER})")


class Kind(enum.StrEnum):
    """What an object is."""

    CONFIG = "config"
    PACK = "pack"
    MANIFEST = "manifest"
    PIN = "pin"
    LIFE = "life"
    LEASE = "lease"
    END = "end"
    LOCK = "lock"


_FOLDERS = {"manifests": Kind.MANIFEST, "pins": Kind.PIN, "lives": Kind.LIFE, "leases": Kind.LEASE, "ends": Kind.END}


def kind_of(key: str) -> Kind | None:
    """Return what the object called `key` is; None for a key that is none of ours."""
    if key == CONFIG:
        return Kind.CONFIG
    if _PACK.fullmatch(key):
        return Kind.PACK
    if _LOCK.fullmatch(key):
        return Kind.LOCK
    found = _OF_CHECKPOINT.fullmatch(key) or _OF_LIFE.fullmatch(key)
    return _FOLDERS[found[2]] if found else None


def pack_key(name: bytes) -> str:
    """Return the key of the pack called `name`, `PACK_NAME_BYTES` bytes."""
    text = name.hex()
    return f"{PACKS}{text[:2]}/{text}"


def pack_name(key: str) -> bytes | None:
    """Return the name of the pack at `key`; None when it is not the key of a pack."""
    found = _PACK.fullmatch(key)
    return bytes.fromhex(found[2]) if found else None


def workload_of(key: str) -> str | None:
    """Return the workload whose object `key` names; None for an object that belongs to no workload."""
    found = _OF_CHECKPOINT.fullmatch(key) or _OF_LIFE.fullmatch(key)
    return found[1] if found else None


def checkpoint_of(key: str) -> CheckpointId | None:
    """Return the checkpoint whose manifest or pin `key` names; None for any other key."""
    found = _OF_CHECKPOINT.fullmatch(key)
    if not found or not int(found[3]) or not int(found[4]):
        return None
    return CheckpointId(found[1], int(found[3]), int(found[4]))


def epoch_of(key: str) -> int | None:
    """Return the epoch of the life, lease or end that `key` names; None for any other key."""
    found = _OF_LIFE.fullmatch(key)
    return int(found[3]) if found else None


def is_among_manifests(key: str) -> bool:
    """Tell whether `key` lies where only manifests lie, whatever it is. A workload may be called ``manifests`` itself."""
    return key.startswith(WORKLOADS) and key.split("/")[2:3] == ["manifests"]


def manifests(workload: str) -> str:
    """Return the prefix of the keys of the workload's manifests."""
    return f"{WORKLOADS}{workload}/manifests/"


def manifest_key(checkpoint: CheckpointId) -> str:
    """Return the key of the checkpoint's manifest."""
    return f"{manifests(checkpoint.workload)}{checkpoint.epoch:08d}.{checkpoint.sequence:08d}"


def pins(workload: str) -> str:
    """Return the prefix of the keys of the workload's pins."""
    return f"{WORKLOADS}{workload}/pins/"


def pin_key(checkpoint: CheckpointId) -> str:
    """Return the key of the checkpoint's pin."""
    return f"{pins(checkpoint.workload)}{checkpoint.epoch:08d}.{checkpoint.sequence:08d}"


def lives(workload: str) -> str:
    """Return the prefix of the keys of the workload's lives."""
    return f"{WORKLOADS}{workload}/lives/"


def life_key(workload: str, epoch: int) -> str:
    """Return the key of a life."""
    return f"{lives(workload)}{epoch:08d}"


def leases(workload: str) -> str:
    """Return the prefix of the keys of the workload's leases."""
    return f"{WORKLOADS}{workload}/leases/"


def lease_key(workload: str, epoch: int) -> str:
    """Return the key of a life's lease."""
    return f"{leases(workload)}{epoch:08d}"


def ends(workload: str) -> str:
    """Return the prefix of the keys of how the workload's lives ended."""
    return f"{WORKLOADS}{workload}/ends/"


def end_key(workload: str, epoch: int) -> str:
    """Return the key of how a life ended."""
    return f"{ends(workload)}{epoch:08d}"


def lock_key(uuid: str) -> str:
    """Return the key of the lock called `uuid`, 32 hexadecimal digits with or without dashes."""
    return f"{LOCKS}{uuid}"
