"""Where the everyday commands of whoever is not root go: to the node's agent. Called by `ps`, `logs`, `checkpoint` and their like.

Root's own go to root's own folders, without an agent. Root names another user with ``--user``, and then asks the agent too.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from perdure import errors
from perdure.agent import asked, client
from perdure.base import privileges, settings
from perdure.cli import console
from perdure.model.checkpoint import CheckpointId, Manifest
from perdure.supervisor import wire
from perdure.supervisor.messages import Event

User = Annotated[
    str | None, Parameter(name="--user", help="Whose workloads it is about, by name or number. Root only; through the node's agent.")
]


class Agent(msgspec.Struct, frozen=True):
    """The agent of this node, to be asked about the workloads of `user` (None: one's own)."""

    path: str
    user: int | None = None

    def ask(self, what: asked.What, on_event: Callable[[Event], None] = lambda _event: None) -> dict[str, Any]:
        """Ask it, and return the answer. Raises what it refuses with."""
        return client.ask(self.path, what, user=self.user, on_event=on_event)


def find(values: Mapping[str, settings.Value], user: str | None = None) -> Agent | None:
    """Return the agent to ask; None: the command looks for itself, as root's own do, and all do where no agent listens.

    Raises `errors.UsageError` when `user` is not for this user to say, or is none.
    """
    path = values["agent-socket"].value or client.SOCKET
    if user is not None:
        number = _number(user)
        if number == os.geteuid():
            user = None
        elif not privileges.is_root():
            raise errors.UsageError("only root may name another user", hint="leave --user out")
        else:
            return Agent(path, number)
    if privileges.is_root() or not client.listens(path):
        return None
    return Agent(path)


def find_for_store(common: console.Common, store: str | None, key_file: Path | None, user: str | None) -> Agent | None:
    """Return the agent to ask about the store; None: the command opens it, as whoever names one with ``--store`` wants.

    Raises what `find` does.
    """
    if store is not None or key_file is not None:
        return None
    return find(console.load_settings(common), user)


def listed(one: dict[str, Any]) -> tuple[CheckpointId, Manifest | errors.StoreError, bool]:
    """Return a checkpoint as the agent lists it: which, what it says of itself or why it cannot be read, and whether it is pinned."""
    checkpoint = CheckpointId.parse(one["id"])
    if "manifest" in one:
        return checkpoint, msgspec.convert(one["manifest"], Manifest), bool(one["pinned"])
    error = wire.error(msgspec.convert(one["error"], wire.ErrorDocument))
    return checkpoint, error if isinstance(error, errors.StoreError) else errors.StoreCorrupt(str(error)), bool(one["pinned"])


def shown(one: dict[str, Any]) -> tuple[CheckpointId, Manifest, bool]:
    """Return the same of a checkpoint that can be read. Raises why it cannot."""
    checkpoint, manifest, pinned = listed(one)
    if not isinstance(manifest, Manifest):
        raise manifest
    return checkpoint, manifest, pinned


def _number(user: str) -> int:
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise errors.UsageError(f"--user: there is no user {user!r}", hint="give a name or a number") from None


def without(error: errors.EnvironmentUnfit, values: Mapping[str, settings.Value]) -> errors.EnvironmentUnfit:
    """Return `error`, which a command met that looked for itself, with what helps an ordinary user."""
    if privileges.is_root():
        return error
    path = values["agent-socket"].value or client.SOCKET
    return type(error)(str(error), hint=f"run this as root, or have the node's agent run (perdure agent): none listens at {path}")


def refuse(values: Mapping[str, settings.Value], *keys: str) -> None:
    """Raise `errors.UsageError` for a flag that an ordinary user cannot give: the site decides it."""
    for key in keys:
        if values[key].origin == f"--{key}":
            raise errors.UsageError(f"--{key} is not for a workload that the agent keeps", hint="the site decides it; leave it out")
