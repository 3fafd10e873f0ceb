"""The way to the agent: one that is started anew is waited for, and what it left is told from one that listens."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure import errors
from perdure.agent import client

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be the agent")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A socket that somebody listened at and left."""
    left = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as before:
        before.bind(str(left))
    return left


@contextlib.contextmanager
def started_anew(path: Path) -> Iterator[Callable[[], None]]:
    """Yield what begins a new listener when it is called, as the next agent does."""
    with socket.socket(socket.AF_UNIX) as listener:

        def begin() -> None:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()

        yield begin


@pytest.mark.parametrize("is_left", [True, False])
def test_one_that_is_started_anew_is_waited_for(path, is_left):
    if not is_left:
        path.unlink()
    with started_anew(path) as begin:
        waited = []
        client.connect(str(path), patience_s=240, on_wait=lambda: (waited.append(1), begin())).close()
        assert waited == [1]
        client.connect(str(path), patience_s=240, on_wait=lambda: waited.append(2)).close()
        assert waited == [1]


def test_without_patience_it_says_at_once_that_none_listens(path):
    waited = []
    with pytest.raises(errors.AgentUnavailable, match="refused"):
        client.connect(str(path), on_wait=lambda: waited.append(1))
    assert waited == []


def test_only_what_nobody_listens_at_is_forgotten(path):
    with started_anew(path) as begin:
        begin()
        client.forget(str(path))
        assert path.exists()
    client.forget(str(path))
    assert not path.exists()
    client.forget(str(path))
