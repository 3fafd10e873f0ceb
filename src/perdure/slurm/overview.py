"""The opted-in jobs of a cluster, as its store tells of them: where each runs or ran, which life, what is saved. Called by
`perdure slurm status`, as root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perdure import errors
from perdure.agent.site import Site
from perdure.model.checkpoint import CheckpointId, Life, Owner
from perdure.slurm import naming
from perdure.store import lives
from perdure.store.repository import Repository
from perdure.supervisor import place


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a job that is or was opted in."""

    workload: str
    cluster: str
    job: int
    step: str
    uid: int
    node: str
    """Where its newest life runs or ran."""
    epoch: int
    ended: str | None
    """How that life ended; None: it goes on, or was lost without a word."""
    started_ns: int
    checkpoint: CheckpointId | None
    """The newest one."""
    saved_ns: int | None
    stored_bytes: int | None


def look(site: Site) -> tuple[Job, ...]:
    """Return all of them, those that go on first, then by job. A user's store that cannot be opened is left out.

    Raises `errors.EnvironmentUnfit` when others than root could change what lies there.
    """
    found: list[Job] = []
    for uid in _users(site):
        where = site.place_of(Owner(uid=uid, gid=uid, groups=()))
        with contextlib.suppress(errors.StoreMissing), place.opened(where) as repository:
            found += _of(repository, uid)
    return tuple(sorted(found, key=lambda one: (one.ended is not None, one.job, one.step)))


def _users(site: Site) -> list[int]:
    """Return the users who have a repository, by the folders there are on this node and in a store that is one."""
    url = site.values["store"].value
    folders = [site.folders.state / "users"]
    if url is not None and "://" not in url:
        folders.append(Path(url) / "users")
    names: set[str] = {"0"}
    for folder in folders:
        with contextlib.suppress(OSError):
            names |= set(os.listdir(folder))
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _of(repository: Repository, uid: int) -> Iterator[Job]:
    for name in repository.workloads():
        meant = naming.read(name)
        life = lives.latest(repository, name) if meant is not None else None
        if meant is not None and life is not None:
            yield _job(repository, name, meant, life, uid)


def _job(repository: Repository, name: str, meant: tuple[str, int, str], life: Life, uid: int) -> Job:
    there = repository.checkpoints(name)
    head = repository.head(there[-1]) if there else None
    return Job(
        workload=name,
        cluster=meant[0],
        job=meant[1],
        step=meant[2],
        uid=uid,
        node=life.hostname,
        epoch=life.epoch,
        ended=life.end.reason if life.end is not None else None,
        started_ns=life.started_ns,
        checkpoint=there[-1] if there else None,
        saved_ns=head.created_ns if head is not None else None,
        stored_bytes=head.stored_bytes if head is not None else None,
    )
